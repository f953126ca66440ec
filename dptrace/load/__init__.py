"""Paths to a run: local processes, Dask, cache."""

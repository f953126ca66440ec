"""Benchmarks: many trainings, timed without the profiler and split with it, on disk as they end."""

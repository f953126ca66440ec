"""Replay of recorded steps: the dependency graph of a run, its simulation, and what changes if something changes."""

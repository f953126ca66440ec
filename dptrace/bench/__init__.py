"""Benchmarks: time many trainings without the profiler, split them with it, and store each result at once."""

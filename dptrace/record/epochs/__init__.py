"""Training epochs that are timed without the profiler, and their results."""

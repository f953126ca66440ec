"""The profiler of the script itself: kept apart from dptrace's, or its trace taken as the run."""

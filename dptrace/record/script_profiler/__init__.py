"""The profiler of the script itself, kept apart from dptrace's."""

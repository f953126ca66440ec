"""torch's profiler over a window of steps: it starts on all ranks at once and marks phases and modules in the trace."""

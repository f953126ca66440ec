"""Serve the parts of a Gantt chart that are on a screen, from an index in memory-mapped files, for runs of any size."""

"""The FLOPs of a step, counted while it runs."""

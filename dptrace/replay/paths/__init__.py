"""Paths through a replayed graph: what sets the length of a step, its slack, and what its parts would gain."""

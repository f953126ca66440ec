"""The part of a graph that needs no other rank: one process, its tasks, their order, and its waits."""

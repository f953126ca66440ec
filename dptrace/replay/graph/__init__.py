"""From a run's files to its dependency graph: which task waits for which, on every rank and between ranks."""

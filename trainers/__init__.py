"""One file per way to train in parallel; each runs on its own and is meant to be read."""

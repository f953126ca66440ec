"""Which samples the ranks train on, and in which order."""

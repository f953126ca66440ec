"""Train with several values of one option and compare."""

"""The folder of a run: where it is written, its run.json, and the messages that launcher and ranks leave in it."""

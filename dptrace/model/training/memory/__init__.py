"""Bytes that a training takes: the model's state, activations, and all of it on one GPU."""

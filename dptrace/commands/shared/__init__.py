"""What the verbs share: the click group, options and output helpers."""

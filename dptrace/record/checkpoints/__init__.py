"""The checkpoints of a training: their folder, their files, and which of them a training continues from."""

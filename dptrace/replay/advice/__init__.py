"""What to change in a recorded training: its findings, its options, and what replays of it gain."""

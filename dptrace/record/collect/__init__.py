"""Join the parts of a run from machines that share no folder; imports no torch."""

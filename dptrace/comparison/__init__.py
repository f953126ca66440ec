"""Compare two runs: samples, changes, significance."""

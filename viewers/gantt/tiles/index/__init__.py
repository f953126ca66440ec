"""The index of the intervals of a lane: exact sums, windows and places without reading all intervals."""

"""What ranks send each other: all-reduces, collectives of a mesh, and what a split region gathers and sums."""

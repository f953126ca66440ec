"""Views along a time axis: what ran when, and the memory in use."""

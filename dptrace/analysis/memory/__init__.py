"""Memory of each device over time: how much is allocated, since when, by which operator, and for what."""

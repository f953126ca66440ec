"""Pages and tables of bench, sweep and links."""

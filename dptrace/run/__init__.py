"""A run: its data, its tables, its cross-rank analysis, and selection."""

"""The clocks of the ranks: offsets between them, from collectives, messages and shared clocks."""

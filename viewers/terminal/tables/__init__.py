"""Tables for the terminal, one subject per file."""

"""Which calls of several ranks are one collective."""

"""Two runs on one time axis, aligned by step: their chart and its page."""

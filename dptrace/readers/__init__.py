"""Readers: bytes to columns of events, one module per format."""

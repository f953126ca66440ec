"""Readers: trace files of every format to columns of events."""

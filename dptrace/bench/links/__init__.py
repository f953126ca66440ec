"""Measure the links between ranks."""

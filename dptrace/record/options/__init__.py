"""Trainer modes, models and options, and their checks."""

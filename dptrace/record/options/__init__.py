"""Modes, models and options of the trainers, and their checks; imports no torch."""

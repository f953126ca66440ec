"""Helpers without domain knowledge: intervals, units, text, processes, files."""

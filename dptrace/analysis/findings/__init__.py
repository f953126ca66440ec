"""Detectors of what costs time, one per file, and the ranked list of findings."""

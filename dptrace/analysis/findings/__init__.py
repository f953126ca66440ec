"""Findings: detectors of what costs time, and the ranked list."""

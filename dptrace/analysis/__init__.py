"""Figures computed from timelines."""

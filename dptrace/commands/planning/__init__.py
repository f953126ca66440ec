"""Verbs that compute from a description instead of a recording."""

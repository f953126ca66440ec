"""Explanations of algorithms, drawn in the terminal and as animated pages."""

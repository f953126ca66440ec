"""Whole HTML pages: view, report, comparison, HTA, notebook."""

"""Holistic Trace Analysis on dptrace's reader, and its definitions in dptrace's own code."""

"""The pictures of ``dptrace view --view``, one per file."""

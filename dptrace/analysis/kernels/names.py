"""Short names of kernels, for every table and page."""

from __future__ import annotations

from dptrace.readers.short_name import short_name, short_names

__all__ = ["short_name", "short_names"]

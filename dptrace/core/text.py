"""Untrusted text made safe to show: a name in a trace must not control the terminal."""

from __future__ import annotations

import re

__all__ = ["encodable", "sanitize"]

# C0 and C1 controls except tab and newline, text-direction marks, and lone surrogates (bytes that were not UTF-8).
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def sanitize(text: str) -> str:
    r"""Escape characters that a terminal would obey or that no encoding can hold.

    >>> sanitize("gemm\x1b[31m"), sanitize("a\u202eb")
    ('gemm\\x1b[31m', 'a\\u202eb')
    """
    return _UNSAFE.sub(lambda match: match.group().encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def encodable(text: str) -> str:
    """Escape lone surrogates (bytes of a name that were not UTF-8), which no file can hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

"""Texts from strangers, made fit to be shown: a name in a trace must not give orders to a terminal."""

from __future__ import annotations

import re

__all__ = ["encodable", "sanitize"]

# C0 and C1 controls but tab and newline, text-direction marks, and lone surrogates (bytes that were no UTF-8).
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def sanitize(text: str) -> str:
    r"""Spell out what a terminal would obey or no encoding can hold.

    >>> legible("gemm\x1b[31m"), legible("a\u202eb")
    ('gemm\\x1b[31m', 'a\\u202eb')
    """
    return _UNFIT.sub(lambda found: found.group().encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def encodable(text: str) -> str:
    """Spell out lone surrogates (bytes of a name that were no UTF-8), which no file can hold; leave all else."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

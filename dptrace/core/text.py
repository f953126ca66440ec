"""Untrusted text made safe to show: a name in a trace must not control the terminal."""

from __future__ import annotations

import re

__all__ = ["encodable", "from_cell", "sanitize", "to_cell"]

# C0 and C1 controls except tab and newline, text-direction marks, and lone surrogates (bytes that were not UTF-8).
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

# What a spreadsheet takes for a formula, and such texts that are marked already.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def sanitize(text: str) -> str:
    r"""Escape characters that a terminal would obey or that no encoding can hold.

    >>> sanitize("gemm\x1b[31m"), sanitize("a\u202eb")
    ('gemm\\x1b[31m', 'a\\u202eb')
    """
    return _UNSAFE.sub(lambda match: match.group().encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def encodable(text: str) -> str:
    """Escape lone surrogates (bytes of a name that were not UTF-8), which no file can hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def to_cell(text: str) -> str:
    """Return a text for a cell of a CSV file: an apostrophe keeps spreadsheets from computing what a trace says.

    >>> to_cell("=1+1"), to_cell("gemm"), from_cell(to_cell("'-"))
    ("'=1+1", 'gemm', "'-")
    """
    return f"'{text}" if _FORMULA.match(text) else text


def from_cell(text: str) -> str:
    """Return the text that :func:`to_cell` made safe."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text

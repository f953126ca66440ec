"""Untrusted text."""

from __future__ import annotations

import sys

from dptrace.core.text import encodable, sanitize


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    """Escape sequences, carriage returns, direction marks and lone surrogates are escaped; all else is unchanged."""
    assert "a\\x1b[2J\\rb\\u202ec\\udcff" == sanitize("a\x1b[2J\rb\u202ec\udcff")
    assert "two\nlines\tµ×日本😀" == sanitize("two\nlines\tµ×日本😀")


def test_whatever_is_legible_can_be_encoded() -> None:
    """Sanitized text of any characters is valid UTF-8."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))

    assert sanitize(every).encode()
    assert encodable(every).encode()


def test_encodable_leaves_all_but_surrogates() -> None:
    """A file may hold control characters, but not lone surrogates."""
    assert "a\x1bb\\udcff" == encodable("a\x1bb\udcff")

"""Texts from strangers."""

from __future__ import annotations

import sys

from dptrace.core.text import encodable, sanitize


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    """Escape sequences, carriage returns, text-direction marks and lone surrogates become visible; all else stays."""
    assert "a\\x1b[2J\\rb\\u202ec\\udcff" == sanitize("a\x1b[2J\rb\u202ec\udcff")
    assert "two\nlines\tµ×日本😀" == sanitize("two\nlines\tµ×日本😀")


def test_whatever_is_legible_can_be_encoded() -> None:
    """No character at all makes a text that UTF-8 can't hold."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))

    assert sanitize(every).encode()
    assert encodable(every).encode()


def test_encodable_leaves_all_but_surrogates() -> None:
    """A file may hold control characters; only halves of characters it can't."""
    assert "a\x1bb\\udcff" == encodable("a\x1bb\udcff")

"""Formatting of times, sizes and shares."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.core.units import (
    byte_size,
    duration,
    encodable,
    for_terminal,
    milliseconds,
    sanitize,
    share,
    signed_milliseconds,
)

_UNIT_NS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}
_UNIT_BYTES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


@given(st.integers(1, 10**15))
def test_a_duration_is_within_half_a_unit_of_its_last_digit(ns: int) -> None:
    """Three significant digits, or whole units, and the sign of the time."""
    number, unit = duration(ns).split(" ")
    digits = len(number.partition(".")[2])

    assert float(number.replace(",", "")) * _UNIT_NS[unit] == pytest.approx(ns, abs=0.51 * _UNIT_NS[unit] / 10**digits)
    assert f"−{number} {unit}" == duration(-ns)


@pytest.mark.heavy
@given(st.integers(1, 10**15))
def test_a_size_is_within_half_a_unit_of_its_last_digit(size: int) -> None:
    """One decimal of the unit that fits; whole bytes below a kilobyte."""
    number, unit = byte_size(size).split(" ")
    digits = len(number.partition(".")[2])

    found = float(number.replace(",", "")) * _UNIT_BYTES[unit]
    assert found == pytest.approx(size, abs=0.51 * _UNIT_BYTES[unit] / 10**digits)


@given(st.integers(-(10**13), 10**13))
def test_milliseconds_are_the_number_and_differences_have_a_sign(ns: int) -> None:
    """At least the hundredth of a ms below 100 ms, and a sign only if a digit is not zero."""
    assert float(milliseconds(ns).replace(",", "")) == pytest.approx(ns / 1e6, abs=max(0.0051, abs(ns) / 1e6 / 1000))
    text = signed_milliseconds(ns)
    assert (text[0] in "+−") == bool(float(text.lstrip("+−").replace(",", "")))


@given(st.floats(0, 1))
def test_a_share_is_a_percentage(fraction: float) -> None:
    """Never further from the truth than its last digit."""
    text = share(fraction).removesuffix(" %")

    if text.startswith("<"):
        assert fraction < 0.0005
    else:
        assert float(text) == pytest.approx(100 * fraction, abs=0.51)


# Untrusted text.


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    """Escape sequences, carriage returns, direction marks and lone surrogates are escaped; all else is unchanged.

    A file may hold control characters, but not lone surrogates.
    """
    assert "a\x1bb\\udcff" == encodable("a\x1bb\udcff")
    assert "a\\x1b[2J\\rb\\u202ec\\udcff" == sanitize("a\x1b[2J\rb\u202ec\udcff")
    assert "two\nlines\tµ×日本😀" == sanitize("two\nlines\tµ×日本😀")


@pytest.mark.heavy
def test_whatever_is_legible_can_be_encoded() -> None:
    """Sanitized text of any characters is valid UTF-8."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))

    assert sanitize(every).encode()
    assert encodable(every).encode()


@pytest.mark.parametrize("width", [30, 80])
def test_a_message_is_wrapped_for_a_terminal_and_nothing_in_it_is_cut(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """A path is longer than a line rather than cut; a number keeps its unit, an option its value; a pipe gets lines."""
    path, kept = "/a/folder/with-a-name-of-its-own/" * 2, ("12.5 ms", "--ranks 0,1", "“aten::add of it”")
    text = f"{path}: takes {kept[0]} more.\n  Choose with {kept[1]} what {kept[2]} is, or leave it out."
    assert text == for_terminal(text + "\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))

    shown = for_terminal(text, indent=4)

    assert text.split() == shown.split()
    assert all(len(line) <= width or line.startswith(path) for line in shown.splitlines())
    assert all(any(one in line for line in shown.splitlines()) for one in (path, *kept))

"""Numbers and names as text: units, and what is safe on a terminal."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TextIO

# Formatting of times, sizes, shares and counts for people; the only place that formats them.
#
# Times come in ns, sizes in bytes, shares as fractions of 1.

MINUS = "−"
"""The sign of negative numbers: as wide as a plus sign, unlike a hyphen."""


def milliseconds(ns: float) -> str:
    """Format a time as a number of ms, for tables with the unit in the heading.

    >>> milliseconds(14_100_000), milliseconds(250_340_000), milliseconds(1_234_567_000)
    ('14.10', '250.3', '1,235')
    """
    value = ns / 1e6
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 100 else f"{value:.2f}"


def signed_milliseconds(ns: float) -> str:
    """Format a difference as a number of ms with its sign.

    >>> signed_milliseconds(14_100_000), signed_milliseconds(-250_000), signed_milliseconds(3)
    ('+14.10', '−0.25', '0.00')
    """
    return signed(ns, milliseconds(abs(ns)))


def duration(ns: float) -> str:
    """Format a time with its unit, in three significant digits.

    >>> duration(31_500_000), duration(999), duration(152_300_000), duration(-4_200), duration(86_400e9)
    ('31.5 ms', '999 ns', '152 ms', '−4.20 µs', '86,400 s')
    """
    sign = MINUS if ns < 0 else ""
    size = abs(ns)
    for unit, length in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        value = size / length
        if value >= 0.9995:
            return f"{sign}{value:,.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}"
    return f"{sign}{size:.0f} ns"


def signed_duration(ns: float) -> str:
    """Format a difference with its sign and unit.

    >>> signed_duration(-412_345), signed_duration(9)
    ('−412 µs', '+9 ns')
    """
    return signed(ns, duration(abs(ns)))


def signed(value: float, text: str) -> str:
    """Put the sign of *value* before *text*, unless all digits of the text are zeros."""
    if not any(digit in text for digit in "123456789"):
        return text
    return f"{'+' if value > 0 else MINUS}{text}"


def byte_size(size: float) -> str:
    """Format bytes in the unit that fits; 0 stands for an unknown size and becomes a dash.

    >>> byte_size(0), byte_size(512), byte_size(25_000_000), byte_size(999_960)
    ('–', '512 B', '25.0 MB', '1.0 MB')
    """
    if not size:
        return "–"
    if size < 999.5:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95 or unit == "GB":
            return f"{size:,.1f} {unit}"
    raise AssertionError


def share(fraction: float) -> str:
    """Format a share in percent: one decimal below 10 %, none above.

    >>> share(0.203), share(0.0456), share(0.0001), share(0)
    ('20 %', '4.6 %', '< 0.1 %', '0 %')
    """
    percent = 100 * fraction
    if not percent:
        return "0 %"
    return "< 0.1 %" if percent < 0.05 else f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"


def number(value: float) -> str:
    """Format a rate or another number without a unit, in three significant digits, whole from 100 on.

    >>> number(0.01234), number(4.567), number(494.7), number(12_345.6)
    ('0.0123', '4.57', '495', '12,346')
    """
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Format a count with its noun.

    >>> plural(1, "step"), plural(1_200, "step"), plural(2, "entry", "entries")
    ('1 step', '1,200 steps', '2 entries')
    """
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def ranks_text(ranks: Iterable[int], capital: bool = False) -> str:
    """Return a list of ranks as text.

    >>> ranks_text([2]), ranks_text([0, 1, 3], capital=True), ranks_text(range(1, 8))
    ('rank 2', 'Ranks 0, 1, 3', 'ranks 1–7')
    """
    known = sorted(ranks)
    # In a row of ranks each is as far from its place.
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(known), lambda item: item[1] - item[0])]
    parts = [f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    shown = ", ".join(parts[:6]) + (f" and {sum(map(len, runs[6:]))} more" if len(runs) > 6 else "")
    return f"{'Rank' if capital else 'rank'}{'' if len(known) == 1 else 's'} {shown}"


def device_names(places: Sequence[tuple[int, int]]) -> list[str]:
    """Return what to call devices given as rank and number: by their rank, and by their number where it has several.

    >>> device_names([(0, 0), (1, 0), (1, 1)])
    ['rank 0', 'rank 1 GPU 0', 'rank 1 GPU 1']
    """
    count = Counter(rank for rank, _ in places)
    return [f"rank {rank}" + (f" GPU {device}" if count[rank] > 1 else "") for rank, device in places]


def listed(texts: Sequence[str], most: int = 3, separator: str = ", ") -> str:
    """Join the first texts, and count the rest.

    >>> listed(["a", "b", "c"]), listed(["a", "b", "c"], 1)
    ('a, b, c', 'a and 2 more')
    """
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


# Untrusted text made safe to show: a name in a trace must not control the terminal.

# C0 and C1 controls except tab and newline, text-direction marks, and lone surrogates (bytes that were not UTF-8).
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

# What a spreadsheet takes for a formula, and such texts that are marked already.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def nearest(name: str, names: Iterable[str]) -> str:
    """Return which name is meant, as a sentence with a space before it; empty if none is near.

    >>> nearest("llama3-70", ["llama3-8b", "llama3-70b"]), nearest("x", ["llama3-8b"])
    (' Did you mean llama3-70b?', '')
    """
    from difflib import get_close_matches  # rarely needed

    return "".join(f" Did you mean {near}?" for near in get_close_matches(name.lower(), list(names), 1, cutoff=0.5))


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


_TOGETHER = re.compile(r"\d [a-zA-Zµ%]|--[\w-]+ [^\s-]|dptrace [a-z]|'[^'\n]{,60}'|“[^”\n]{,60}”|\"[^\"\n]{,60}\"")
"""A number and its unit, an option and its value, a verb, and what is quoted: a command, a name."""


def for_terminal(text: str, stream: TextIO | None = None, indent: int = 0) -> str:
    """Return a text as a stream shows it, wrapped if that is a terminal: paths, numbers and commands stay whole.

    Args:
        stream: where it goes; standard error if None.
        indent: blanks before the further lines of each line.
    """
    if not (stream or sys.stderr).isatty():
        return text.rstrip("\n")
    return wrapped(text, shutil.get_terminal_size().columns, indent)


def wrapped(text: str, width: int, indent: int = 0) -> str:
    """Return lines wrapped at a width, the further ones of each indented: paths, numbers and commands stay whole."""
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    whole = _TOGETHER.sub(lambda kept: kept[0].replace(" ", "\xa0"), text)
    return "\n".join(part for line in whole.splitlines() for part in wrapper.wrap(line) or [""]).replace("\xa0", " ")

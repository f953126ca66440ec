"""The look of a cell in the terminal's picture: its letter, its colors on any terminal, its name where that fits."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from dptrace.analysis.per_gpu.split import EXPOSED_LABELS, OVERLAPPED_LABEL, PART_LABELS, Part
from dptrace.core.units import sanitize
from dptrace.viewers.base.theme import DARK, OVERLAPPED, PART_COLORS, PART_ORDER, PATTERNS, WAITING

__all__ = [
    "EXPOSED",
    "FAINT",
    "IDLE",
    "LEGEND",
    "LOOKS",
    "NOTHING",
    "OVERLAP",
    "WAITS",
    "Look",
    "Pen",
    "pen_for",
    "time_saved_look",
]


@dataclass(frozen=True, slots=True)
class Look:
    """How a part is drawn: never by its color alone."""

    glyph: str
    label: str
    color: str = ""
    ansi_16: str = ""
    """The style on a terminal with sixteen colors."""
    fill: str = " "
    ink: str = ""
    """The text style of a part that has no background and whose label is centered."""


_FILLS = {color: {"hatch": "/", "back": "\\"}.get(pattern, " ") for color, pattern in PATTERNS.items()}
"""What fills the rest of a stretch with a name or letter, by color."""
_GLYPHS = {
    Part.FORWARD: ("F", "white on blue"),
    Part.BACKWARD: ("B", "black on cyan"),
    Part.OPTIMIZER: ("O", "black on yellow"),
    Part.OTHER: ("C", "black on white"),
    Part.EXPOSED_COMM: ("X", "white on red"),
    Part.EXPOSED_MEMORY: ("M", "white on magenta"),
}
LOOKS = {
    part: Look(glyph, PART_LABELS[part], PART_COLORS[part], ansi_16, fill=_FILLS.get(PART_COLORS[part], " "))
    for part, (glyph, ansi_16) in _GLYPHS.items()
}
EXPOSED = LOOKS[Part.EXPOSED_COMM]
WAITS = Look("W", EXPOSED_LABELS["exposed_wait_ns"], WAITING, "black on bright_black", fill=_FILLS[WAITING])
OVERLAP = Look("=", OVERLAPPED_LABEL, OVERLAPPED, "black on green")
# Idle keeps the terminal's background: a bar as bright as work would draw attention to nothing.
IDLE = LOOKS[Part.IDLE] = Look("·", PART_LABELS[Part.IDLE], fill="·")
NOTHING = Look(" ", "")
FAINT = {part: Look(look.glyph.lower(), look.label) for part, look in LOOKS.items()}
"""Parts in a cell that is mostly idle: a small letter without color."""
LEGEND = (*(LOOKS[part] for part in PART_ORDER), OVERLAP)

_IN_ASCII = str.maketrans({"·": ".", "µ": "u", "×": "x", "–": "-", "−": "-", "…": "...", "→": "->"})


def time_saved_look(label: str, saved: bool | None) -> Look:
    """Return the look of time that one of two runs saves; it shows *label* where that fits.

    Args:
        saved: whether B saves it; None where the difference may be noise.
    """
    return Look("-", label, fill="-", ink={True: "bold green", False: "bold red", None: "dim"}[saved])


@dataclass(frozen=True, slots=True)
class Pen:
    """What the console can show."""

    colored: bool
    ansi_16: bool
    ascii: bool
    encoding: str

    def text(self, text: str) -> str:
        """Return a name from a trace with control characters spelled out or removed."""
        kept = "".join(
            c for c in sanitize(text) if unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
        )
        return self.encodable(kept)

    def encodable(self, text: str) -> str:
        """Replace characters that the encoding does not have."""
        text = text.translate(_IN_ASCII) if self.ascii else text
        return text.encode(self.encoding, "replace").decode(self.encoding)

    def style(self, look: Look) -> str:
        """Return the look's colors; empty where there are none."""
        if not self.colored:
            return ""
        if look.ink:
            return look.ink
        if not look.color:
            return ""
        # Those for a dark page, as most terminals are dark; each stretch has its name or letter as well.
        color, ink = DARK[look.color]
        return look.ansi_16 if self.ansi_16 else f"{ink} on {color}"

    def bar(self, cells: Sequence[Look]) -> Text:
        """Draw one row: in color with the part's name or letter, otherwise with its letter repeated."""
        row = Text()
        for look, group in groupby(cells):
            width = len(list(group))
            captioned = look.ink or (self.colored and look.color)
            row.append(self.encodable(_caption(look, width) if captioned else look.glyph * width), self.style(look))
        return row


def pen_for(console: Console) -> Pen:
    """Return what a console can show."""
    utf = console.encoding.lower().replace("-", "").startswith("utf")
    colored = console.color_system is not None and not console.no_color
    return Pen(colored, console.color_system in ("standard", "windows"), not utf, console.encoding)


def _caption(look: Look, width: int) -> str:
    """Return the longest name of a part that fits: its label, the label's first words, or its letter."""
    words = look.label.split()
    if look.ink:
        fitting = next((" ".join(words[:n]) for n in (len(words), 3, 2) if _room(words[:n]) + 2 <= width), "")
        return f" {fitting} ".center(width, look.fill) if fitting else look.fill * width
    for text in (look.label, words[0]):
        if len(text) + 2 <= width:
            return f" {text} ".ljust(width, look.fill)
    return look.glyph.ljust(width, look.fill)


def _room(words: Sequence[str]) -> int:
    return cell_len(" ".join(words))

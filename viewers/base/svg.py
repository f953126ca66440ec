"""SVG pictures: text and shapes, and charts drawn from marks."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from html import escape as _escape
from typing import TypeAlias

from dptrace.core.units import sanitize
from dptrace.viewers.base.marks import Box, Dot, Drawing, Entry, Label, Line
from dptrace.viewers.base.theme import PATTERNS

# Write SVG: shapes and text, no script. All text from a run goes through :func:`escape`.


FONT = "Inter, 'Segoe UI', 'Liberation Sans', Helvetica, Arial, sans-serif"

_UNFIT = re.compile("[\ufffe\uffff\u2028\u2029]")
"""Characters that XML forbids, or that break a line."""
_NARROW = frozenset("iljtfrI.,:;|!'()[]· ")
_APART, _THICK = 7.0, 1.6
"""Distance and thickness of a pattern's lines in pixels; dots are squares of twice the thickness."""
_DARK_PARTS = 'fill="#000" fill-opacity=".34" pointer-events="none"'
_ATTRIBUTES = 'xmlns="http://www.w3.org/2000/svg" role="img" font-size="12"'
_SHAPES = {
    "square": ((-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)),
    "triangle": ((0, -4.8), (4.5, 3.2), (-4.5, 3.2)),
    "diamond": ((0, -5), (5, 0), (0, 5), (-5, 0)),
}
Rectangle: TypeAlias = tuple[float, float, float, float]
"""Left, top, width and height."""


def escape(text: str) -> str:
    r"""Escape a text from a trace for SVG or HTML, between tags and in quotes.

    >>> escape('</svg><script>"\u202e')
    '&lt;/svg&gt;&lt;script&gt;&quot;\\u202e'
    """
    return _escape(_UNFIT.sub("\ufffd", sanitize(text)))


def number(value: float) -> str:
    """Write a coordinate to a hundredth, without trailing zeros.

    >>> number(3), number(2.5), number(-0.001)
    ('3', '2.5', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def text_width(text: str, size: float = 12) -> float:
    """Estimate a text's width in pixels without a browser; rather too wide than too narrow."""
    units = 0.0
    for c in text:
        wide = unicodedata.east_asian_width(c) in "WF"
        units += 1.05 if wide else 0.36 if c in _NARROW else 0.9 if c in "mwMW@%" else 0.7 if c.isupper() else 0.58
    return units * size


def shorten(text: str, room: float, size: float = 12) -> str:
    """Cut a text in its middle so that it fits into *room* pixels; similar names often start alike.

    >>> shorten("bucket 0", 400), shorten("FSDP::all_gather (layers.3.attention)", 120)
    ('bucket 0', 'FSDP::all…ttention)')
    """
    text = sanitize(text)
    if text_width(text, size) <= room:
        return text
    for kept in range(len(text) - 1, 1, -1):
        head = kept // 2
        short = f"{text[:head]}…{text[len(text) - (kept - head) :]}"
        if text_width(short, size) <= room:
            return short
    return "…"


class Canvas:
    """Collect shapes, then :meth:`finish`."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height = width, height
        size = f'width="{number(width)}" height="{number(height)}"'
        self._parts = [
            f'<svg {_ATTRIBUTES} viewBox="0 0 {number(width)} {number(height)}" {size} font-family="{escape(FONT)}">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{number(width)}" height="{number(height)}" fill="#FFFFFF"/>',
        ]
        self.shapes = 0
        """Number of rectangles, lines and dots."""

    def _add(self, tag: str, attributes: str, tip: str) -> None:
        self.shapes += 1
        self._parts.append(
            f"<{tag} {attributes}><title>{escape(tip)}</title></{tag}>" if tip else f"<{tag} {attributes}/>"
        )

    def _pattern(self, boxes: Sequence[Rectangle], color: str) -> None:
        """Draw the dark parts of a color's pattern, as shapes: of an SVG ``<pattern>``, browsers print images."""
        if path := "".join(piece for box in boxes for piece in _dark_parts(PATTERNS.get(color, ""), *box)):
            self._parts.append(f'<path d="{path}" {_DARK_PARTS}/>')

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        color: str,
        tip: str = "",
        round_: float = 0,
        dark: str = "",
        plain: bool = False,
    ) -> None:
        """Draw a rectangle; one without width is not drawn.

        Args:
            dark: its color on a dark page, where that is not the palette's.
            plain: without the color's pattern, whose lines would cross a text.
        """
        if width <= 0 or height <= 0:
            return
        corners = f' rx="{number(round_)}"' if round_ else ""
        size = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"{corners}'
        self._add("rect", f'{size} fill="{escape(color)}"{_dark_style(dark)}', tip)
        if not plain:
            self._pattern([(x, y, width, height)], color)

    def rects(self, boxes: Sequence[Rectangle], color: str) -> None:
        """Draw many rectangles of one color (x, y, width, height) as one path."""
        if boxes:
            path = "".join(f"M{number(x)} {number(y)}h{number(w)}v{number(h)}h{number(-w)}z" for x, y, w, h in boxes)
            self._add("path", f'd="{path}" fill="{escape(color)}"', "")
            self.shapes += len(boxes) - 1
            self._pattern(boxes, color)

    def line(self, x1: float, y1: float, x2: float, y2: float, color: str, width: float = 1, dash: str = "") -> None:
        """Draw a line."""
        self.polyline([(x1, y1), (x2, y2)], color, width, dash)

    def polyline(self, points: list[tuple[float, float]], color: str, width: float = 1, dash: str = "") -> None:
        """Draw lines from point to point."""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        look = f'fill="none" stroke="{color}" stroke-width="{number(width)}"{dashed}'
        self._add("polyline", f'points="{path}" {look}', "")

    def dot(
        self,
        x: float,
        y: float,
        color: str,
        shape: str = "circle",
        hollow: bool = False,
        tip: str = "",
        size: float = 9.0,
    ) -> None:
        """Draw a dot of a shape, or its outline; *size* is its diameter."""
        scale = size / 9.0
        look = f'fill="#FFFFFF" stroke="{color}" stroke-width="1.5"' if hollow else f'fill="{color}" fill-opacity=".75"'
        around = _SHAPES.get(shape)
        if around is None:
            self._add("circle", f'cx="{number(x)}" cy="{number(y)}" r="{number(4 * scale)}" {look}', tip)
        else:
            corners = " ".join(f"{number(x + dx * scale)},{number(y + dy * scale)}" for dx, dy in around)
            self._add("polygon", f'points="{corners}" {look}', tip)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        color: str = "#111827",
        size: float = 12,
        anchor: str = "start",
        bold: bool = False,
        upright: bool = False,
        dark: str = "",
    ) -> None:
        """Write a text centered on *y*; *anchor* is start, middle or end; *upright* rotates it to run upwards.

        Args:
            dark: its color on a dark page, where that is not the palette's.
        """
        style = f' text-anchor="{anchor}"' if anchor != "start" else ""
        style += f' font-size="{number(size)}"' if size != 12 else ""
        style += ' font-weight="700"' if bold else ""
        style += f' transform="rotate(-90 {number(x)} {number(y)})"' if upright else ""
        look = f'fill="{color}"{style}{_dark_style(dark)}'
        self._parts.append(f'<text x="{number(x)}" y="{number(y + size * 0.36)}" {look}>{escape(text)}</text>')

    def finish(self) -> str:
        """Return the SVG text."""
        return "\n".join([*self._parts, "</svg>", ""])


def _dark_parts(pattern: str, x: float, y: float, width: float, height: float) -> Iterator[str]:
    """Yield the dark parts of a pattern within a box as paths; a pattern goes on from box to box."""
    if pattern in ("hatch", "back"):
        # Between two diagonals lies a hexagon with sides on the edges of the box; ``back`` is ``hatch`` in a mirror.
        edge, sign, phase = (x, 1, x + y) if pattern == "hatch" else (x + width, -1, y - x - width)
        for low, high in _covered(phase, width + height, _APART * 2**0.5, _THICK * 2**0.5):
            xs = min(low, width), min(high, width), max(high - height, 0), max(low - height, 0)
            x1, x2, x3, x4 = (number(edge + sign * along) for along in xs)
            ys = max(low - width, 0), max(high - width, 0), min(high, height), min(low, height)
            y1, y2, y3, y4 = (number(y + along) for along in ys)
            yield f"M{x1} {y1}H{x2}V{y2}L{x3} {y3}H{x4}V{y4}z"
    elif pattern:
        thick = 2 * _THICK if pattern == "dots" else _THICK
        across = [(0.0, width)] if pattern == "rails" else list(_covered(x, width, _APART, thick))
        down = [(0.0, height)] if pattern == "bars" else list(_covered(y, height, _APART, thick))
        for left, right in across:
            for top, bottom in down:
                corner, side = f"M{number(x + left)} {number(y + top)}", number(right - left)
                yield f"{corner}h{side}v{number(bottom - top)}h-{side}z"


def _covered(start: float, length: float, apart: float, thick: float) -> Iterator[tuple[float, float]]:
    """Yield the parts of a length that lines from 0 on cover, *apart* from each other, as distances from *start*."""
    for line in range(math.floor((start - thick) / apart) + 1, math.ceil((start + length) / apart)):
        yield max(line * apart - start, 0), min(line * apart + thick - start, length)


# Draw a view as SVG, for slides, reports and print.


WIDTH = 1200
"""Width of the whole picture in pixels."""
_TOP, _BOTTOM, _LEAST_LEFT, _MOST_LEFT = 16.0, 24.0, 60.0, 320.0
"""Margins of a chart in pixels: above, below, and on the left at least and at most."""
_SLIM, _MOST_RIGHT, _LEAST_TICK, _LINE_HEIGHT = 600.0, 0.34, 48.0, 10.0
"""Width up to which a legend has the whole width; share of the width beside the axes at most; least room of a text; how
far apart lines of text are at least."""
_ABOVE, _TALL = 16.0, 700.0
"""Space for ticks above a picture that is so tall that those below it are out of sight."""
_QUIET, _GRID, _AXIS = "#5B6472", "#E3E7EC", "#9CA3AF"


def svg(drawing: Drawing, heading: bool = True, run: str = "", width: float = WIDTH) -> str:
    """Draw as SVG text.

    Args:
        heading: draw title and subtitle; a page has its own.
        run: the name of the run, drawn above the heading.
        width: of the whole picture, in pixels.
    """
    top = _TOP + (22 if run else 0) + (24 if heading else 0) + (20 if heading and drawing.subtitle else 0)
    left = _left(drawing, width)
    inner = width - left - min(drawing.right, _MOST_RIGHT * width)
    beside = left if width > _SLIM else 4
    legend = _legend_rows(drawing, width - beside)
    top += 22 * len(legend) + (_ABOVE if _tall(drawing) else 0)
    bottom = _BOTTOM + (18 if drawing.x.title else 0) if drawing.x.ticks or drawing.x.title else 8
    canvas = Canvas(width, top + drawing.height + bottom, drawing.title)
    y = _TOP
    if run:
        canvas.text(16, y + 1, shorten(run, width - 32, 13), _QUIET, size=13)
        y += 22
    if heading:
        canvas.text(16, y + 2, drawing.title, size=16, bold=True)
        y += 24
    if heading and drawing.subtitle:
        canvas.text(16, y, shorten(drawing.subtitle, width - 32), _QUIET)
        y += 20
    for row in legend:
        _legend(canvas, row, beside, y)
        y += 22
    if drawing.message:
        canvas.text(16, top + 20, drawing.message, _QUIET, size=14)
        return canvas.finish()
    _axes(canvas, drawing, left, top, inner)
    _marks(canvas, drawing, left, top, inner)
    return canvas.finish()


def _dark_style(color: str) -> str:
    """Return the attribute with a color for a dark page, where that is not the palette's."""
    return f' style="--dark:{escape(color)}"' if color else ""


def _tall(drawing: Drawing) -> bool:
    return drawing.height > _TALL and bool(drawing.x.ticks)


def _left(drawing: Drawing, width: float) -> float:
    if drawing.message:
        return 16
    widest = max((text_width(label) for _, label in drawing.y.ticks), default=0)
    most = min(_MOST_LEFT, _MOST_RIGHT * width)
    return min(max(widest + 22 + (20 if drawing.y.title else 0), _LEAST_LEFT), most)


def _legend_rows(drawing: Drawing, room: float) -> list[list[Entry]]:
    rows: list[list[Entry]] = []
    used = room
    for given in drawing.legend:
        entry = Entry(given.color, shorten(given.name, min(_MOST_LEFT * 1.5, room - 36)), given.shape)
        width = text_width(entry.name) + 36
        if used + width > room:
            rows.append([])
            used = 0
        rows[-1].append(entry)
        used += width
    return rows


def _legend(canvas: Canvas, entries: list[Entry], x: float, y: float) -> None:
    for entry in entries:
        if entry.shape in ("line", "dashes"):
            canvas.line(x, y, x + 16, y, entry.color, 2, "5 4" if entry.shape == "dashes" else "")
        elif entry.shape:
            canvas.dot(x + 8, y, entry.color, entry.shape, hollow=entry.shape == "ring")
        else:
            canvas.rect(x, y - 6, 15, 12, entry.color, round_=2)
        canvas.text(x + 20, y, entry.name, "#374151")
        x += text_width(entry.name) + 36


def _axes(canvas: Canvas, drawing: Drawing, left: float, top: float, inner: float) -> None:
    x, y, low = drawing.x, drawing.y, top + drawing.height
    room, free_from = max(x.room(inner), _LEAST_TICK), 0.0
    for value, label in sorted(x.ticks, key=lambda tick: x.place(tick[0])):
        at, text = left + x.place(value) * inner, shorten(label, room)
        if x.grid:
            canvas.line(at, top, at, low, _GRID)
        # Where ticks are close, those that have no room for a name have none.
        if at - text_width(text) / 2 < free_from:
            continue
        free_from = at + text_width(text) / 2 + 4
        for y_of_text in (low + 12, *([top - 10] if _tall(drawing) else [])):
            canvas.text(at, y_of_text, text, "#374151", anchor="middle")
    for value, label in y.ticks:
        at = top + y.place(value) * drawing.height
        if y.grid:
            canvas.line(left, at, left + inner, at, _GRID)
        strong = value in y.strong
        canvas.text(left - 8, at, shorten(label, left - 16), "#111827" if strong else _QUIET, anchor="end", bold=strong)
    if x.grid:
        canvas.line(left, top, left, low, _AXIS)
    if x.title:
        canvas.text(left + inner / 2, low + 31, x.title, _QUIET, anchor="middle")
    if y.title:
        canvas.text(14, top + drawing.height / 2, y.title, _QUIET, anchor="middle", upright=True)


def _marks(canvas: Canvas, drawing: Drawing, left: float, top: float, inner: float) -> None:
    def across(value: float) -> float:
        return left + drawing.x.place(value) * inner

    def down(value: float) -> float:
        return top + drawing.y.place(value) * drawing.height

    for mark in drawing.marks:
        if isinstance(mark, Box):
            x, y, width, height = across(mark.left), down(mark.top), 0.0, down(mark.bottom) - down(mark.top)
            width = across(mark.right) - x
            color, ink = mark.dark or ("", "")
            canvas.rect(x, y, width, height, mark.color, mark.tip, dark=color)
            size = 12 if height >= 15 else 10
            fitting = next((text for text in mark.texts if text_width(text, size) + 6 <= width), "")
            if fitting and height >= 11:
                if mark.color in PATTERNS:
                    around = text_width(fitting, size) + 6
                    canvas.rect(x + (width - around) / 2, y + 1, around, height - 2, mark.color, mark.tip, plain=True)
                canvas.text(x + width / 2, y + height / 2, fitting, mark.ink, size, "middle", dark=ink)
        elif isinstance(mark, Dot):
            canvas.dot(across(mark.x), down(mark.y), mark.color, mark.shape, mark.hollow, mark.tip, mark.size)
        elif isinstance(mark, Line):
            canvas.polyline([(across(x), down(y)) for x, y in mark.points], mark.color, mark.width, mark.dash)
    _labels(canvas, left, [(across(mark.x), down(mark.y), mark) for mark in drawing.marks if isinstance(mark, Label)])


_SIDES = {"right": (6, "start", 0.0), "left": (-6, "end", 1.0), "center": (0, "middle", 0.5)}
"""Of a label: its distance from the point, its anchor, and the share of its width left of that."""


def _labels(canvas: Canvas, edge: float, labels: list[tuple[float, float, Label]]) -> None:
    """Write labels next to their points: cut before the next on the line, left out over another or left of the edge."""
    written: list[tuple[float, float, float]] = []
    starts = [(x, y) for x, y, mark in labels if mark.side == "right"]
    for place, y, mark in labels:
        shift, anchor, before = _SIDES[mark.side]
        at = place if before else max(place, edge - shift)
        ends = (x for x, other in starts if x > at and abs(other - y) < _LINE_HEIGHT) if not before else ()
        room = min(ends, default=canvas.width) - at - shift
        text = _cut(mark.text, 2 * room if mark.side == "center" else room)  # half of it is on the other side
        width = text_width(text) * (1.06 if mark.bold else 0.96)
        left = at + shift - before * width
        if left >= edge - _LINE_HEIGHT and not any(
            abs(y - line) < _LINE_HEIGHT and left < b and left + width > a for a, b, line in written
        ):
            written.append((left, left + width, y))
            canvas.text(at + shift, y, text, mark.color, 12, anchor, mark.bold)


def _cut(text: str, room: float) -> str:
    """Leave out the last parts of a text that has no room, "8.85 ms · 69 % · 241 ×"; cut the first if need be."""
    while text_width(text) > room and (separator := next((one for one in (" · ", ": ", " (") if one in text), "")):
        text = text.rpartition(separator)[0]
    return shorten(text, max(room, _LEAST_TICK))

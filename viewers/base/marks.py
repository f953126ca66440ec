"""Marks on axes: what a view draws, independent of how it is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dptrace.core.units import sanitize

HEAD = 22.0
"""Height in pixels of a bold name above its rows."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle: *left* to *right* on the x axis, *top* to *bottom* on the y axis."""

    left: float
    right: float
    top: float
    bottom: float
    color: str
    tip: str = ""
    texts: tuple[str, ...] = ()
    """Texts for the box, best first: the first that fits is written in it."""
    ink: str = "#111827"
    dark: tuple[str, str] | None = None
    """Colors of the box and its text on a dark page, where they differ from the palette's."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A dot; a ring where the value is only a bound."""

    x: float
    y: float
    color: str
    tip: str = ""
    hollow: bool = False
    shape: str = "circle"
    """Or square, triangle, diamond, so that kinds differ by more than color."""
    size: float = 9.0
    """Diameter in pixels."""


@dataclass(frozen=True, slots=True)
class Line:
    """Lines from point to point."""

    points: tuple[tuple[float, float], ...]
    color: str
    dash: str = ""
    width: float = 1.5


@dataclass(frozen=True, slots=True)
class Label:
    """A text next to a point: *side* is left, right or center."""

    x: float
    y: float
    text: str
    color: str = "#374151"
    side: str = "right"
    bold: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its ends in the order of the screen (left to right, top to bottom), and its ticks."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] = ()
    title: str = ""
    log: bool = False
    strong: frozenset[float] = frozenset()
    """Ticks whose labels are bold."""
    grid: bool = True

    def room(self, length: float) -> float:
        """Return the room for each tick's label on an axis of this length."""
        places = sorted(self.place(value) for value, _ in self.ticks)
        apart = min((after - before for before, after in pairwise(places)), default=1.0)
        return apart * length * 0.92

    def place(self, value: float) -> float:
        """Return the position of a value: 0 at the low end of the axis, 1 at the high end."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (math.log10(max(value, 1e-300)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Entry:
    """A legend entry: what a color or a shape means."""

    color: str
    name: str
    shape: str = ""
    """Of a dot, or ``ring``, ``line`` or ``dashes``; a box by default."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture of marks, or a message that says why there is none."""

    title: str
    subtitle: str
    x: Axis
    y: Axis
    height: float
    """Height within the axes, in pixels."""
    marks: tuple[Box | Dot | Line | Label, ...]
    legend: tuple[Entry, ...] = ()
    message: str = ""
    right: float = 30
    """Space right of the axes for labels, in pixels."""


_EMPTY_AXIS = Axis(0, 1, grid=False)


def message(title: str, text: str) -> Drawing:
    """Return a drawing that only says why there is no picture."""
    return Drawing(sanitize(title), "", _EMPTY_AXIS, _EMPTY_AXIS, 60, (), message=sanitize(text))


def split_by_height(drawing: Drawing, tallest: float) -> list[Drawing]:
    """Cut a drawing of rows, whose y axis is in pixels, between rows into parts that each fit on a page."""
    if drawing.height <= tallest or (drawing.y.low, drawing.y.high) != (0, drawing.height):
        return [drawing]
    heads = {at - HEAD / 2 for at in drawing.y.strong}
    ends = sorted({*_gaps(drawing, heads), drawing.height})
    parts: list[Drawing] = []
    begin = 0.0
    while begin < drawing.height:
        after = [end for end in ends if end > begin]
        fitting = [end for end in after if end <= begin + tallest]
        whole = [end for end in fitting if end in heads and end > begin + tallest / 2]
        end = max(whole or fitting, default=after[0]) if drawing.height > begin + tallest else drawing.height
        parts.append(_between(drawing, begin, end, legend=not parts))
        begin = end
    return parts


def _gaps(drawing: Drawing, heads: Collection[float]) -> Iterator[float]:
    """Yield where one row ends and the next begins; a bold name belongs to the row below it."""
    boxes = sorted((mark.top, mark.bottom) for mark in drawing.marks if isinstance(mark, Box))
    if not boxes:
        yield from ((one + other) / 2 for (one, _), (other, _) in pairwise(drawing.y.ticks))
    low = boxes[0][1] if boxes else 0.0
    for top, bottom in boxes:
        if top > low:
            yield next((head for head in heads if low <= head <= top), top - 1)
        low = max(low, bottom)


def _between(drawing: Drawing, begin: float, end: float, legend: bool) -> Drawing:
    y = drawing.y
    marks = tuple(mark for mark in drawing.marks if begin <= _middle(mark) < end)
    ticks = tuple((at, text) for at, text in y.ticks if begin <= at < end)
    axis = replace(y, low=begin, high=end, ticks=ticks)
    return replace(drawing, y=axis, height=end - begin, marks=marks, legend=drawing.legend if legend else ())


def _middle(mark: Box | Dot | Line | Label) -> float:
    if isinstance(mark, Box):
        return (mark.top + mark.bottom) / 2
    return mark.points[0][1] if isinstance(mark, Line) else mark.y


def linear_axis(low: float, high: float, unit: str, title: str = "", wanted: int = 8) -> Axis:
    """Return an axis with ticks at round values, each with its unit."""
    high = high if high > low else low + 1
    raw = (high - low) / wanted
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = tuple((n * step, f"{n * step:.10g}{unit}") for n in range(first, last + 1))
    return Axis(low, high, ticks, title)


def time_axis(high_ns: float, title: str = "", wanted: int = 8) -> Axis:
    """Return an axis of ns from zero, with ticks in the unit that fits."""
    size, unit = next(((s, u) for s, u in ((1e9, " s"), (1e6, " ms"), (1e3, " µs")) if high_ns >= s), (1, " ns"))
    axis = linear_axis(0, high_ns / size, unit, wanted=wanted)
    return Axis(0, axis.high * size, tuple((value * size, label) for value, label in axis.ticks), title)


def log_axis(values: Sequence[float], label: Callable[[float], str], title: str = "", upwards: bool = False) -> Axis:
    """Return an axis from below the values to above them, with ticks at powers of ten, and between them if few.

    Args:
        label: a function from a value to its text.
        upwards: put larger values at the top, for a y axis.
    """
    low, high = math.floor(math.log10(min(values)) - 1e-9), math.ceil(math.log10(max(values)) + 1e-9)
    few = max(values) <= 10 * min(values)
    factors = (1, 1.5, 2, 3, 5, 7) if few else (1, 2, 5) if high - low <= 3 else (1,)
    places = [factor * 10.0**power for power in range(low - 1, high + 1) for factor in factors]
    # From and to a round value, so that no part of the picture is empty; a little apart from the first and last value.
    ends = places if few else [factor * 10.0**power for power in range(low - 1, high + 1) for factor in (1, 2, 5)]
    first = max(place for place in ends if place <= min(values) / 1.04)
    last = min(place for place in [*ends, 10.0 ** (high + 1)] if place >= max(values) * 1.04)
    ticks = tuple((place, label(place)) for place in places if first <= place <= last)
    return Axis(*((last, first) if upwards else (first, last)), ticks, title, log=True)

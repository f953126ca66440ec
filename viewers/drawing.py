"""What a view draws, before it is decided how: marks on axes, drawn as SVG or as a Bokeh figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dptrace.legible import legible

__all__ = ["Axis", "Box", "Dot", "Drawing", "Entry", "Label", "Line", "linear_axis", "log_axis", "message", "time_axis"]


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
    """The best first: the first one that fits is written in it."""
    ink: str = "#111827"


@dataclass(frozen=True, slots=True)
class Dot:
    """A dot, or a ring where the value is but a bound."""

    x: float
    y: float
    color: str
    tip: str = ""
    hollow: bool = False
    shape: str = "circle"
    """Or square, triangle, diamond: kinds are not told by their colour alone."""


@dataclass(frozen=True, slots=True)
class Line:
    """Lines from point to point."""

    points: tuple[tuple[float, float], ...]
    color: str
    dash: str = ""
    width: float = 1.5


@dataclass(frozen=True, slots=True)
class Label:
    """A text beside a point: *side* is left, right or center of it."""

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
        """Give how much of an axis of this length each tick's label has for itself."""
        places = sorted(self.place(value) for value, _ in self.ticks)
        apart = min((after - before for before, after in zip(places, places[1:], strict=False)), default=1.0)
        return apart * length * 0.92

    def place(self, value: float) -> float:
        """Give where a value lies: 0 at the axis' low end, 1 at its high one."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (math.log10(max(value, 1e-300)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a colour, or a dot of a shape, stands for."""

    color: str
    name: str
    shape: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture of marks; of none where *message* says why."""

    title: str
    subtitle: str
    x: Axis
    y: Axis
    height: float
    """Of the space within the axes, in pixels."""
    marks: tuple[Box | Dot | Line | Label, ...]
    legend: tuple[Entry, ...] = ()
    message: str = ""
    right: float = 30
    """Space right of the axes for labels, in pixels."""


_NOWHERE = Axis(0, 1, grid=False)


def message(title: str, text: str) -> Drawing:
    """Say in a picture's place why there is none."""
    return Drawing(legible(title), "", _NOWHERE, _NOWHERE, 60, (), message=legible(text))


def linear_axis(low: float, high: float, unit: str, title: str = "", wanted: int = 8) -> Axis:
    """Give an axis with ticks at round values, its unit at each."""
    high = high if high > low else low + 1
    raw = (high - low) / wanted
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = tuple((n * step, f"{n * step:.10g}{unit}") for n in range(first, last + 1))
    return Axis(low, high, ticks, title)


def time_axis(high_ns: float, title: str = "") -> Axis:
    """Give an axis of ns from a true zero, its ticks in the unit that fits."""
    size, unit = next(((s, u) for s, u in ((1e9, " s"), (1e6, " ms"), (1e3, " µs")) if high_ns >= s), (1, " ns"))
    axis = linear_axis(0, high_ns / size, unit)
    return Axis(0, axis.high * size, tuple((value * size, label) for value, label in axis.ticks), title)


def log_axis(values: Sequence[float], label: Callable[[float], str], title: str = "", upwards: bool = False) -> Axis:
    """Give an axis from the power of ten below the values to the one above, ticks at 1 and, if few, at 2 and 5.

    Args:
        label: a function from a value to its text.
        upwards: whether the larger values are up, for a y axis.
    """
    low, high = math.floor(math.log10(min(values)) - 1e-9), math.ceil(math.log10(max(values)) + 1e-9)
    high = max(high, low + 1)
    factors = (1, 2, 5) if high - low <= 3 else (1,)
    places = [factor * 10.0**power for power in range(low, high + 1) for factor in factors]
    ticks = tuple((place, label(place)) for place in places if place <= 10.0**high)
    ends = (10.0**high, 10.0**low) if upwards else (10.0**low, 10.0**high)
    return Axis(*ends, ticks, title, log=True)

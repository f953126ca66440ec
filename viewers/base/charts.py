"""Charts of bars: rows from the top, stacked parts from zero, shares as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.transfers import ExposedWait
from dptrace.analysis.memory.usage import DeviceMemory, MemoryKind, total_bytes
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.analysis.per_gpu.split import OVERLAPPED_LABEL, Part, waiting_label
from dptrace.core.intervals import Int64
from dptrace.core.units import duration, milliseconds
from dptrace.run.memory import DeviceReport
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import HEAD, Axis, Box, Drawing, Entry, Label, time_axis
from dptrace.viewers.base.table import rank_label

NO_STEP = "This run has no steps."
NO_COMMUNICATION = "This run has no communication."

TALL, FLAT = 20.0, 9.0
"""Heights of a bar in pixels: with a text in it, and without one."""
DENSE = 48
"""Number of bars from which they are drawn flat."""
_GAP = 6.0
"""Between two rows, in pixels."""
_IN_MS_NS = 10_000
"""Time in ns from which a number of ms has a digit that counts."""
_UNDER = 4.0
"""Height in pixels of the line for overlapped communication."""


def share(part: float, whole: float) -> str:
    """Write a share in percent; a share above zero is never written as 0 %.

    >>> share(1, 3), share(1, 10_000), share(0, 0)
    ('33.3 %', '< 0.1 %', '0.0 %')
    """
    percent = 100 * part / whole if whole else 0.0
    return "< 0.1 %" if 0 < percent < 0.05 else f"{percent:.1f} %"


def rank_labels(run: Run, devices: Sequence[DeviceFigures]) -> list[str]:
    """Return the names of the GPUs, the same in all views: ``rank 0``, or ``rank 0 GPU 1`` where a rank has several."""
    return [f"rank {rank_label(run, device.timeline)}" for device in devices]


def with_steps(run: Run) -> list[DeviceFigures]:
    """Return the GPUs that have steps."""
    return [device for device in run.devices if len(device.timeline.windows)]


def step_waits(run: Run) -> list[ExposedWait]:
    """Return the waits of the GPUs that have steps, in the order of :func:`with_steps`."""
    both = zip(run.devices, run.cross_rank.exposed_waits, strict=True)
    return [wait for device, wait in both if len(device.timeline.windows)]


class RowLayout:
    """Lay rows out from the top, in pixels, and collect their labels."""

    def __init__(self, height: float) -> None:
        self.height, self.y = height, 4.0
        self.ticks: list[tuple[float, str]] = []
        self.strong: list[float] = []

    def head(self, text: str) -> None:
        """Write a bold name above the rows that follow."""
        self.ticks.append((self.y + HEAD / 2, text))
        self.strong.append(self.y + HEAD / 2)
        self.y += HEAD

    def row(self, text: str) -> float:
        """Add a row and return its top."""
        top = self.y
        if text:
            self.ticks.append((top + self.height / 2, text))
        self.y += self.height + _GAP
        return top

    def axis(self) -> Axis:
        """Return the y axis of all rows."""
        return Axis(0, self.y, tuple(self.ticks), strong=frozenset(self.strong), grid=False)


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a bar chart: parts stacked from zero, with their sum at the end."""

    tick: str
    """Written left of the bar; empty where there is no room."""
    name: str
    """In tooltips."""
    parts: Sequence[tuple[str, float, str]]
    """Name, ns and color of each part, a color of the palette."""
    after: str = ""
    """Written after the sum."""
    under: float = 0
    """Overlapped communication in ns, drawn as a line below the bar."""
    head: str = ""
    """A bold name above this bar and those that follow."""


def bar_chart(title: str, subtitle: str, bars: Sequence[Bar], height: float, right: float = 76) -> Drawing:
    """Draw bars below each other.

    Args:
        height: of a bar, in pixels.
        right: space right of the longest bar for its text, in pixels.
    """
    rows, longest = RowLayout(height), 0.0
    marks: list[Box | Label] = []
    for bar in bars:
        if bar.head:
            rows.head(bar.head)
        top, whole = rows.row(bar.tick), sum(ns for _, ns, _ in bar.parts)
        marks += _parts(bar, top, height, whole)
        marks.append(Label(whole, top + height / 2, f"{_time(whole)}{bar.after}"))
        longest = max(longest, whole)
    legend = [Entry(color, name) for color, name in _legend(bars).items()]
    if any(bar.under for bar in bars):
        legend.append(Entry(theme.OVERLAPPED, f"{OVERLAPPED_LABEL}: under compute, drawn below the bar"))
    return Drawing(title, subtitle, time_axis(longest), rows.axis(), rows.y, tuple(marks), tuple(legend), right=right)


def _time(ns: float) -> str:
    """Write a time in ms, as the tables do; one that would be 0.00 ms in its own unit."""
    return duration(ns) if 0 < ns < _IN_MS_NS else f"{milliseconds(ns)} ms"


def _legend(bars: Sequence[Bar]) -> dict[str, str]:
    """Return the names of the parts that are drawn, by color; waiting without the rank of any one bar."""
    names: dict[str, list[str]] = {color: [] for bar in bars for _, _, color in bar.parts}
    for name, ns, color in (part for bar in bars for part in bar.parts):
        general = waiting_label(None) if color == theme.WAITING else name
        if ns > 0 and general not in names[color]:
            names[color].append(general)
    return {
        color: ", ".join([found[0], *(name[0].lower() + name[1:] for name in found[1:])])
        for color, found in names.items()
        if found
    }


def _parts(bar: Bar, top: float, height: float, whole: float) -> Iterator[Box]:
    """Draw the parts of a bar end to end, and overlapped communication below them."""
    at = 0.0
    for name, ns, color in bar.parts:
        if ns > 0:
            time, part = _time(ns), share(ns, whole)
            # The time at the end of a bar is that of its only part.
            texts = (f"{time} · {part}", part) if ns < whole else ()
            tip = f"{bar.name}: {name} {time}{f', {part}' if texts else ''}"
            yield Box(at, at + ns, top, top + height, color, tip, texts, theme.ink_on(color))
            at += ns
    if bar.under > 0:
        tip = f"{bar.name}: {OVERLAPPED_LABEL} {_time(bar.under)}"
        yield Box(0, bar.under, top + height, top + height + _UNDER, theme.OVERLAPPED, tip)


# A device's memory reduced to columns of a picture, so that each column shows the highest level within it.


KIND_COLORS = {
    MemoryKind.PREEXISTING: theme.PART_COLORS[Part.OTHER],
    MemoryKind.OPTIMIZER_STATE: theme.PART_COLORS[Part.OPTIMIZER],
    MemoryKind.GRADIENT: theme.PART_COLORS[Part.BACKWARD],
    MemoryKind.ACTIVATION: theme.PART_COLORS[Part.FORWARD],
    MemoryKind.COMMUNICATION: theme.OVERLAPPED,
    MemoryKind.TEMPORARY: theme.CAUSE_COLORS["bubble_ns"],
    MemoryKind.OTHER: theme.WAITING,
}
STACK = tuple(KIND_COLORS)
"""The kinds from the bottom up: what lives longest below."""


class SampledLevels(msgspec.Struct, frozen=True):
    """Columns of equal width from left to right."""

    edges: NDArray[np.float64]
    """Where each begins and the last ends, in ns; one more than there are columns."""
    level: Int64
    """The highest level in each column."""


def span_of(report: DeviceReport) -> tuple[int, int]:
    """Return when the selected steps begin and end, in ns."""
    times, levels, bounds = report.device.events.time_ns, report.levels, report.use.step_ns
    first, last = int(times[max(int(levels[0]) - 1, 0)]), int(times[max(int(levels[-1]) - 1, 0)])
    if len(bounds) == len(report.use.steps) + 1:
        chosen = np.flatnonzero(report.steps) if report.steps is not None else np.arange(len(report.use.steps))
        first, last = min(first, int(bounds[chosen[0]])), max(last, int(bounds[chosen[-1] + 1]))
    return first, max(last, first + 1)


def sample_levels(device: DeviceMemory, start_ns: int, end_ns: int, columns: int) -> SampledLevels:
    """Return the highest level in each column of a stretch of time."""
    times, total = device.events.time_ns, total_bytes(device)
    edges = start_ns + (end_ns - start_ns) * np.arange(columns + 1) / columns
    whole = np.floor(edges).astype(np.int64)
    # A column has the level that it begins with, and those after the events within it.
    first = np.searchsorted(times, whole[:-1], side="right").tolist()
    last = np.searchsorted(times, whole[1:], side="left").tolist()
    level = [a + int(total[a : max(a, b) + 1].argmax()) for a, b in zip(first, last, strict=True)]
    return SampledLevels(edges - start_ns, np.array(level, np.int64))

"""Helpers for views of bars: rows from the top, stacked parts from zero, shares as text."""

from __future__ import annotations

from collections.abc import Sequence

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.units import milliseconds
from dptrace.run.run import Run
from dptrace.viewers.base.format import rank_label
from dptrace.viewers.base.marks import HEAD, Axis, Box

__all__ = ["NO_COMMUNICATION", "NO_STEP", "RowLayout", "rank_labels", "share", "stack", "with_steps"]

NO_STEP = "This run has no steps."
NO_COMMUNICATION = "This run has no communication."

TALL, FLAT = 20.0, 9.0
"""Heights of a bar in pixels: with a text in it, and without one."""
DENSE = 48
"""Number of bars from which they are drawn flat."""
_GAP = 6.0


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


def stack(parts: Sequence[tuple[str, float, str, str]], top: float, height: float, of: str, whole: float) -> list[Box]:
    """Stack parts (name, ns, color, text color) from zero."""
    boxes, at = [], 0.0
    for name, ns, color, ink in parts:
        if ns <= 0:
            continue
        tip = f"{name} {milliseconds(ns)} ms, {share(ns, whole)}"
        texts = (f"{milliseconds(ns)} ms · {share(ns, whole)}", share(ns, whole))
        boxes.append(Box(at, at + ns, top, top + height, color, f"{of}: {tip}", texts, ink))
        at += ns
    return boxes

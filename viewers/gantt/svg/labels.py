"""The labels of a static Gantt chart, each on the block that it describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from dptrace.analysis.per_gpu.split import EXPOSED_LABELS, OVERLAPPED_LABEL, PART_LABELS, Part, waiting_label
from dptrace.core.intervals import Int64
from dptrace.core.units import byte_size, duration, milliseconds
from dptrace.viewers.base import theme
from dptrace.viewers.base.svg_canvas import Canvas, shorten, text_width
from dptrace.viewers.gantt.chart import OVERLAPPED, WAITING, Lane, Role
from dptrace.viewers.gantt.svg.layout import Row, SvgLayout

__all__ = ["COLORS", "NAMES", "draw_labels"]

COLORS = {int(part): color for part, color in theme.PART_COLORS.items()}
COLORS |= {OVERLAPPED: theme.OVERLAPPED, WAITING: theme.WAITING}
NAMES = {int(part): name for part, name in PART_LABELS.items()}
NAMES |= {OVERLAPPED: OVERLAPPED_LABEL, WAITING: EXPOSED_LABELS["exposed_wait_ns"]}

_TRIES = 12
"""Places at which a label is tried."""
_MIXED = 0.03
"""Share of another colour allowed under a label."""
_NARROWEST = 30
"""Width in pixels of a labelled block at least."""
_LABELS = {Role.PHASES: Role.PHASE_LABELS, Role.EXPOSURE: Role.COLLECTIVES}

_Block: TypeAlias = tuple[int, int, tuple[str, ...], int]
"""Start and end of a block, the texts for it, longest first, and the category that it must have, or -1."""


def draw_labels(canvas: Canvas, layout: SvgLayout, row: Row) -> None:
    """Label the phases and collectives that are wide enough."""
    lane = layout.lane(row.track, _LABELS[row.role]) if row.role in _LABELS else None
    if lane is None or row.height < 12:
        return
    reach = 0.0
    for index in np.flatnonzero(lane.duration_ns >= _NARROWEST * layout.gantt_chart.end_ns / layout.width).tolist():
        category = int(lane.category[index])
        blocks = _phase(layout, row, lane, index) if row.role is Role.PHASES else _collective(layout, row, lane, index)
        for start, end, texts, wanted in blocks:
            left, right = max(layout.x(start), reach), layout.x(end)
            fitting = next((text for text in texts if text_width(text, 11) + 10 <= right - left), "")
            if not fitting:
                continue
            width = text_width(fitting, 11) + 8
            if row.role is Role.PHASES:
                place = _filled_place(layout, row, category, left, right, width)
            else:
                place = _on_one_color(layout, row, left, right, width)
            if place is None:
                continue
            x, color = place
            if wanted >= 0 and color != COLORS[wanted]:
                continue
            # A box in the block's colour covers short gaps and the lines of a pattern under the text.
            if row.role is Role.PHASES or color in theme.PATTERNS:
                canvas.rect(x + 1, row.y + 1, width, row.height - 2, color, round_=3, plain=True)
            canvas.text(x + 5, row.y + row.height / 2, fitting, theme.ink_on(color), 11, on=color)
            reach = x + width + 2


def _phase(layout: SvgLayout, row: Row, lane: Lane, index: int) -> Iterator[_Block]:
    """Yield the block of a phase: ``Backward 18.8 ms``, ``Waiting for rank 2 · 963 ms``, ``F3``."""
    category, start, length = int(lane.category[index]), int(lane.start_ns[index]), int(lane.duration_ns[index])
    named = int(lane.name[index])
    name = layout.gantt_chart.names[named - 1] if named else NAMES[category]
    phases = layout.lane(row.track, Role.PHASES)
    assert phases is not None
    ns = _covered(phases, category, start, start + length)
    # Where idle time interrupts a phase, a time next to its name would be read as that of the block under the label.
    between = " · " if named else " "
    timed = (f"{name}{between}{milliseconds(ns)} ms",) if ns >= (1 - _MIXED) * length else ()
    yield start, start + length, (*timed, name, name.split()[0]), category


def _collective(layout: SvgLayout, row: Row, lane: Lane, index: int) -> Iterator[_Block]:
    """Yield the wait of a collective, ``waiting for rank 2 · 1.00 s``, and the rest, ``AR bucket 0 26.2 MB``."""
    start, length, wait = int(lane.start_ns[index]), int(lane.duration_ns[index]), int(lane.wait_ns[index]) - 1
    texts = _collective_texts(layout, lane, index)
    if wait > 0:
        exposure = layout.lane(row.track, row.role)
        assert exposure is not None
        whom = waiting_label(int(lane.waits_for[index]) - 1)
        whom = whom[0].lower() + whom[1:]
        whole = _covered(exposure, WAITING, start, start + wait) >= (1 - _MIXED) * wait
        time = duration(wait)
        waits = (f"{whom} · {time}", f"waiting · {time}", time) if whole else (whom, "waiting")
        yield start, start + wait, (*(f"{texts[-1]} · {text}" for text in waits[:1]), *waits), WAITING
    yield start + max(wait, 0), start + length, texts, -1


def _collective_texts(layout: SvgLayout, lane: Lane, index: int) -> tuple[str, ...]:
    name, known, title = layout.gantt_chart.collectives[int(lane.name[index])]
    kind = title or (known.kind if known.kind not in ("", "other") else shorten(name, 150, 11))
    return (f"{kind} {byte_size(known.bytes)}", kind) if known.bytes else (kind,)


def _filled_place(
    layout: SvgLayout, row: Row, category: int, left: float, right: float, width: float
) -> tuple[float, str] | None:
    """Find the first place of a phase where its colour fills the width of a text; return x and colour."""
    lane = layout.lane(row.track, Role.PHASES)
    assert lane is not None
    to_ns = layout.gantt_chart.end_ns / layout.width
    for x in np.linspace(left, right - width, _TRIES).tolist():
        low, high = round((x - layout.left) * to_ns), round((x + width - layout.left) * to_ns)
        if _covered(lane, category, low, high) >= (1 - _MIXED) * (high - low):
            return float(x), COLORS[category]
    return None


def _on_one_color(layout: SvgLayout, row: Row, left: float, right: float, width: float) -> tuple[float, str] | None:
    """Find an end of a collective where one colour is under the whole text; return x and colour."""
    lane = layout.lane(row.track, row.role)
    assert lane is not None
    to_ns = layout.gantt_chart.end_ns / layout.width
    for x in (left, right - width):
        low, high = round((x - layout.left) * to_ns), round((x + width - layout.left) * to_ns)
        shares = {
            category: _covered(lane, category, low, high) / max(high - low, 1)
            for category in (int(Part.EXPOSED_COMM), WAITING, OVERLAPPED)
        }
        category = max(shares, key=lambda category: shares[category])
        if shares[category] > 1 - _MIXED and sum(shares.values()) - shares[category] < _MIXED:
            return x, COLORS[category]
    return None


def _covered(lane: Lane, category: int, start: int, end: int) -> int:
    """Return the ns of a window that a category's intervals take, summed without regard to overlaps."""
    mask = lane.category == category
    starts, ends = lane.start_ns[mask], (lane.start_ns + lane.duration_ns)[mask]
    inside: Int64 = np.maximum(np.minimum(ends, end) - np.maximum(starts, start), 0)
    return int(inside.sum())

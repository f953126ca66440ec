"""From a chart to what the page is told: rows in pixels, categories with colours, columns packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.analysis.per_gpu.labels import CAUSE_LABELS, OVERLAPPED_LABEL, PART_LABELS
from dptrace.analysis.per_gpu.split import Part
from dptrace.timeline.model import Collective
from dptrace.viewers.base import theme
from dptrace.viewers.gantt.chart import OVERLAPPED, Chart, Lane, Role, cause_category
from dptrace.viewers.gantt.column_packing import ColumnStore, pack, pack_to_store

__all__ = ["MANY_TRACKS", "categories", "layout", "scene"]

_HEIGHTS = {
    2: {Role.PHASES: 40, Role.COMPUTE: 56, Role.EXPOSURE: 36, Role.MEMORY: 18},
    5: {Role.PHASES: 24, Role.COMPUTE: 30, Role.EXPOSURE: 20, Role.MEMORY: 14},
    8: {Role.PHASES: 18, Role.COMPUTE: 16, Role.EXPOSURE: 14, Role.MEMORY: 12},
}
"""Of rows in pixels, up to so many GPUs: eight fill a screen, one does not look lost on it."""
_TIGHT = {Role.PHASES: 16, Role.COMPUTE: 14, Role.EXPOSURE: 14, Role.MEMORY: 12}
_STRIP, _GAP, _BETWEEN_TRACKS = 20, 2, 9
_ARROW, _ROW_LABEL, _LETTER = 18, 112, 7.5
"""Widths in pixels: of the mark that collapses a GPU, of the widest row label with its margins, of a letter of a GPU's
name in bold."""

MANY_TRACKS = 16
"""GPUs from which on each begins as one row, its phases, below a map of all their steps."""

_ROW_LABELS = {
    Role.PHASES: "phases",
    Role.COMPUTE: "compute",
    Role.EXPOSURE: "communication",
    Role.MEMORY: "memory",
}

_ORDER = (*theme.PART_ORDER[:5], OVERLAPPED, *theme.PART_ORDER[5:], *map(cause_category, CAUSES))
"""Of legend and stacked bars: overlapped beside exposed, idle before its causes."""


def categories() -> list[dict[str, Any]]:
    """Give names and colours by category: the parts of a step, overlapped communication, the causes of idling."""
    short = {Part.OTHER: "Other", Part.EXPOSED_COMM: "Exposed", Part.EXPOSED_MEMORY: "Memory"}
    parts = [
        {"label": PART_LABELS[part], "short": short.get(part, PART_LABELS[part]), "color": color}
        for part, color in sorted(theme.PART_COLORS.items())
    ]
    overlapped = {"label": OVERLAPPED_LABEL, "short": "Overlapped", "color": theme.OVERLAPPED}
    causes = [
        {"label": label, "short": label.removeprefix("Idle: ").capitalize(), "color": theme.CAUSE_COLORS[cause]}
        for cause, label in CAUSE_LABELS.items()
    ]
    return [_with_inks(entry) for entry in (*parts, overlapped, *causes)]


def _with_inks(entry: dict[str, Any]) -> dict[str, Any]:
    color = str(entry["color"])
    ink = theme.ink_on(color)
    dark, dark_ink = theme.DARK.get(color, (color, ink))
    return {**entry, "ink": ink, "dark": {"color": dark, "ink": dark_ink}}


def layout(chart: Chart) -> dict[str, Any]:
    """Place strips and rows: top and height in pixels, y growing downwards; and the left margin for their names.

    This is where everything stands that is neither scrolled nor collapsed; the page places it anew (static/stage.js).
    """
    heights = next((rows for most, rows in _HEIGHTS.items() if len(chart.tracks) <= most), _TIGHT)
    shown = [role for role in heights if role in (Role.PHASES, Role.COMPUTE) or chart.has(role)]
    rows, strips, blocks, y = [], [], [], 2
    for number, strip in enumerate(chart.strips):
        label = f"steps, rank {chart.tracks[strip.tracks[0]].rank}" if len(strip.tracks) > 1 else "steps"
        strips.append({"y": y, "h": _STRIP, "strip": number, "label": label})
        y += _STRIP + 8
        for track in strip.tracks:
            top = y
            for role in shown:
                row = {"y": y, "h": heights[role], "track": track, "role": role.value}
                rows.append({**row, "label": _ROW_LABELS[role]})
                y += heights[role] + _GAP
            blocks.append({"y": top, "h": y - _GAP - top, "track": track})
            y += _BETWEEN_TRACKS
    left = round(_ARROW + _ROW_LABEL + _LETTER * max((len(track.label) for track in chart.tracks), default=0))
    height = max(y - _BETWEEN_TRACKS + 4, 40)
    collapsed = len(chart.tracks) > MANY_TRACKS
    return {"rows": rows, "strips": strips, "blocks": blocks, "height": height, "left": left, "collapsed": collapsed}


def scene(chart: Chart, details: dict[str, Any] | None = None, store: ColumnStore | None = None) -> dict[str, Any]:
    """Give all that the page's scripts need, as one object that JSON can hold.

    Args:
        details: what ``interval_details.details`` tells of single intervals; without, the page tells less.
        store: where to put the columns, which the page then fetches; without, they are in the scene itself.
    """
    used = sorted({int(category) for lane in chart.lanes for category in _distinct(lane)} | {Part.IDLE})
    return {
        "end": chart.end_ns,
        "cpu": any(track.device < 0 for track in chart.tracks),
        "tracks": [
            {
                "label": track.label,
                "device": track.device_name,
                "steps": track.steps,
                "bounds": track.bounds_ns.tolist(),
            }
            for track in chart.tracks
        ],
        "strips": [{"tracks": strip.tracks, "names": strip.steps} for strip in chart.strips],
        "layout": layout(chart),
        "categories": categories(),
        "order": [int(category) for category in _ORDER],
        "used": used,
        "special": {
            "exposed": int(Part.EXPOSED_COMM),
            "overlapped": OVERLAPPED,
            "memory": int(Part.EXPOSED_MEMORY),
            "idle": int(Part.IDLE),
            "causes": [cause_category(cause) for cause in CAUSES],
        },
        "names": chart.names,
        "collectives": [_collective(name, known) for name, known in chart.collectives],
        "details": details,
        "chrome": theme.CHROME,
        "lanes": [
            {"track": lane.track, "role": lane.role.value, "count": len(lane), "first": _first(lane)}
            for lane in chart.lanes
        ],
        "columns": _columns(chart, store),
    }


def _collective(name: str, known: Collective) -> dict[str, Any]:
    entry = {"name": name, "kind": known.kind, "bytes": known.bytes, "dtype": known.dtype, "group": known.group}
    entry["size"] = known.group_size
    return entry | ({"label": known.label} if known.label else {})


def _first(lane: Lane) -> int:
    return int(lane.start_ns[0]) if len(lane) else 0


def _distinct(lane: Lane) -> NDArray[np.intp]:
    return np.flatnonzero(np.bincount(lane.category, minlength=1))


def _columns(chart: Chart, store: ColumnStore | None) -> dict[str, Any]:
    """Pack the columns of all lanes, one after the other; starts as steps from the one before."""
    lanes = chart.lanes
    ids, streams = _streams(lanes)
    columns = {
        "delta": [np.diff(lane.start_ns, prepend=_first(lane)) for lane in lanes],
        "duration": [lane.duration_ns for lane in lanes],
        "category": [lane.category for lane in lanes],
        "name": [lane.name for lane in lanes],
        "exposed": [lane.exposed_ns for lane in lanes],
        "stream": streams,
    }
    if store is not None:
        return {key: pack_to_store(key, parts, store) for key, parts in columns.items()} | {"streams": ids}
    none = [np.zeros(0, np.int64)]
    packed = {key: pack(np.concatenate([*none, *parts])) for key, parts in columns.items()}
    return {**packed, "streams": ids}


def _streams(lanes: Sequence[Lane]) -> tuple[list[int], list[NDArray[np.intp]]]:
    """Give all ids of streams, and for each lane the index of every interval's; an id can be any integer."""
    own = [np.unique(lane.stream[:1]) if _one_stream(lane) else np.unique(lane.stream) for lane in lanes]
    ids = np.unique(np.concatenate([np.zeros(0, np.int64), *own]))
    return ids.tolist(), [np.searchsorted(ids, lane.stream) for lane in lanes]


def _one_stream(lane: Lane) -> bool:
    return len(lane) == 0 or bool(lane.stream.min() == lane.stream.max())

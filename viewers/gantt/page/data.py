"""Convert a chart to the page's data: rows in pixels, categories with colours, packed columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.kernels.names import short_names, shortened
from dptrace.analysis.matching.calls import place
from dptrace.analysis.per_gpu.split import CAUSE_LABELS, CAUSES, EXPOSED_LABELS, OVERLAPPED_LABEL, PART_LABELS, Part
from dptrace.core.intervals import unique
from dptrace.timeline.model import Collective
from dptrace.viewers.base import theme
from dptrace.viewers.gantt.chart import OVERLAPPED, WAITING, Chart, Lane, Role, cause_category
from dptrace.viewers.gantt.column_packing import pack
from dptrace.viewers.gantt.time_packing import pack_times

__all__ = ["MANY_TRACKS", "categories", "collective_entries", "layout", "scene"]

_HEIGHTS = {
    2: {Role.PHASES: 40, Role.COMPUTE: 56, Role.EXPOSURE: 36, Role.MEMORY: 18},
    5: {Role.PHASES: 24, Role.COMPUTE: 30, Role.EXPOSURE: 20, Role.MEMORY: 14},
    8: {Role.PHASES: 18, Role.COMPUTE: 16, Role.EXPOSURE: 14, Role.MEMORY: 12},
}
"""Row heights in pixels by maximum number of GPUs, so that one GPU and eight GPUs fill a screen."""
_TIGHT = {Role.PHASES: 16, Role.COMPUTE: 14, Role.EXPOSURE: 14, Role.MEMORY: 12}
_STRIP, _GAP, _BETWEEN_TRACKS = 20, 2, 9
_ARROW, _ROW_LABEL, _LETTER = 18, 112, 7.5
"""Widths in pixels: arrow that collapses a GPU, widest row label with margins, bold letter of a GPU's name."""

MANY_TRACKS = 16
"""Above this number of GPUs, each is collapsed to its phases at first, below a heatmap of all steps."""

_ROW_LABELS = {
    Role.PHASES: "phases",
    Role.COMPUTE: "compute",
    Role.EXPOSURE: "communication",
    Role.MEMORY: "memory",
}

_ORDER = (*theme.PART_ORDER[:5], WAITING, OVERLAPPED, *theme.PART_ORDER[5:], *map(cause_category, CAUSES))
"""Order of the legend and of stacked bars: overlapped next to exposed, idle before its causes."""


def categories() -> list[dict[str, Any]]:
    """Return names and colours by category: parts of a step, overlapped communication, idle causes, waiting."""
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
    waiting = {"label": EXPOSED_LABELS["exposed_wait_ns"], "short": "Waiting", "color": theme.WAITING}
    return [_with_inks(entry) for entry in (*parts, overlapped, *causes, waiting)]


def _with_inks(entry: dict[str, Any]) -> dict[str, Any]:
    color = str(entry["color"])
    ink = theme.ink_on(color)
    dark, dark_ink = theme.DARK[color]
    pattern = {"pattern": theme.PATTERNS[color]} if color in theme.PATTERNS else {}
    return {**entry, **pattern, "ink": ink, "dark": {"color": dark, "ink": dark_ink}}


def layout(chart: Chart) -> dict[str, Any]:
    """Place strips and rows, with top and height in pixels, and compute the left margin for their names.

    This is the layout without scrolling and collapsing; static/stage/stage.js repeats it in the page.
    """
    heights = next((rows for limit, rows in _HEIGHTS.items() if len(chart.tracks) <= limit), _TIGHT)
    shown = [role for role in heights if role in (Role.PHASES, Role.COMPUTE) or chart.has(role)]
    rows, strips, blocks, y = [], [], [], 2
    for numbers in _heads(chart):
        tracks = sorted(track for number in numbers for track in chart.strips[number].tracks)
        lead = f"steps, rank {chart.tracks[tracks[0]].rank}" if len(numbers) == 1 < len(tracks) else "steps"
        strips.append({"y": y, "h": _STRIP, "strips": numbers, "tracks": tracks, "label": lead})
        y += _STRIP + 8
        for track in tracks:
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


def _heads(chart: Chart) -> list[list[int]]:
    """Return the strips that share a row: one row of step names stands above all GPUs of a run."""
    runs = dict.fromkeys(strip.run for strip in chart.strips)
    return [[number for number, strip in enumerate(chart.strips) if strip.run == run] for run in runs]


def scene(chart: Chart, details: dict[str, Any] | None = None, served: bool = False) -> dict[str, Any]:
    """Return the data of the page's scripts, as one JSON-serializable object.

    Args:
        details: the result of ``interval_details.details``; without it the page shows no such details.
        served: whether the page asks a server for intervals and names; without, they are part of the scene.
    """
    times = [("", None, None)] * len(chart.lanes) if served else pack_times(chart.lanes)
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
                "place": place(track.coordinates),
                "coordinates": dict(track.coordinates),
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
            "waiting": WAITING,
            "causes": [cause_category(cause) for cause in CAUSES],
        },
        "names": [] if served else chart.names,
        "shorts": {} if served else shortened(chart.names),
        "collectives": [] if served else collective_entries(chart),
        "details": details,
        "chrome": theme.CHROME,
        "lanes": [
            {"track": lane.track, "role": lane.role.value, "count": len(lane)}
            | ({"categories": _distinct(lane).tolist()} if served else {"first": _first(lane), "times": how})
            for lane, (how, _, _) in zip(chart.lanes, times, strict=True)
        ],
        "columns": {"streams": _streams(chart.lanes)[0]} if served else _columns(chart, times),
    } | ({"served": True} if served else {})


def collective_entries(chart: Chart) -> list[dict[str, Any]]:
    """Return a chart's collectives as the page shows them."""
    shorts = short_names(chart.names)
    return [_collective(name, shorts.get(name, name), known, title) for name, known, title in chart.collectives]


def _collective(name: str, short: str, known: Collective, title: str) -> dict[str, Any]:
    entry = {"name": name, "kind": known.kind, "bytes": known.bytes, "dtype": known.dtype, "group": known.group}
    entry["size"] = known.group_size
    own = "" if short == name or known.kind not in ("", "other") else short
    return entry | {key: text for key, text in (("label", known.label), ("title", title), ("short", own)) if text}


def _first(lane: Lane) -> int:
    return int(lane.start_ns[0]) if len(lane) else 0


def _distinct(lane: Lane) -> NDArray[np.intp]:
    return np.flatnonzero(np.bincount(lane.category, minlength=1))


def _columns(chart: Chart, times: Sequence[tuple[str, Any, Any]]) -> dict[str, Any]:
    """Pack the columns of all lanes, one after the other; those of *times* are from ``pack_times``."""
    lanes = chart.lanes
    ids, streams = _streams(lanes)
    columns = {
        "delta": [starts for _, starts, _ in times],
        "duration": [durations for _, _, durations in times],
        "category": [lane.category for lane in lanes],
        "name": [lane.name for lane in lanes],
        "exposed": [lane.exposed_ns for lane in lanes],
        "wait": [lane.wait_ns for lane in lanes],
        "waitsFor": [lane.waits_for for lane in lanes],
        "stream": streams,
    }
    none = [np.zeros(0, np.int64)]
    packed = {key: pack(np.concatenate([*none, *parts])) for key, parts in columns.items()}
    return {**packed, "streams": ids}


def _streams(lanes: Sequence[Lane]) -> tuple[list[int], list[NDArray[np.intp]]]:
    """Return all stream ids, and for each lane the index of every interval's id; an id can be any integer."""
    lane_ids = [unique(lane.stream[:1]) if _one_stream(lane) else unique(lane.stream) for lane in lanes]
    ids = unique(np.concatenate([np.zeros(0, np.int64), *lane_ids]))
    return ids.tolist(), [np.searchsorted(ids, lane.stream) for lane in lanes]


def _one_stream(lane: Lane) -> bool:
    return len(lane) == 0 or bool(lane.stream.min() == lane.stream.max())

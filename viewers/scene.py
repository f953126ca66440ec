"""From a chart to what the page is told: rows in pixels, categories with colours, columns packed."""

from __future__ import annotations

from typing import Any

import numpy as np

from dptrace.split import Part
from dptrace.viewers import theme
from dptrace.viewers.lanes import OVERLAPPED, Chart, Lane, Role
from dptrace.viewers.pack import pack

__all__ = ["categories", "layout", "scene"]

_HEIGHTS = {
    2: {Role.PHASES: 40, Role.COMPUTE: 56, Role.EXPOSURE: 36, Role.MEMORY: 18},
    5: {Role.PHASES: 24, Role.COMPUTE: 30, Role.EXPOSURE: 20, Role.MEMORY: 14},
    8: {Role.PHASES: 18, Role.COMPUTE: 16, Role.EXPOSURE: 14, Role.MEMORY: 12},
}
"""Of rows in pixels, up to so many GPUs: eight fill a screen, one does not look lost on it."""
_TIGHT = {Role.PHASES: 16, Role.COMPUTE: 14, Role.EXPOSURE: 14, Role.MEMORY: 12}
_STRIP, _GAP, _BETWEEN_TRACKS = 20, 2, 9
_ROW_LABEL, _LETTER = 112, 7.5
"""Widths in pixels: of the widest row label with its margins, and of a letter of a GPU's name in bold."""

_ROW_LABELS = {
    Role.PHASES: "phases",
    Role.COMPUTE: "compute",
    Role.EXPOSURE: "communication",
    Role.MEMORY: "memory",
}

_ORDER = (*theme.PART_ORDER[:5], OVERLAPPED, *theme.PART_ORDER[5:])
"""Of legend and stacked bars: overlapped beside exposed."""


def categories() -> list[dict[str, Any]]:
    """Give names and colours by category: the parts of a step, then overlapped communication."""
    short = {Part.OTHER: "Other", Part.EXPOSED_COMM: "Exposed", Part.EXPOSED_MEMORY: "Memory"}
    parts = [
        {"label": theme.PART_LABELS[part], "short": short.get(part, theme.PART_LABELS[part]), "color": color}
        for part, color in sorted(theme.PART_COLORS.items())
    ]
    overlapped = {"label": theme.OVERLAPPED_LABEL, "short": "Overlapped", "color": theme.OVERLAPPED}
    return [{**entry, "ink": theme.ink_on(str(entry["color"]))} for entry in (*parts, overlapped)]


def layout(chart: Chart) -> dict[str, Any]:
    """Place strips and rows: top and height in pixels, y growing downwards; and the left margin for their names."""
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
    left = round(_ROW_LABEL + _LETTER * max((len(track.label) for track in chart.tracks), default=0))
    height = max(y - _BETWEEN_TRACKS + 4, 40)
    return {"rows": rows, "strips": strips, "blocks": blocks, "height": height, "left": left}


def scene(chart: Chart) -> dict[str, Any]:
    """Give all that the page's scripts need, as one object that JSON can hold."""
    used = sorted({int(category) for lane in chart.lanes for category in np.unique(lane.category)} | {Part.IDLE})
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
        },
        "names": chart.names,
        "collectives": [
            {"name": name, "kind": c.kind, "bytes": c.bytes, "dtype": c.dtype, "group": c.group, "size": c.group_size}
            for name, c in chart.collectives
        ],
        "lanes": [
            {"track": lane.track, "role": lane.role.value, "count": len(lane), "first": _first(lane)}
            for lane in chart.lanes
        ],
        "columns": _columns(chart),
    }


def _first(lane: Lane) -> int:
    return int(lane.start_ns[0]) if len(lane) else 0


def _columns(chart: Chart) -> dict[str, Any]:
    """Pack the columns of all lanes, one after the other; starts as steps from the one before."""
    lanes = chart.lanes
    none = [np.zeros(0, np.int64)]
    streams = np.concatenate([lane.stream for lane in lanes] or none)
    stream_ids, stream = np.unique(streams, return_inverse=True)
    columns = {
        "delta": [np.diff(lane.start_ns, prepend=_first(lane)) for lane in lanes],
        "duration": [lane.duration_ns for lane in lanes],
        "category": [lane.category.astype(np.int64) for lane in lanes],
        "name": [lane.name for lane in lanes],
        "exposed": [lane.exposed_ns for lane in lanes],
    }
    packed = {key: pack(np.concatenate(parts or none)) for key, parts in columns.items()}
    return {**packed, "stream": pack(stream.astype(np.int64)), "streams": stream_ids.tolist()}

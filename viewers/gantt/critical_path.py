"""The data of a critical path on a Gantt page: where its pieces lie, what they are, and the slack of all others."""

from __future__ import annotations

from typing import Any

import numpy as np

from dptrace.analysis.per_gpu.split import Part
from dptrace.core.intervals import Int64
from dptrace.core.units import duration
from dptrace.replay.critical_path import CriticalPath
from dptrace.replay.paths import FREE, LINK_KINDS
from dptrace.run.run import Run
from dptrace.timeline.model import Kind, Timeline
from dptrace.viewers.base.table import PATH_KINDS, step_words
from dptrace.viewers.gantt.chart import WAITING, Axis, Chart, cause_category
from dptrace.viewers.gantt.packing import pack

_ROLES = {Kind.COMPUTE: 1, Kind.COMMUNICATION: 2, Kind.MEMORY: 3}
"""The lane of a kind of interval: ``compute``, ``collectives`` and ``memory``; 0 is for none."""
UNLIMITED = 1
"""Packed slack of what the step does not wait for; slack in ns is packed plus 2, and 0 is for other steps."""
_CATEGORIES = {
    "memory": int(Part.EXPOSED_MEMORY),
    "transfer": int(Part.EXPOSED_COMM),
    "host": cause_category("host_bound_ns"),
    "launch": cause_category("launch_latency_ns"),
    "stream": cause_category("waiting_ns"),
    "wait": cause_category("synchronizing_ns"),
    "absent_ranks": WAITING,
}
"""The color of a piece: that of its kind, as of the idle time that it causes; a kernel has its own."""


def path_data(run: Run, chart: Chart, path: CriticalPath) -> dict[str, Any]:
    """Return the path as data of the page of a chart.

    ``kinds`` has label and category (null: the interval's own) of each kind of piece; ``gains`` what 10 % less of an
    item gains; ``columns`` an entry per piece, from first to last, ``slack`` one per kernel, collective and copy of the
    chart, track by track.

    Args:
        run: the run that the chart is of: the path's, or a selection of its ranks and steps.
    """
    described = path.described()
    names: dict[str, int] = {}
    items = {(item.kind, item.name): number for number, item in enumerate(path.items)}
    texts = [
        (names.setdefault(one["name"], len(names)), names.setdefault(one["operator"], len(names))) for one in described
    ]
    places = _places(run, chart, path)
    first = min(int(places["start"].min(initial=0)), 0)
    columns = {
        **places,
        "start": places["start"] - first,
        "kind": path.links.kind.astype(np.int64),
        "name": np.array([name for name, _ in texts], np.int64),
        "operator": np.array([operator for _, operator in texts], np.int64),
        "item": np.array([items.get((one["kind"], one["name"]), -1) + 1 for one in described], np.int64),
    }
    return {
        "step": path.step,
        "label": step_words(path.step),
        "length": path.length_ns,
        "first": first,
        "kinds": [
            {"label": PATH_KINDS[kind], "word": kind.replace("_", " "), "category": _CATEGORIES.get(kind)}
            for kind in LINK_KINDS
        ],
        "names": list(names),
        "gains": [item.gain_ns for item in path.items],
        "columns": {name: pack(column) for name, column in columns.items()},
        "slack": pack(_slack(run, chart, path)),
    }


def path_notes(run: Run, path: CriticalPath) -> list[str]:
    """Describe why a path may not be the run's, and what the page of a selection leaves out of it."""
    shown = {(timeline.rank, timeline.device) for timeline in run.timelines}
    own = np.array([*((one.rank, one.device) in shown for one in path.timelines), True], np.bool_)
    length = path.links.end_ns - path.links.start_ns
    hidden = int(length[~own[path.recorded.timeline]].sum())
    said = (doubt.text for doubt in path.doubts if doubt.refuses or doubt.kind == "represented")
    notes = [f"The critical path is that of a replay. {text}" for text in said]
    part = f"{duration(hidden)} of its {duration(path.length_ns)}"
    drawn = f"The critical path is drawn in part: {part} are on ranks that were not selected."
    return [*notes, drawn] if hidden else notes


def _places(run: Run, chart: Chart, path: CriticalPath) -> dict[str, Int64]:
    """Return track plus 1, role, position in its lane plus 1, start and length of each piece."""
    recorded = path.recorded
    columns = {name: np.zeros(len(path.links), np.int64) for name in ("track", "role", "position")}
    start, end = chart.place(recorded.start_ns), chart.place(recorded.end_ns)
    for track, (number, timeline) in enumerate(_numbered(run, path)):
        if number is None:
            continue
        own = np.flatnonzero(recorded.timeline == number)
        columns["track"][own], axis = track + 1, chart.axes[track]
        start[own], end[own] = axis.since(recorded.start_ns[own]), axis.since(recorded.end_ns[own])
        lanes = _positions(timeline, axis)
        at = _kept(path.timelines[number], timeline)[recorded.interval[own]]
        known = (recorded.interval[own] >= 0) & (at >= 0)
        own, at = own[known], at[known]
        columns["position"][own] = lanes[at] + 1
        columns["role"][own] = np.array([_ROLES[kind] for kind in Kind])[timeline.kind[at]]
    columns["role"][columns["position"] == 0] = 0
    return {**columns, "start": start, "duration": end - start}


def _numbered(run: Run, path: CriticalPath) -> list[tuple[int | None, Timeline]]:
    """Return the timelines of a run, each with its number among those that were replayed, or None."""
    numbers = {(timeline.rank, timeline.device): number for number, timeline in enumerate(path.timelines)}
    return [(numbers.get((timeline.rank, timeline.device)), timeline) for timeline in run.timelines]


def _positions(timeline: Timeline, axis: Axis) -> Int64:
    """Return each interval's position in the lane of its kind, or -1."""
    positions = np.full(len(timeline), -1, np.int64)
    for drawn in axis.drawn(timeline).values():
        positions[drawn] = np.arange(len(drawn))
    return positions


def _kept(whole: Timeline, part: Timeline) -> Int64:
    """Return the index in a selection of each interval of the whole timeline, or -1."""
    if len(whole) == len(part):
        return np.arange(len(whole))
    found = np.full(len(whole), -1, np.int64)
    # Both are sorted by start; start, end and lane identify an interval: they are numbered together.
    columns = [
        np.unique(np.append(getattr(whole, name), getattr(part, name)), return_inverse=True)
        for name in ("start_ns", "end_ns", "lane")
    ]
    key = np.zeros(len(whole) + len(part), np.int64)
    for known, code in columns:
        key = np.unique(key * len(known) + code, return_inverse=True)[1]
    own, at = np.unique(key[: len(whole)], return_index=True)
    found[at[np.searchsorted(own, key[len(whole) :])]] = np.arange(len(part))
    return found


def _slack(run: Run, chart: Chart, path: CriticalPath) -> Int64:
    """Return the packed slack of the chart's kernels, collectives and copies, track by track."""
    columns = [np.zeros(0, np.int64)]
    for axis, (number, timeline) in zip(chart.axes, _numbered(run, path), strict=True):
        packed = np.zeros(len(timeline), np.int64)
        if number is not None:
            of_step, slack = path.slack_ns(number)
            at = _kept(path.timelines[number], timeline)[of_step]
            value = np.where(slack < FREE >> 1, slack + 2, UNLIMITED)
            packed[at[at >= 0]] = value[at >= 0]
        columns += [packed[index] for index in axis.drawn(timeline).values()]
    return np.concatenate(columns)

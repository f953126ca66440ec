"""Convert a chart to the page's data: rows in pixels, categories with colours, packed columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.kernels.names import short_names, shortened
from dptrace.analysis.matching.calls import place
from dptrace.analysis.memory.usage import MEMORY, DeviceMemory, MemoryUse, total_bytes
from dptrace.analysis.per_gpu.causes import CAUSES, IDLE_CAUSES
from dptrace.analysis.per_gpu.split import EXPOSED_LABELS, OVERLAPPED_LABEL, PART_LABELS, Part
from dptrace.core.intervals import Int64, unique
from dptrace.run.cross_rank import CrossRankAnalysis
from dptrace.run.notable_ranks import MANY, notable_ranks, ranks_first
from dptrace.run.run import Run
from dptrace.timeline.model import UNKNOWN, Collective, Kind
from dptrace.viewers.base import theme
from dptrace.viewers.base.charts import sample_levels
from dptrace.viewers.gantt.chart import OVERLAPPED, WAITING, Axis, Chart, Lane, Role, cause_category
from dptrace.viewers.gantt.packing import differences, pack, pack_times

_HEIGHTS = {
    2: {Role.PHASES: 40, Role.COMPUTE: 56, Role.EXPOSURE: 36, Role.MEMORY: 18},
    5: {Role.PHASES: 24, Role.COMPUTE: 30, Role.EXPOSURE: 20, Role.MEMORY: 14},
    8: {Role.PHASES: 18, Role.COMPUTE: 16, Role.EXPOSURE: 14, Role.MEMORY: 12},
}
"""Row heights in pixels by maximum number of GPUs, so that one GPU and eight GPUs fill a screen."""
_TIGHT = {Role.PHASES: 16, Role.COMPUTE: 14, Role.EXPOSURE: 14, Role.MEMORY: 12}
_STRIP = 20
"""Height of a strip of steps or phases, in pixels."""
_GAPS = {"rows": 2, "tracks": 9, "strip": 8, "collapsed": 3}
"""Gaps in pixels between rows, between GPUs, below a strip, and between collapsed GPUs."""
_COLLAPSED = 16
"""Height of a collapsed GPU's row in pixels."""
_ARROW, _ROW_LABEL, _LETTER = 18, 112, 7.5
"""Widths in pixels: arrow that collapses a GPU, widest row label with margins, bold letter of a GPU's name."""

LABEL_RULES = {"width": 34, "phase": 24, "row": 12, "padding": 5, "mixed": 0.05, "apart": 8, "tries": 24}
"""When an interval has a label, on the page and in a picture. In pixels: its minimum width, and that of a phase, whose
label may be a micro-batch number; the minimum height of its row; the space around the text; the distance between two
places that are tried, of which there are so many. And the share of other colors allowed under a label."""

ROW_LABELS = {
    Role.PHASES: "phases",
    Role.COMPUTE: "compute",
    Role.EXPOSURE: "communication",
    Role.MEMORY: "memory",
}
SHORT_ROW_LABELS: dict[Role, str] = {Role.EXPOSURE: "comm."}
"""Names of rows where there is little room, as far as they differ."""

ORDER = (*theme.PART_ORDER[:5], WAITING, OVERLAPPED, *theme.PART_ORDER[5:], *map(cause_category, CAUSES))
"""Order of the legend and of stacked bars: overlapped next to exposed, idle before its causes."""


def categories(exposed: str) -> list[dict[str, Any]]:
    """Return names and colours by category: parts of a step, overlapped communication, idle causes, waiting.

    Args:
        exposed: what the chart calls exposed communication that is not waiting.
    """
    short = {Part.OTHER: "Other", Part.EXPOSED_MEMORY: "Memory"}
    short[Part.EXPOSED_COMM] = exposed.removesuffix(" communication").removeprefix("Exposed ").capitalize()
    labels = PART_LABELS | {Part.EXPOSED_COMM: exposed}
    parts = [
        {"label": labels[part], "short": short.get(part, labels[part]), "color": color}
        for part, color in sorted(theme.PART_COLORS.items())
    ]
    overlapped = {"label": OVERLAPPED_LABEL, "short": "Overlapped", "color": theme.OVERLAPPED}
    causes = [
        {"label": f"Idle: {cause.label}", "short": cause.label.capitalize(), "color": cause.look[0], "why": cause.why}
        for cause in IDLE_CAUSES
    ]
    waiting = {"label": EXPOSED_LABELS["exposed_wait_ns"], "short": "Waiting", "color": theme.WAITING}
    return [_with_inks(entry) for entry in (*parts, overlapped, *causes, waiting)]


def _with_inks(entry: dict[str, Any]) -> dict[str, Any]:
    color = str(entry["color"])
    ink = theme.ink_on(color)
    dark, dark_ink = theme.DARK[color]
    pattern = {"pattern": theme.PATTERNS[color]} if color in theme.PATTERNS else {}
    return {**entry, **pattern, "ink": ink, "dark": {"color": dark, "ink": dark_ink}}


def layout(chart: Chart, compact: bool = False) -> dict[str, Any]:
    """Return the strips and rows from the top, with their heights in pixels, and the left margin for their names.

    static/stage/stage.js stacks them on the page, ``pages.gantt_svg`` in a picture; ``height`` is that of all.

    Args:
        compact: as low as the rows of eight GPUs, for a picture that is as high as its rows.
    """
    gpus = max(len(chart.tracks), max(_HEIGHTS) if compact else 0)
    heights = next((rows for limit, rows in _HEIGHTS.items() if gpus <= limit), _TIGHT)
    shown = [role for role in heights if role in (Role.PHASES, Role.COMPUTE) or chart.has(role)]
    strips: list[dict[str, Any]] = []
    for numbers in _heads(chart):
        tracks = sorted(track for number in numbers for track in chart.strips[number].tracks)
        lead = f"steps, rank {chart.tracks[tracks[0]].rank}" if len(numbers) == 1 < len(tracks) else "steps"
        strips.append({"h": _STRIP, "strips": numbers, "tracks": tracks, "label": lead})
    rows = [
        {"h": heights[role], "track": track, "role": role.value, "label": ROW_LABELS[role]}
        for strip in strips
        for track in strip["tracks"]
        for role in shown
    ]
    gpu = sum(heights[role] + _GAPS["rows"] for role in shown) + _GAPS["tracks"]
    left = round(_ARROW + _ROW_LABEL + _LETTER * max((len(track.label) for track in chart.tracks), default=0))
    height = max(len(strips) * (_STRIP + _GAPS["strip"]) + len(chart.tracks) * gpu, 40)
    return {
        "rows": rows,
        "strips": strips,
        "height": height,
        "left": left,
        "collapsed": len(chart.tracks) > MANY,
        "gaps": _GAPS,
        "low": _COLLAPSED,
        "labels": LABEL_RULES,
    }


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
        "breaks": chart.breaks.spans,
        "cpu": any(track.device < 0 for track in chart.tracks),
        "tracks": [
            {
                "label": track.label,
                "device": track.device_name,
                "steps": track.steps,
                "bounds": track.bounds_ns.tolist(),
                **({"ends": track.ends_ns.tolist()} if len(track.ends_ns) else {}),
                "place": place(track.coordinates),
                "coordinates": dict(track.coordinates),
            }
            for track in chart.tracks
        ],
        "strips": [{"tracks": strip.tracks, "names": strip.steps} for strip in chart.strips],
        "layout": layout(chart),
        "categories": categories(chart.exposed),
        "order": [int(category) for category in ORDER],
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


# Details of a clicked interval: a kernel's launch delay, a collective's other ranks.
#
# The page unpacks these columns on the first click. Columns of collectives have an entry for each collective of the
# chart, track by track; columns of instances have an entry for each matched collective.


MAX_LAUNCHES = 500_000
"""Largest number of intervals of a page with launch delays, which make a page larger by a third."""


def details(run: Run, chart: Chart) -> dict[str, Any]:
    """Return the columns for a run's chart, which must be the result of ``chart.chart``."""
    page_data = {"launch": pack(_launch_delays(run, chart))} if len(chart) <= MAX_LAUNCHES else {}
    if chart.collectives:
        page_data |= _members(run.cross_rank, run, chart)
    return page_data


def _shown(run: Run, chart: Chart) -> list[dict[Kind, NDArray[np.intp]]]:
    return [axis.drawn(timeline) for axis, timeline in zip(chart.axes, run.timelines, strict=True)]


def _launch_delays(run: Run, chart: Chart) -> Int64:
    """Return the ns from launch to start plus 1 (0: unknown) of kernels, collectives and copies, track by track."""
    delays = [np.zeros(0, np.int64)]
    for timeline, shown in zip(run.timelines, _shown(run, chart), strict=True):
        for index in shown.values():
            launch, start = timeline.launch_ns[index], timeline.start_ns[index]
            known = (launch != UNKNOWN) & (launch <= start)
            delays.append(np.where(known, start - launch + 1, 0))
    return np.concatenate(delays)


def _members(cross_rank: CrossRankAnalysis, run: Run, chart: Chart) -> dict[str, Any]:
    """Return each collective's instance plus 1 (0: unmatched), its wait and its lateness plus 1 (0: unknown).

    ``within`` is the clocks' uncertainty plus 1 of a lateness that does not exceed it.
    """
    matches, timing = cross_rank.matches, cross_rank.timing
    known, drawn = [np.zeros((4, 0), np.int64)], [shown[Kind.COMMUNICATION] for shown in _shown(run, chart)]
    for own, timeline, shown in zip(matches.of_device, run.timelines, drawn, strict=True):
        comm = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)
        columns = np.zeros((4, len(comm)), np.int64)
        late = np.where(timing.late_known[own], timing.late_ns[own] + 1, 0)
        within = np.where(timing.late_known[own], 0, timing.unsure_ns[own] + 1)
        columns[:, matches.index[own]] = matches.instance[own] + 1, timing.wait_ns[own] + 1, late, within
        known.append(columns[:, np.searchsorted(comm, shown)])
    instance, wait, late, within = np.concatenate(known, axis=1)
    return {
        "instance": pack(instance),
        "wait": pack(wait),
        "late": pack(late),
        "within": pack(within),
        "instances": _instances(cross_rank),
        "groups": [{"name": g.name, "description": g.description, "size": g.size} for g in matches.groups],
    }


def _instances(cross_rank: CrossRankAnalysis) -> dict[str, Any]:
    matches, timing = cross_rank.matches, cross_rank.timing
    names = sorted(set(cross_rank.names))
    place = {name: i for i, name in enumerate(names)}
    columns = {
        "transfer": timing.transfer_ns + 1,
        "algbw": _rate(timing.algbw),
        "busbw": _rate(timing.busbw),
        "last": timing.last.astype(np.int64) + 1,
        "bytes": matches.bytes,
        "seq": np.array([max(collective.seq, -1) + 1 for collective in matches.collectives], np.int64),
        "group": matches.group.astype(np.int64),
        "name": np.array([place[name] for name in cross_rank.names], np.int64),
    }
    return {**{name: pack(column) for name, column in columns.items()}, "names": names}


def _rate(rate: Any) -> Int64:
    """Return whole kB/s, which fit in 32 bits; 0 if unknown."""
    whole: Int64 = (np.nan_to_num(rate, nan=0, posinf=0, neginf=0) / 1000).round().astype(np.int64)
    return whole


# The memory lanes of a page in one file: each device's allocated and reserved memory over time, and its peak.


MOST_TRACKS = 16
"""GPUs of a page whose memory it holds: the most notable ones, as of the host's rows."""
MOST_POINTS = 4_000
"""Points of a lane; of more events, it has the highest level in each of as many columns."""


def with_memory(run: Run, chart: Chart) -> dict[str, Any]:
    """Return ``memory``, the lanes, as data of the page; nothing where no file has memory events."""
    lanes = memory_lanes(run, chart)
    return {"memory": {"tracks": lanes}} if lanes else {}


def memory_lanes(run: Run, chart: Chart) -> dict[str, dict[str, Any]]:
    """Return the lane of each GPU that has memory events, by its number as text.

    Each has ``delta``, ``bytes`` and ``reserved`` (packed columns: times as differences, sizes as folded differences),
    ``least`` and ``most`` (the ends of its scale), ``peak`` (time and bytes), ``calls`` (times of the runtime's
    allocator calls and of failed allocations), ``exact`` (whether all events are in it) and ``fromStart`` (whether its
    totals count from the start of the recording).
    """
    tracks = [notable.index for notable in notable_ranks(run)] if len(run.timelines) > 1 else [0]
    found = {}
    for track in sorted(tracks[:MOST_TRACKS]):
        timeline = run.timelines[track]
        use = run.read_again(timeline, MEMORY)
        every = ((part, device) for part in (use.parts if use else ()) for device in part.devices)
        parts = [(part, device) for part, device in every if device.device == timeline.device]
        if parts:
            found[str(track)] = _lane(parts, chart.axes[track])
    return found


def _lane(parts: Sequence[tuple[MemoryUse, DeviceMemory]], axis: Axis) -> dict[str, Any]:
    """Return the lane of a device from its memory in each recording."""
    start, end = axis.recorded(0, axis.length_ns)
    columns, peaks = list[tuple[Int64, Int64, Int64]](), list[tuple[int, int]]()
    within = [np.searchsorted(device.events.time_ns, (start, end), side="right") for _, device in parts]
    exact = sum(int(last - first) for first, last in within) <= MOST_POINTS
    for number, (_, device) in enumerate(parts):
        times, total = device.events.time_ns, total_bytes(device)
        begin = max(start, int(times[0])) if number else start
        if begin > end:
            break
        first, last = (int(edge) for edge in np.searchsorted(times, (begin, end), side="right"))
        if exact:
            # The level that the chart begins with, and that after each event in it.
            level: Int64 = np.arange(first, last + 1)
            time: Int64 = np.append(begin, times[first:last])
        else:
            until = end if number == len(parts) - 1 else min(end, int(times[-1]) + 1)
            sampled = sample_levels(device, begin, max(until, begin + 1), MOST_POINTS // len(parts))
            level, time = sampled.level, begin + sampled.edges[:-1].astype(np.int64)
        reserved = np.append(device.events.reserved[:1], device.events.reserved)
        columns.append((time, total[level], reserved[level]))
        peak = first + int(total[first : last + 1].argmax())
        peaks.append((int(total[peak]), max(int(axis.since(times[[max(peak - 1, 0)]])[0]), 0)))
    time, size, held = (np.concatenate(own) for own in zip(*columns, strict=True))
    on_cpu = parts[0][1].on_cpu
    called = [side for use, _ in parts for side in (use.calls.start_ns, use.failed.time_ns)]
    calls = np.sort(np.concatenate(called)) if not on_cpu else np.empty(0, np.int64)
    most, at = max(peaks, key=lambda one: one[0])
    return {
        "delta": pack(np.diff(axis.since(time), prepend=0)),
        "bytes": pack(differences(size)),
        "reserved": pack(differences(held)),
        "least": min(int(size.min()), 0),
        "most": max(int(size.max()), int(held.max()), 1),
        "peak": [at, most],
        "calls": axis.since(calls[(calls >= start) & (calls < end)]).tolist(),
        "exact": exact,
        "fromStart": on_cpu,
    }


# The orders in which the Gantt page can show the GPUs of a run, by rank, by what is wrong, by place in the job; and
# the few to look at first.


_FEWEST = 3
"""Number of GPUs from which an order other than by rank helps."""
_OPEN = 4
"""Most notable GPUs that stay expanded, where the others are collapsed."""
_FEW = 5
"""Most GPUs that are chosen of a run."""
_WORDS = {"held others up": "latest"}
"""What the list of a run's chosen GPUs says, where that is not the reason itself."""


def row_orders(run: Run, gantt_chart: Chart) -> list[dict[str, Any]]:
    """Return the orders of a run's tracks, the present one first, as data of the page; none for few GPUs.

    Each has a ``label`` and the ``tracks`` in its order; ``open`` is the number of tracks that it is about, if not all,
    and ``groups`` the name of each track's group, if it groups them.
    """
    if len(gantt_chart.tracks) < _FEWEST:
        return []
    by_rank = list(range(len(gantt_chart.tracks)))
    nodes = run.nodes
    notable = [one for one in notable_ranks(run) if one.index < len(by_rank)]
    causes = sum(one.why not in ("", "typical") for one in notable)
    orders: list[dict[str, Any]] = [{"label": "by rank", "tracks": by_rank}]
    if causes:
        tracks = [one.index for one in notable]
        tracks += [track for track in by_rank if track not in set(tracks)]
        orders.append({"label": "notable ranks first", "tracks": tracks, "open": min(causes, _OPEN)})
    if len(by_rank) > MANY:
        orders[:] = [_many_first(run, nodes), {"label": "by rank", "tracks": by_rank}]
    orders += _by_figures(run, by_rank)
    if len(set(nodes)) > 1:
        tracks = sorted(by_rank, key=lambda track: (nodes.index(nodes[track]), track))
        orders.append({"label": "by node", "tracks": tracks, "groups": [name or "no node known" for name in nodes]})
    for name, value_of in _places(gantt_chart):
        tracks = sorted(by_rank, key=lambda track: (value_of(track), track))
        groups = [f"{name} {value_of(track)}" if value_of(track) >= 0 else f"no {name} known" for track in by_rank]
        orders.append({"label": f"by {name}", "tracks": tracks, "groups": groups})
    return orders


def few_ranks(run: Run, gantt_chart: Chart) -> dict[str, Any] | None:
    """Return the few GPUs of a run to look at first, as data of the page; None where there are not many more.

    ``tracks`` holds them by rank, ``label`` their reasons: ``latest, slowest, typical``.
    """
    reasons = rank_reasons(run, gantt_chart)
    tracks = list(reasons)[:_FEW]
    typical = next((track for track, why in reasons.items() if why == "typical"), None)
    if typical is not None and typical not in tracks:
        tracks[-1] = typical
    if len(tracks) < 2 or len(gantt_chart.tracks) < len(tracks) + _FEWEST:
        return None
    words = dict.fromkeys(_WORDS.get(word, word) for track in tracks for word in reasons[track].split(", "))
    tracks.sort()
    return {"label": ", ".join(words), "tracks": tracks}


def rank_reasons(run: Run, gantt_chart: Chart) -> dict[int, str]:
    """Return why each notable GPU is notable, the most notable first; none where all are alike."""
    reasons = {one.index: one.why for one in notable_ranks(run) if one.why} if gantt_chart.tracks else {}
    return reasons if set(reasons.values()) != {"typical"} else {}


def _by_figures(run: Run, by_rank: list[int]) -> Iterable[dict[str, Any]]:
    """Yield the orders by figures that differ between GPUs, the largest mean over the steps first."""
    waits = [wait.wait_ns for wait in run.cross_rank.exposed_waits]
    columns = {
        "longest step first": [split.figures["wall_ns"] for split in run.splits],
        f"{EXPOSED_LABELS['exposed_wait_ns'].lower()}, most first": waits,
        "idle, most first": [split.figures["idle_ns"] for split in run.splits],
    }
    for label, per_device in columns.items():
        means = [float(np.mean(values)) if len(values) else 0.0 for values in per_device]
        if len(means) == len(by_rank) and max(means) > min(means):
            yield {"label": label, "tracks": sorted(by_rank, key=lambda track: -means[track])}


def _many_first(run: Run, nodes: Sequence[str]) -> dict[str, Any]:
    """Return the order in which a page of many GPUs opens: notable ones, some of them expanded, then node by node."""
    found = ranks_first(run)
    notable = [one for one in found if one.why]
    others = sorted((one.index for one in found if not one.why), key=lambda track: (nodes.index(nodes[track]), track))
    groups = [name or "other ranks" for name in nodes]
    for one in notable:
        groups[one.index] = "notable ranks"
    tracks = [*(one.index for one in notable), *others]
    return {"label": "notable ranks first", "tracks": tracks, "open": min(len(notable), _OPEN), "groups": groups}


def _places(gantt_chart: Chart) -> Iterable[tuple[str, Callable[[int], int]]]:
    """Yield the dimensions of the job's mesh in which ranks differ."""
    tracks = gantt_chart.tracks
    for name in dict.fromkeys(name for track in tracks for name in track.coordinates):
        numbers = [track.coordinates.get(name, -1) for track in tracks]
        if len(set(numbers)) > 1:
            yield name, numbers.__getitem__

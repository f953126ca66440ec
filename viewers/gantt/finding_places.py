"""The most expensive findings of a run, each with the place in its Gantt chart that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dptrace.analysis.findings.finding import Finding, by_gain
from dptrace.analysis.per_gpu.split import CAUSES
from dptrace.core.units import duration, share
from dptrace.run.run import Run
from dptrace.timeline.model import Kind
from dptrace.viewers.base.table import gain_sentence
from dptrace.viewers.gantt.chart import Chart, Lane, Role, cause_category, drawn_intervals

MOST = 3
"""Number of findings above the chart."""
_INTERRUPTION = 0.01
"""Share of a step up to which work within idle time does not end it."""
_CONTEXT = 0.5
"""Time shown on either side of an interval, as a share of its length."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chart shows a finding; times since the chart's origin."""

    track: int
    start_ns: int
    end_ns: int
    collective: tuple[int, int] | None = None
    """Track and position in its lane of collectives of the call that the others wait in, or that is exposed."""
    gap_ns: int | None = None
    """Time within the longest idle interval, for a finding on idle time."""


def finding_places(run: Run, chart: Chart) -> list[dict[str, Any]]:
    """Return the most expensive findings as data of the page.

    Each has ``cost``, ``share``, ``text`` and ``advice``; ``place`` is None where the chart does not show its step.
    """
    found = by_gain(run.cross_rank.findings)
    return [
        {
            "cost": duration(finding.figure[0]),
            "share": share(finding.figure[1]),
            "text": finding.text,
            "advice": finding.advice if finding.gain is None else f"{finding.advice} {gain_sentence(finding.gain)}",
            "idle": _cause(finding) in CAUSES,
            "place": _as_data(place_of(finding, run, chart)),
        }
        for finding in found[:MOST]
    ]


def _as_data(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    margin = int(_CONTEXT * (place.end_ns - place.start_ns))
    times = {"from": place.start_ns - margin, "to": place.end_ns + margin}
    gap = {} if place.gap_ns is None else {"gap": place.gap_ns}
    return {"track": place.track, "collective": place.collective, **gap, **times}


def place_of(finding: Finding, run: Run, chart: Chart) -> Place | None:
    """Return where a chart shows a finding; None where it does not show its step."""
    evidence = finding.evidence
    for track in _tracks_of(chart, evidence.get("rank")):
        step = _step(chart, track, evidence.get("step"))
        if step is None:
            continue
        if "instance" in evidence:
            # A delay that reaches no collective that others wait in is shown by its step.
            reached = evidence["instance"]
            return step if reached is None else _collective(run, chart, track, reached) or step
        if (cause := _cause(finding)) in CAUSES:
            return _longest_gap(step, _lane(chart, track, Role.IDLE), cause_category(cause)) or step
        if "exposed_ns" in evidence:
            return _most_exposed(chart, step, evidence.get("collective")) or step
        return step
    return None


def _tracks_of(chart: Chart, rank: object) -> Iterator[int]:
    return (number for number, track in enumerate(chart.tracks) if track.rank == rank)


def _step(chart: Chart, track: int, name: object) -> Place | None:
    steps, bounds = chart.tracks[track].steps, chart.tracks[track].bounds_ns.tolist()
    if name not in steps:
        return None
    number = steps.index(str(name))
    return Place(track, bounds[number], bounds[number + 1])


def _lane(chart: Chart, track: int, role: Role) -> Lane:
    return next(lane for lane in chart.lanes if lane.track == track and lane.role is role)


def _cause(finding: Finding) -> str:
    """Return the idle cause that a finding is about, if it is one of ``CAUSES``."""
    return f"{finding.kind}_ns"


def _longest_gap(step: Place, lane: Lane, category: int) -> Place | None:
    """Return the longest idle time of a cause that begins in a step; short work within it does not end it.

    Gaps of 3, 40 and 50 ms with 0.1 ms between the last two, in a step of 500 ms, make one of 90 ms.
    """
    chosen = (lane.start_ns >= step.start_ns) & (lane.start_ns < step.end_ns) & (lane.category == category)
    start, length = lane.start_ns[chosen], lane.duration_ns[chosen]
    if not len(start):
        return None
    apart = start[1:] - (start + length)[:-1] > _INTERRUPTION * (step.end_ns - step.start_ns)
    first = np.flatnonzero(np.append(True, apart))
    last = np.append(first[1:], len(start)) - 1
    longest = int(np.argmax(np.add.reduceat(length, first)))
    begin, end = int(first[longest]), int(last[longest])
    gap = int(start[begin + int(np.argmax(length[begin : end + 1]))])
    return Place(step.track, int(start[begin]), int((start + length)[end]), gap_ns=gap)


def _most_exposed(chart: Chart, step: Place, kind: object) -> Place | None:
    """Return the collective of a kind with the longest exposed time of those that begin in a step."""
    lane = _lane(chart, step.track, Role.COLLECTIVES)
    of_kind = np.array([known.kind == kind for _, known, _ in chart.collectives], np.bool_)
    inside = (lane.start_ns >= step.start_ns) & (lane.start_ns < step.end_ns)
    inside &= of_kind[lane.name] if len(of_kind) else False
    if not inside.any():
        return None
    place = int(np.argmax(np.where(inside, lane.exposed_ns, -1)))
    start = int(lane.start_ns[place])
    return Place(step.track, start, start + int(lane.duration_ns[place]), (step.track, place))


def _collective(run: Run, chart: Chart, track: int, instance: int) -> Place | None:
    """Return a matched collective, from its first rank's arrival to its last rank's end."""
    matches = run.cross_rank.matches
    members = slice(int(matches.first[instance]), int(matches.first[instance + 1]))
    ids = [(timeline.rank, timeline.device) for timeline in run.timelines]
    tracks = [ids.index(matches.device_ids[device]) for device in matches.device[members].tolist()]
    places = [_position(run, chart, *member) for member in zip(tracks, matches.index[members].tolist(), strict=True)]
    shown = [(track, place) for track, place in zip(tracks, places, strict=True) if place is not None]
    if not shown:
        return None
    lanes = [(_lane(chart, track, Role.COLLECTIVES), place) for track, place in shown]
    starts = [int(lane.start_ns[place]) for lane, place in lanes]
    ends = [int(lane.start_ns[place] + lane.duration_ns[place]) for lane, place in lanes]
    first = shown[int(np.argmin(starts))]
    return Place(track, min(starts), max(ends), first)


def _position(run: Run, chart: Chart, track: int, index: int) -> int | None:
    """Return the position in a track's lane of collectives of the call that is *index* among its device's calls."""
    timeline = run.timelines[track]
    calls = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)
    drawn = drawn_intervals(timeline, chart.origin_ns, chart.origin_ns + chart.end_ns, Kind.COMMUNICATION)
    place = int(np.searchsorted(drawn, calls[index]))
    return place if place < len(drawn) and drawn[place] == calls[index] else None

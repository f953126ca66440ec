"""The first findings of a run, each with the place in its Gantt chart that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.findings.evidence import Straggler
from dptrace.analysis.findings.finding import Finding, top_findings
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.analysis.per_gpu.split import Part
from dptrace.core.intervals import Int64, IntervalSet, intersect, union
from dptrace.core.units import duration, share
from dptrace.replay.findings import findings_of
from dptrace.run.run import Run
from dptrace.timeline.model import Kind
from dptrace.viewers.base.table import GAIN_UNKNOWN, gain_sentence, order_sentence
from dptrace.viewers.gantt.chart import WAITING, Chart, Lane, Role, cause_category
from dptrace.viewers.gantt.gaps import joined

MOST = 3
"""Number of findings above the chart."""
_INTERRUPTION = 0.01
"""Share of a step up to which work within idle time does not end it."""
_MUCH = 0.5
"""Share of a rank's lateness from which an idle gap of its shows why it was late."""
_CONTEXT = 0.5
"""Time shown on either side of an interval, as a share of its length."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chart shows a finding; times since the chart's origin."""

    track: int
    start_ns: int
    end_ns: int
    collective: tuple[int, int] | None = None
    """Track and position in its lane of collectives of the call that was late, or that is exposed."""
    gap_ns: int | None = None
    """Time within the longest idle interval, for a finding on idle time, or a rank that was idle while it was late."""
    late: tuple[tuple[int, int], ...] = ()
    """Positions in the track's lane of collectives of its calls that were late in the step, and by how many ns."""


def finding_places(run: Run, chart: Chart) -> list[dict[str, Any]]:
    """Return the first findings as data of the page.

    Each has ``figure``, ``share``, ``text`` and ``advice``; ``place`` is None where the chart does not show its step.
    """
    first = top_findings(findings_of(run))[:MOST]
    order = order_sentence(first)
    return [
        {
            **_figure(finding),
            "text": finding.text,
            "advice": f"{finding.advice} {gain_sentence(finding)} {order if finding is first[0] else ''}".rstrip(),
            "idle": _cause(finding) in CAUSES,
            "place": _as_data(place_of(finding, run, chart)),
        }
        for finding in first
    ]


def _figure(finding: Finding) -> dict[str, str]:
    """Return what it is shown with: what a step gains; unknown, what it counts."""
    ns, of_step = finding.figure
    text, part = duration(ns), f"{share(of_step)} of a step"
    if finding.has_gain:
        return {"figure": text, "share": f"gain, {part}"}
    return {"figure": GAIN_UNKNOWN, "share": f"{text} counted, {part}"}


def _as_data(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    margin = int(_CONTEXT * (place.end_ns - place.start_ns))
    times = {"from": place.start_ns - margin, "to": place.end_ns + margin}
    gap = {} if place.gap_ns is None else {"gap": place.gap_ns}
    late = {"late": place.late} if place.late else {}
    return {"track": place.track, "collective": place.collective, **gap, **late, **times}


def place_of(finding: Finding, run: Run, chart: Chart) -> Place | None:
    """Return where a chart shows a finding; None where it does not show its step."""
    evidence = finding.evidence
    for track in _tracks_of(chart, evidence.rank):
        # What is late after the last collective is in no step that a collective names.
        ends = finding.kind == "straggler" and evidence.step is None and chart.tracks[track].steps
        step = _step(chart, track, chart.tracks[track].steps[-1] if ends else evidence.step)
        if step is None:
            continue
        # A delay that reaches no collective that others wait in is shown by its step.
        if (reached := evidence.instance) is not None:
            shown = _collective(run, chart, track, reached)
            return _delayed(run, chart, shown, reached) if shown and finding.kind == "straggler" else shown or step
        if (cause := _cause(finding)) in CAUSES:
            lane = _lane(chart, track, Role.IDLE)
            begins = (lane.start_ns >= step.start_ns) & (lane.start_ns < step.end_ns)
            chosen = begins & (lane.category == cause_category(cause))
            # A gap that is mostly of another cause would show that one.
            return _longest_gap(step, lane, chosen & _is_main(lane)) or _longest_gap(step, lane, chosen) or step
        if finding.kind == "exposed_comm":
            return _most_exposed(chart, step, evidence.collective) or step
        return step
    return None


def _tracks_of(chart: Chart, rank: object) -> Iterator[int]:
    return (number for number, track in enumerate(chart.tracks) if track.rank == rank)


def _step(chart: Chart, track: int, name: object) -> Place | None:
    own = chart.tracks[track]
    if name not in own.steps:
        return None
    number = own.steps.index(str(name))
    return Place(track, int(own.bounds_ns[number]), int(own.step_ends_ns[number]))


def _lane(chart: Chart, track: int, role: Role) -> Lane:
    return next(lane for lane in chart.lanes if lane.track == track and lane.role is role)


def _cause(finding: Finding) -> str:
    """Return the idle cause that a finding is about, if it is one of ``CAUSES``."""
    return "host_bound_ns" if finding.kind == "unrecorded" else f"{finding.kind}_ns"


def _is_main(lane: Lane) -> NDArray[np.bool_]:
    """Return which pieces of a lane of idle time are of the cause that has most of their gap."""
    first = joined(lane)
    if not len(first):
        return np.zeros(0, np.bool_)
    # The time of each gap by cause, as a table of gaps by categories.
    gap = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(lane))))
    cells = gap * (WAITING + 1) + lane.category
    time = np.bincount(cells, lane.duration_ns, len(first) * (WAITING + 1)).reshape(len(first), -1)
    main: NDArray[np.bool_] = lane.category == time.argmax(axis=1)[gap]
    return main


def _longest_gap(step: Place, lane: Lane, chosen: NDArray[np.bool_]) -> Place | None:
    """Return the longest of the chosen idle intervals; short work within it, compared with the step, does not end it.

    Gaps of 3, 40 and 50 ms with 0.1 ms between the last two, in a step of 500 ms, make one of 90 ms.
    """
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


def _delayed(run: Run, chart: Chart, reached: Place, instance: int) -> Place:
    """Return where a rank was late for a collective: in the longest gap of its delay, if it was idle for much of it."""
    matches, late, track = run.cross_rank.matches, run.cross_rank.stragglers, reached.track
    ids = (run.timelines[track].rank, run.timelines[track].device)
    device = matches.device_ids.index(ids)
    steps = [matches.step[one] for one in late.instance.tolist()]
    mine = np.flatnonzero((late.device == device) & np.array([one == matches.step[instance] for one in steps], bool))
    calls = {int(late.instance[row]): int(late.late_ns[row]) for row in mine.tolist()}
    members = [(one, np.flatnonzero((matches.instance == one) & (matches.device == device))) for one in sorted(calls)]
    places = {one: _position(run, chart, track, int(matches.index[found[0]])) for one, found in members if len(found)}
    shown = {one: place for one, place in places.items() if place is not None}
    own = (track, shown[instance]) if instance in shown else reached.collective
    arrivals = tuple((place, calls[one]) for one, place in shown.items())
    reached = replace(reached, collective=own, late=arrivals)
    # Its longest idle gap before it arrived shows why, if it is much of the delay.
    step = _step(chart, track, str(matches.step[instance]))
    lane, arrived = _lane(chart, track, Role.IDLE), reached.end_ns
    if own is not None and own[0] == track:
        arrived = int(_lane(chart, track, Role.COLLECTIVES).start_ns[own[1]])
    if step is None:
        return reached
    inside = (lane.start_ns < arrived) & (lane.start_ns + lane.duration_ns > step.start_ns)
    gap = _longest_gap(step, lane, inside)
    if gap is None or gap.end_ns - gap.start_ns < _MUCH * calls.get(instance, 0):
        return reached
    whole = min(reached.start_ns, gap.start_ns), max(reached.end_ns, gap.end_ns)
    return replace(reached, start_ns=whole[0], end_ns=whole[1], gap_ns=gap.gap_ns)


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
    drawn = chart.axes[track].drawn(timeline)[Kind.COMMUNICATION]
    place = int(np.searchsorted(drawn, calls[index]))
    return place if place < len(drawn) and drawn[place] == calls[index] else None


# What a finding counted, for the marks of a figure.


@dataclass(frozen=True, slots=True)
class Counted:
    """The intervals of one GPU that a finding counted, and the row that shows them; times since the chart's origin."""

    track: int
    role: Role
    start_ns: Int64
    end_ns: Int64

    @property
    def ns(self) -> int:
        """Their time."""
        return int((self.end_ns - self.start_ns).sum())


def counted(finding: Finding, run: Run, chart: Chart) -> list[Counted]:
    """Return what a finding counted in the steps of a chart; empty where that is nothing.

    Of a finding on late ranks, these are the waits for them, and the idle time of the late ranks meanwhile; of another,
    it is the GPU that the finding names, else the one with most.
    """
    if finding.kind == "straggler":
        return _waits(finding, run, chart)
    kind, cause = finding.evidence.collective, _cause(finding)
    named = set(_tracks_of(chart, finding.evidence.rank)) or set(range(len(chart.tracks)))
    found = []
    for track in named:
        if cause in CAUSES:
            lane = _lane(chart, track, Role.IDLE)
            chosen = lane.category == cause_category(cause)
        elif finding.kind == "copies":
            lane = _lane(chart, track, Role.PHASES)
            chosen = lane.category == Part.EXPOSED_MEMORY
        elif finding.kind == "exposed_comm":
            lane = _lane(chart, track, Role.EXPOSURE)
            chosen = lane.category == Part.EXPOSED_COMM
            chosen &= np.isin(lane.name, [i for i, (_, known, _) in enumerate(chart.collectives) if known.kind == kind])
        else:
            return []
        bounds = chart.tracks[track].bounds_ns
        chosen &= (lane.start_ns >= bounds[0]) & (lane.start_ns < bounds[-1])
        start = lane.start_ns[chosen]
        role = Role.PHASES if lane.role is Role.IDLE else lane.role
        found.append(Counted(track, role, start, start + lane.duration_ns[chosen]))
    return [one for one in sorted(found, key=lambda one: -one.ns)[:1] if one.ns]


def _waits(finding: Finding, run: Run, chart: Chart) -> list[Counted]:
    """Return the waits that a finding on late ranks counted, and before them the idle time of these ranks meanwhile."""
    matches, late = run.cross_rank.matches, finding.about(Straggler).ranks
    arrivals = run.cross_rank.stragglers
    reached = [matches.device_ids[device][0] in late for device in arrivals.device.tolist()]
    rows = np.flatnonzero(np.isin(matches.instance, arrivals.instance[np.array(reached, np.bool_)]))
    ids = [(timeline.rank, timeline.device) for timeline in run.timelines]
    calls: dict[int, list[tuple[int, int]]] = {}
    for device, index in zip(matches.device[rows].tolist(), matches.index[rows].tolist(), strict=True):
        if (member := matches.device_ids[device]) in ids and member[0] not in late:
            track = ids.index(member)
            lane, place = _lane(chart, track, Role.COLLECTIVES), _position(run, chart, track, index)
            if place is not None and lane.wait_ns[place] > 1:
                start = int(lane.start_ns[place])
                calls.setdefault(track, []).append((start, start + int(lane.wait_ns[place]) - 1))
    meanwhile = [times for own in calls.values() for times in own]
    found = [(track, Role.PHASES, Role.IDLE, meanwhile) for rank in late for track in _tracks_of(chart, rank)]
    found += [(track, Role.EXPOSURE, Role.EXPOSURE, calls[track]) for track in sorted(calls)]
    parts = [Counted(track, role, *_within(_lane(chart, track, lane), times)) for track, role, lane, times in found]
    return [one for one in parts if one.ns]


def _within(lane: Lane, times: list[tuple[int, int]]) -> IntervalSet:
    """Return the idle time or the waits of a lane within some times."""
    chosen = (lane.category == WAITING) | (lane.role is Role.IDLE)
    start, end = np.array(times, np.int64).reshape(-1, 2).T
    return intersect(union(lane.start_ns[chosen], (lane.start_ns + lane.duration_ns)[chosen]), union(start, end))

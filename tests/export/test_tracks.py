"""Tracks are linked across GPUs: members of a collective, corrected clocks, and counters."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dptrace.analysis.cross_rank.clocks import Shift, estimate, shifts_of
from dptrace.analysis.cross_rank.transfers import timing
from dptrace.analysis.matching.match import match
from dptrace.analysis.per_gpu.split import exposure
from dptrace.core.intervals import Int64
from dptrace.export.formats import FORMATS, write_trace
from dptrace.export.tracks import (
    AlignedRun,
    Counter,
    Members,
    align_run,
    assign_lanes,
    counters,
    members_of,
)
from dptrace.run.run import Run
from dptrace.timeline.model import UNKNOWN, Collective, Kind, Timeline
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.exported import read_back, read_counters


@pytest.fixture(params=sorted(FORMATS))
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def as_recorded(run: Run) -> AlignedRun:
    """Leave the ranks' times as recorded, and match nothing."""
    none = np.empty(0, np.int64)
    members = Members(none, none, none, none, none, none.astype(np.float64))
    return AlignedRun(tuple(Shift(one.rank) for one in run.timelines), (members,) * len(run.timelines), False)


def linked(run: Run, *shifts: Shift) -> AlignedRun:
    """Match the k-th communication of all ranks with each other, and move the clocks."""
    members = []
    for timeline in run.timelines:
        interval = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)
        number = np.arange(1, len(interval) + 1)
        told = number * 10 + timeline.rank
        members.append(Members(interval, number, number + 2, told, told + 5, (number * 12.25).astype(np.float64)))
    return AlignedRun(shifts or as_recorded(run).shifts, tuple(members), bool(shifts))


def test_members_of_a_collective_are_linked(tmp_path: Path, suffix: str) -> None:
    """A collective's slices on all ranks share a number, say what they waited, and nothing else is linked."""
    run = Run("made", two_rank_timelines())
    path = tmp_path / f"x{suffix}"
    write_trace(run, path, suffix, aligned_run=linked(run))

    rows = [track for track in read_back(path) if track.name == "stream 20 (communication)"]

    assert [[1, 2], [1, 2]] == [[each.link for each in row.slices] for row in rows]
    for rank, row in enumerate(rows):
        for number, each in enumerate(row.slices, start=1):
            told = {name: each.args[name] for name in ("instance", "seq", "wait_ns", "transfer_ns")}
            wait = number * 10 + rank
            assert {"instance": number, "seq": number + 2, "wait_ns": wait, "transfer_ns": wait + 5} == told
            assert number * 12.25 == float(each.args["busbw_gbps"])
    assert 4 == sum(bool(each.link) for track in read_back(path) for each in track.slices)
    assert not any("wait_ns" in each.args for track in read_back(path) for each in track.slices if not each.link)


def test_arrows_follow_the_order_of_arrival(tmp_path: Path) -> None:
    """Chrome's arrows go from the rank that began first, on the common clock, to the last; a lone one has none."""
    timelines = [TimelineBuilder(rank).all_reduce(start, start + 9).build() for rank, start in enumerate((30, 10, 20))]
    run = Run("made", (*timelines, TimelineBuilder(3).all_reduce(5, 5).build()))
    shifts = tuple(Shift(rank, by, 0, lambda times, by=by: times + by) for rank, by in enumerate((0, 0, -15, 0)))  # type: ignore[misc]

    write_trace(run, tmp_path / "x.json", ".json", aligned_run=linked(run, *shifts))

    events = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["traceEvents"]
    flows = sorted((event["ts"], event["ph"], event["pid"]) for event in events if event["ph"] in "stf")
    assert [("s", 3), ("t", 2), ("f", 1)] == [(phase, pid) for _, phase, pid in flows]


def test_clocks_are_moved(tmp_path: Path, suffix: str) -> None:
    """Slices, steps and counters of a rank whose clock is off stand where the others' clocks have them."""
    run = Run("made", two_rank_timelines())
    moved = linked(run, Shift(0), Shift(1, -400, 9, lambda times: times - 400))
    paths = [tmp_path / f"{name}{suffix}" for name in ("raw", "moved")]
    for path, joined in zip(paths, (as_recorded(run), moved), strict=True):
        write_trace(run, path, suffix, aligned_run=joined)

    for before, after in zip(*map(read_back, paths), strict=True):
        by = -400 if before.process.startswith("rank 1") else 0
        assert [(s.start_ns + by, s.end_ns + by) for s in before.slices] == [
            (s.start_ns, s.end_ns) for s in after.slices
        ]
    for one, other in zip(*map(read_counters, paths), strict=True):
        by = -400 if one.process.startswith("rank 1") else 0
        assert [(time + by, value) for time, value in one.points] == other.points


def test_counters_come_back(tmp_path: Path, suffix: str) -> None:
    """Each GPU's counters are in the file, point by point, with times as exact as the slices'."""
    timelines = two_rank_timelines()
    timelines = tuple(replace(each, launch_ns=each.start_ns - 700) for each in timelines)  # type: ignore[assignment]
    run = Run("made", timelines)
    path = tmp_path / f"x{suffix}"
    write_trace(run, path, suffix)

    expected = [
        (
            f"rank {each.rank} · GPU {each.rank} (NVIDIA H100)",
            line.name,
            list(zip(line.time_ns, line.value, strict=True)),
        )
        for each in timelines
        for line in counters(each, exposure(each))
    ]
    assert expected == [(line.process, line.name, line.points) for line in read_counters(path)]
    assert {"bytes in flight", "communication overlapped", "launch queue"} == {name for _, name, _ in expected}


@pytest.mark.heavy
def test_drift_keeps_slices_apart(tmp_path: Path, suffix: str) -> None:
    """Corrected for a drift that rounds, slices and steps still follow each other without gaps."""
    build = TimelineBuilder(0, bounds=(0, 3001, 10_000))
    for start in range(0, 10_000, 7):
        build.compute(start, start + 7)
    run = Run("made", (build.build(),))
    shift = Shift(0, 0, 0, lambda times: times + np.rint(3e-3 * times).astype(np.int64))
    write_trace(
        run, tmp_path / f"x{suffix}", suffix, aligned_run=dataclasses.replace(as_recorded(run), shifts=(shift,))
    )

    for track in read_back(tmp_path / f"x{suffix}"):
        assert all(one.end_ns == other.start_ns for one, other in zip(track.slices, track.slices[1:], strict=False))


def test_waiting_is_reported_of_each_step_and_collective(tmp_path: Path, suffix: str) -> None:
    """Steps have what of their exposed communication is waiting, collectives for whom; nothing where it is unknown."""
    ms = 1_000_000
    comm = Collective("all_reduce", 4_096, "float", "0", 2)
    ranks = [
        TimelineBuilder(rank, bounds=(0, 100 * ms, 200 * ms)).collective(start * ms, 80 * ms, comm)
        for rank, start in enumerate((20, 70))
    ]
    timelines = tuple(build.compute(110 * ms, 150 * ms).build() for build in ranks)
    for count in (2, 1):
        path = tmp_path / f"{count}{suffix}"
        write_trace(Run("made", timelines[:count], world_size=2), path, suffix)
        tracks = read_back(path)
        steps = next(track for track in tracks if track.name == "steps").slices
        stream = next(track for track in tracks if track.name.startswith("stream 20")).slices[0].args
        if count == 2:
            assert [50 * ms, None] == [step.args.get("exposed_wait_ns") for step in steps]
            assert (50 * ms, 1) == (stream["exposed_wait_ns"], stream["waits_for_rank"])
        else:
            assert [60 * ms, 0] == [step.args["exposed_unmatched_ns"] for step in steps]
            assert not {"exposed_wait_ns", "waits_for_rank"} & {*steps[0].args, *stream}


# Clocks are corrected where their offset is known, and members of a collective are linked.

SECOND = 1_000_000_000
AS_RECORDED = "clocks as recorded: no offset exceeds its uncertainty"


@dataclass
class FakeClocks:
    """Clocks with known offsets in the middle of the first second, and known drifts."""

    by_ns: tuple[int, ...]
    uncertainty: tuple[int, ...]
    drift: tuple[float, ...] = (0.0, 0.0, 0.0)
    reference: Int64 = field(default_factory=lambda: np.zeros(3, np.int32))

    @property
    def uncertainty_ns(self) -> Int64:
        return np.array(self.uncertainty, np.int64)

    def align(self, device: int, times: Int64) -> Int64:
        drifted = np.rint(self.drift[device] * (times - SECOND // 2)).astype(np.int64)
        moved: Int64 = times + self.by_ns[device] + drifted
        return moved


def ranks(count: int) -> Run:
    build = (TimelineBuilder(rank, bounds=(0, SECOND)).compute(0, SECOND) for rank in range(count))
    return Run("made", tuple(each.build() for each in build))


def test_a_clock_is_moved_by_more_than_its_uncertainty_only() -> None:
    """A correction smaller than its uncertainty is not applied."""
    shifts = shifts_of(ranks(3).timelines, FakeClocks((0, -412_000, 9_000), (0, 9_000, 9_000)))  # type: ignore[arg-type]

    assert [0, -412_000, 0] == [int(shift(np.array([0], np.int64))[0]) for shift in shifts]
    assert "rank 1 by −412 µs ± 9.00 µs" == str(shifts[1])
    assert [True, False, True] == [shift.move is None for shift in shifts]


def test_a_small_drift_leaves_lengths_as_they_are() -> None:
    """A drift within the uncertainty only shifts; a larger one moves early and late times differently, in order."""
    clocks = FakeClocks((50_000, 50_000, 0), (9_000, 9_000, 9_000), (8e-6, 50e-6, 50e-6))
    times = np.array([0, SECOND // 2, SECOND], np.int64)
    nothing = Run("made", (TimelineBuilder(0, bounds=()).build(),))
    assert shifts_of(nothing.timelines, FakeClocks((5,), (1,)))[0].move is None  # type: ignore[arg-type]

    steady, drifting, around = (shift(times) - times for shift in shifts_of(ranks(3).timelines, clocks))  # type: ignore[arg-type]

    assert [50_000] * 3 == steady.tolist()
    assert [25_000, 50_000, 75_000] == drifting.tolist()
    assert [-25_000, 0, 25_000] == around.tolist()


def test_members_know_each_other_and_their_share() -> None:
    """A collective has one number on both ranks, with each rank's own wait; other intervals have none."""
    run = Run("made", two_rank_timelines())
    matches = match(run.devices)
    transfers = timing(matches, estimate(matches, run.devices))

    for members, wait in zip(members_of(run, matches, transfers), (0, 1_000), strict=True):
        assert [1, 2] == members.instance.tolist()
        assert [wait] * 2 == members.wait_ns.tolist()
        assert [30_000] * 2 == members.transfer_ns.tolist()
        assert [round(4096 / 30_000, 6)] * 2 == members.busbw_gbps.tolist()
        places = members.row_of_interval(len(run.timelines[0]))
        assert [0, 1] == places[members.interval].tolist()
        assert {0, 1, 2} == set(places.tolist())


def test_without_a_counterpart_wait_and_transfer_are_unknown() -> None:
    """A collective of one rank is linked to nothing; with a rank missing, the others may all have waited for it."""
    both = two_rank_timelines()
    alone = Run("made", (both[0], TimelineBuilder(1).compute(0, 9).build()))
    of_three = [
        replace(one, collectives=tuple(replace(each, group_size=3) for each in one.collectives)) for one in both
    ]

    for run, numbered in ((alone, False), (Run("made", tuple(of_three), world_size=3), True)):
        one, other = align_run(run).members
        for members in (one, other):
            assert {-1} >= {*members.wait_ns.tolist(), *members.transfer_ns.tolist(), *members.busbw_gbps.tolist()}
        assert numbered == bool((one.instance > 0).all())


def test_joining_moves_a_clock_that_is_off() -> None:
    """A rank whose clock is 5 ms ahead is moved back by it, unless times are to stay as recorded."""
    steady = [TimelineBuilder(rank, bounds=(0, 60 * 10**6)) for rank in range(2)]
    for k in range(20):
        for rank, build in enumerate(steady):
            begin = 10**6 * k + rank * (k % 3) * 10_000
            build.all_reduce(begin + rank * 5_000_000, 10**6 * k + 500_000 + rank * 5_000_000)
    run = Run("made", tuple(build.build() for build in steady))

    aligned, raw = align_run(run), align_run(run.on_own_clocks())

    assert [0, -5_000_000] == [int(shift(np.zeros(1, np.int64))[0]) for shift in aligned.shifts]
    assert aligned.clock_summary.startswith("clocks aligned: rank 1 by −5.00 ms ± 1.00 µs")
    assert [None, None] == [shift.move for shift in raw.shifts]
    assert "no offset between ranks was corrected" in raw.clock_summary
    for one, other in zip(aligned.members, raw.members, strict=True):
        assert one.wait_ns.tolist() == other.wait_ns.tolist()
        assert list(range(1, 21)) == one.instance.tolist()


# Counters have the right value at every time.

spans = st.tuples(st.integers(0, 40), st.integers(1, 15)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def lines(timeline: Timeline) -> dict[str, Counter]:
    return {counter.name: counter for counter in counters(timeline, exposure(timeline))}


def at(counter: Counter, time: int) -> int:
    """Return the value at a time."""
    index = int(np.searchsorted(counter.time_ns, time, side="right")) - 1
    return int(counter.value[index]) if index >= 0 else 0


@pytest.mark.heavy
@given(st.lists(spans, max_size=6), st.lists(st.tuples(spans, st.integers(0, 9)), min_size=1, max_size=6))
def test_bytes_and_overlap_at_every_moment(
    compute: list[tuple[int, int]], comm: list[tuple[tuple[int, int], int]]
) -> None:
    """Bytes in flight are the sum over running collectives, and overlap is 1 while one runs under compute."""
    build = TimelineBuilder(0)
    for start, end in compute:
        build.compute(start, end)
    for (start, end), size in comm:
        build.all_reduce(start, end, bytes=size)

    found = lines(build.build())

    busy = {time for start, end in compute for time in range(start, end)}
    assert ("bytes in flight" in found) == any(size for _, size in comm)
    for time in range(60):
        running = [size for (start, end), size in comm if start <= time < end]
        assert bool(running and time in busy) == at(found["communication overlapped"], time)
        if "bytes in flight" in found:
            assert sum(running) == at(found["bytes in flight"], time)
    for line in found.values():  # no more points than changes, and a part of a counter loses none
        assert (np.diff(line.time_ns) > 0).all()
        assert (np.diff(line.value) != 0).all()
        assert len(line) == sum(map(len, line.chunks()))


@pytest.mark.heavy
@given(st.lists(st.tuples(st.integers(-1, 40), st.integers(-3, 20)), min_size=1, max_size=12))
def test_the_queue_at_every_moment(work: list[tuple[int, int]]) -> None:
    """Launched work waits until it starts; work without a launch, or with one after its start, is not counted."""
    build = TimelineBuilder(0, bounds=(0, 100))
    for launch, wait in work:
        build.compute(max(launch + wait, 0), max(launch + wait, 0) + 1, name=f"{launch}")
    timeline = build.build()
    launches = np.array([int(timeline.names[name]) for name in timeline.name], np.int64)
    timeline = replace(timeline, launch_ns=launches)

    found = lines(timeline)

    known = [(a, b) for a, b in zip(launches.tolist(), timeline.start_ns.tolist(), strict=True) if UNKNOWN != a <= b]
    assert ("launch queue" in found) == bool(known)
    for time in range(70):
        if known:
            assert sum(launch <= time < start for launch, start in known) == at(found["launch queue"], time)


# Slices of a lane do not overlap, and there are no more lanes than needed.

slices = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=40).map(
    lambda pairs: sorted((start, start + length) for start, length in pairs)
)


def lanes(pairs: list[tuple[int, int]]) -> list[int]:
    starts, ends = (np.array([pair[k] for pair in pairs], np.int64) for k in (0, 1))
    return [int(lane) for lane in assign_lanes(starts, ends)]


@pytest.mark.heavy
@given(slices)
def test_there_are_as_many_lanes_as_slices_at_once(pairs: list[tuple[int, int]]) -> None:
    """No two slices of a lane overlap, and a new lane is opened only when all others are running."""
    given_lanes = lanes(pairs)
    for index, ((start, _), lane) in enumerate(zip(pairs, given_lanes, strict=True)):
        running = {other for (_, end), other in zip(pairs[:index], given_lanes[:index], strict=True) if end > start}
        assert lane == min(set(range(len(pairs))) - running)

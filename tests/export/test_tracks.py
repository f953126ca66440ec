"""Tracks are linked across GPUs: members of a collective, corrected clocks, and counters."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from dptrace.analysis.per_gpu.split import exposure
from dptrace.export.aligned_run import AlignedRun, Members, Shift, without_alignment
from dptrace.export.counters import counters
from dptrace.export.formats import FORMATS, write_trace
from dptrace.run.run import Run
from dptrace.timeline.model import Collective, Kind
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.exported import read_back, read_counters


@pytest.fixture(params=sorted(FORMATS))
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def linked(run: Run, *shifts: Shift) -> AlignedRun:
    """Match the k-th communication of all ranks with each other, and move the clocks."""
    members = []
    for timeline in run.timelines:
        interval = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)
        number = np.arange(1, len(interval) + 1)
        told = number * 10 + timeline.rank
        members.append(Members(interval, number, number + 2, told, told + 5, (number * 12.25).astype(np.float64)))
    return AlignedRun(shifts or without_alignment(run).shifts, tuple(members), bool(shifts))


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
    for path, joined in zip(paths, (without_alignment(run), moved), strict=True):
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


def test_unknown_times_are_left_out(tmp_path: Path, suffix: str) -> None:
    """Where a rank is missing, a collective's slices are linked, and have neither wait nor transfer nor bandwidth."""
    run = Run("made", two_rank_timelines())
    joined = linked(run)
    none = {name: np.full(2, -1) for name in ("wait_ns", "transfer_ns", "busbw_gbps")}
    joined = dataclasses.replace(joined, members=tuple(dataclasses.replace(each, **none) for each in joined.members))
    write_trace(run, tmp_path / f"x{suffix}", suffix, aligned_run=joined)

    args = [each.args for track in read_back(tmp_path / f"x{suffix}") for each in track.slices if each.link]
    assert 4 == len(args)
    for each in args:
        assert not {"wait_ns", "transfer_ns", "busbw_gbps"} & set(each)


@pytest.mark.heavy
def test_drift_keeps_slices_apart(tmp_path: Path, suffix: str) -> None:
    """Corrected for a drift that rounds, slices and steps still follow each other without gaps."""
    build = TimelineBuilder(0, bounds=(0, 3001, 10_000))
    for start in range(0, 10_000, 7):
        build.compute(start, start + 7)
    run = Run("made", (build.build(),))
    shift = Shift(0, 0, 0, lambda times: times + np.rint(3e-3 * times).astype(np.int64))
    write_trace(
        run, tmp_path / f"x{suffix}", suffix, aligned_run=dataclasses.replace(without_alignment(run), shifts=(shift,))
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

"""The analysis across ranks."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import dptrace
from dptrace.analysis.findings.finding import FindingContext
from dptrace.analysis.findings.stragglers import measured_waiting
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.analysis.per_gpu.split import COMPUTE
from dptrace.load.open import open_run
from dptrace.replay.findings import findings_of
from dptrace.run.cross_rank import (
    CrossRankAnalysis,
    analyze_cross_rank,
    exclusive_ns,
    gradient_transfers,
    mean_step,
    ready_before_last,
    ready_ns,
)
from dptrace.run.run import Run
from dptrace.timeline.model import Collective, Phase
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.jobs import job
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.rank_cases import cut, of_trace, rank, real_ranks, real_traces, reduce, shifted
from tests.support.real_traces import REAL, needs_real_traces

INPUTS = REAL.parent / "inputs"


def run_of_two(ahead_ns: int = 0) -> Run:
    first, second = two_rank_timelines()
    windows = replace(second.windows, bounds=second.windows.bounds + ahead_ns)
    second = replace(second, start_ns=second.start_ns + ahead_ns, end_ns=second.end_ns + ahead_ns, windows=windows)
    return Run("r", (first, second), world_size=2)


def test_plain_data_holds_what_was_reported() -> None:
    """Collectives with their ranks, clocks, stragglers, distributions, fits and findings are JSON data."""
    data = json.loads(json.dumps(run_of_two().to_dict()))
    row = data["collectives"][0]

    assert ("all_reduce", "ProfilerStep#0", 4096, True) == (row["kind"], row["step"], row["bytes"], row["complete"])
    assert [0, 1] == [member["rank"] for member in row["members"]]
    assert row["transfer_ns"] == min(m["end_ns"] - m["start_ns"] for m in row["members"])
    assert all(m["wait_ns"] == m["end_ns"] - m["start_ns"] - row["transfer_ns"] for m in row["members"])
    assert {"offset_ns", "uncertainty_ns", "rank"} <= set(data["clocks"][1])
    assert 2 == sum(latency["count"] for latency in data["latencies"])
    assert {"kind", "alpha_ns", "reason"} <= set(data["alpha_beta"][0])
    assert [0, 0] == [entry["count"] for entry in data["unmatched"]]


def test_what_was_launched_before_the_recording_comes_last() -> None:
    """However long such collectives take, and under a name that says so; one whose size is known is as any other."""
    bare = Collective("all_reduce", 0, "", "default_pg", 2)
    ranks = [TimelineBuilder(rank).collective(0, 50, bare).all_reduce(60, 70).build() for rank in range(2)]
    run = Run("r", tuple(ranks), world_size=2)

    assert [(None, 4096), ("launched before recording", None)] == [
        (row["name"], row["bytes"]) for row in run.to_dict()["latencies"]
    ]
    ranks = [replace(rank, launch_ns=rank.start_ns) for rank in ranks]
    run = Run("r", tuple(ranks), world_size=2)
    assert [(None, None), (None, 4096)] == [(row["name"], row["bytes"]) for row in run.to_dict()["latencies"]]


def test_clocks_are_left_alone_when_asked() -> None:
    """A clock a second ahead is corrected; --no-align uses the times as they are; waits are the same."""
    run = run_of_two(10**9)
    aligned, raw = run.cross_rank, analyze_cross_rank(run.devices, 2, align=False)

    assert 10**9 <= abs(int(aligned.clocks.offset_ns[1])) <= 10**9 + 2000
    assert int(aligned.timing.late_ns.max()) < 10_000
    assert int(raw.timing.late_ns.max()) >= 10**9
    assert np.array_equal(aligned.timing.wait_ns, raw.timing.wait_ns)


def test_raw_times_make_nobody_late() -> None:
    """With --no-align stragglers are found by the waits of the others, and a note says that times are raw."""
    raw = run_of_two(10**9).on_own_clocks().cross_rank

    assert all(row["late_ns"] < 10**6 for row in raw.straggler_rows())
    assert any("--no-align" in note for note in raw.notes)


UNKNOWN_IN_COLLECTIVES = ("transfer_ns", "algbw_gbps", "busbw_gbps", "last_rank")
UNKNOWN_IN_MEMBERS = ("wait_ns", "late_ns")


def analysis_of(*devices: DeviceFigures) -> CrossRankAnalysis:
    return analyze_cross_rank(devices, len(devices))


def check_incomplete(across: CrossRankAnalysis) -> None:
    """Hold that no figure that needs all ranks is given for a collective that lacks some."""
    rows = across.collectives()
    for row in rows:
        if not row["complete"]:
            assert {None} == {row[key] for key in UNKNOWN_IN_COLLECTIVES}
            assert {None} == {member[key] for member in row["members"] for key in UNKNOWN_IN_MEMBERS}
        else:
            shortest = min(member["end_ns"] - member["start_ns"] for member in row["members"])
            assert shortest == row["transfer_ns"]
    assert all(rows[row["collective"]]["complete"] for row in across.straggler_rows())
    assert all(rows[i]["complete"] for latency in across.latencies for i in latency.instances.tolist())
    complete = sum(row["complete"] for row in rows)
    assert sum(fit.count for fit in across.fits) <= complete


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize(("job", "missing"), [("sharded_h100_8ranks", 5), ("dlrm_v100_4ranks", 2)])
def test_where_part_of_a_rank_is_missing_its_collectives_are_incomplete(job: str, missing: int) -> None:
    """Cut away the first third of one rank: what is left of it matches as before, the rest gives no figure."""
    whole = list(real_ranks(job))
    part = [*whole]
    part[missing] = of_trace(cut(real_traces(job)[missing], 1 / 3, 1))
    before, after = analysis_of(*whole), analysis_of(*part)

    check_incomplete(after)
    starts = {(m["rank"], m["start_ns"]) for row in after.collectives() for m in row["members"] if m["rank"] == missing}
    known = {(m["rank"], m["start_ns"]): row for row in before.collectives() for m in row["members"]}
    for row in after.collectives():
        same = known[row["members"][0]["rank"], row["members"][0]["start_ns"]]
        gone = {(m["rank"], m["start_ns"]) for m in same["members"] if m["rank"] == missing} - starts
        assert row["complete"] == (same["complete"] and not gone)
        if row["complete"]:
            assert same["transfer_ns"] == row["transfer_ns"]
            assert [m["wait_ns"] for m in same["members"]] == [m["wait_ns"] for m in row["members"]]
    incomplete = sum(not row["complete"] for row in after.collectives())
    assert incomplete > sum(not row["complete"] for row in before.collectives())


def test_the_cause_of_collectives_that_lack_a_rank_is_said(tmp_path: Path) -> None:
    """A rank is not here: the recording is not said to be cut, too. With all here, one begins late or ends early."""
    for number, steps in ((0, 2), (1, 3)):
        file = KinetoFile(rank=number, world_size=2)
        for step in range(steps):
            training_step(file, step, 100 * step)
        file.write(tmp_path / f"rank{number}.json")

    (note,) = dptrace.open(tmp_path / "rank1.json").cross_rank.notes
    notes = dptrace.open(tmp_path).cross_rank.notes

    assert "3 collectives" in note
    assert "ranks not in this run" in note
    assert any("1 of 3 collectives" in note for note in notes)
    assert not any("ranks not in this run" in note for note in notes)


def test_aligned_times_follow_from_the_clock_rows() -> None:
    """t - offset_ns - drift_ppm * 1e-6 * (t - at_ns) is the time that a drifting clock is corrected to."""
    calls = [reduce(0, 1_000_000 * k) for k in range(1, 400)]
    run = Run("r", tuple(d.timeline for d in (rank(0, calls), shifted(rank(1, calls), 7_000_000, ppm=30.0))))
    clocks, row = run.cross_rank.clocks, run.clock_offsets().iloc[1]

    assert row["corrected"]
    assert pytest.approx(30.0, rel=0.01) == row["drift_ppm"]
    times = run.timelines[1].start_ns
    aligned = times - row["offset_ns"] - row["drift_ppm"] * 1e-6 * (times - row["at_ns"])
    assert np.abs(aligned - clocks.align(1, times)).max() <= 1
    assert np.abs(aligned - run.timelines[0].start_ns).max() <= row["uncertainty_ns"]


# When DDP's buckets were ready, and how long their transfers took.


TRACE = "traces/ddp_4mb_cpu_2ranks"


def test_what_runs_at_once_shares_the_time() -> None:
    """Checked by counting every nanosecond: the parts add up to the time in which any collective ran."""
    for seed in range(20):
        draw = random.Random(seed)
        start = np.array([draw.randrange(60) for _ in range(draw.randint(1, 7))], np.int64)
        end = start + np.array([draw.randint(0, 30) for _ in start], np.int64)
        plainly = np.zeros(len(start))
        for at in range(100):
            running = (start <= at) & (at < end)
            plainly += running / max(running.sum(), 1)
        assert exclusive_ns(start, end) == pytest.approx(plainly)


def test_a_bucket_is_ready_when_the_compute_before_it_has_ended() -> None:
    """On a GPU, launches run ahead, so neither the launch nor a free link shows when the data was ready."""
    build = TimelineBuilder(0, bounds=(0, 1000)).compute(10, 50, Phase.BACKWARD).all_reduce(50, 70)
    timeline = build.compute(50, 80, Phase.BACKWARD).all_reduce(90, 120).build()

    assert ready_ns(replace(timeline, launch_ns=np.array([1, 2, 3, 4]))).tolist() == [50, 80]


def test_buckets_become_ready_one_after_the_other_until_backward_ends() -> None:
    """In the recording with three buckets, the last is at 0, as in every run, and the others are before it."""
    cross_rank = open_run([TRACE]).cross_rank
    ready = ready_before_last(cross_rank)

    assert len(ready) == 3
    assert ready[-1] == 0
    assert -0.2 < ready[0] < ready[1] < 0


def test_without_buckets_nothing_is_known_of_them() -> None:
    """The all-reduces of another trainer have sizes and times, but no bucket."""
    ranks = [rank(number, [reduce(0, 100_000), reduce(1, 300_000)]) for number in (0, 1)]

    assert ready_before_last(analyze_cross_rank(ranks, 2, {}, True)) == ()


def test_what_was_sent_is_reported_with_its_own_time() -> None:
    """A transfer never takes longer than the shortest of its ranks' durations; all transfers of the run are there."""
    cross_rank = open_run([TRACE]).cross_rank
    found = gradient_transfers(cross_rank)

    assert {size for size, _ in found} == {10512424, 16785408, 6430720}
    assert len(found) == 12
    for (_, seconds), transfer in zip(found, cross_rank.timing.transfer_ns.tolist(), strict=True):
        assert 0 < seconds <= transfer / 1e9
    assert gradient_transfers(analyze_cross_rank([rank(0, [])], 1, {}, True)) == ()


# The mean step, which headlines and tables are of.


def test_parts_of_the_mean_step_add_up() -> None:
    """Whatever a single step takes; a step whose length is far from the median is named."""
    found = mean_step(job(steps=3, first=4).cross_rank)

    assert found is not None
    whole = ("wall_ns", "overlapped_comm_ns", COMPUTE)
    parts = sum(ns or 0 for name, ns in found.figures_ns.items() if name not in whole)
    assert found.wall_ns == pytest.approx(parts)
    assert found.figures_ns["exposed_comm_ns"] == pytest.approx(sum(found.exposed_ns.values()))
    assert ("ProfilerStep#4", ["ProfilerStep#4"]) == (found.longest, list(found.apart_ns))
    assert found.wall_ns == pytest.approx(2 * found.median_ns, rel=0.05)
    assert {} == mean_step(job(steps=3).cross_rank).apart_ns  # type: ignore[union-attr]


def test_ranks_without_a_step_have_no_mean() -> None:
    """Nor is there one in the JSON."""
    run = Run("r", ())

    assert mean_step(run.cross_rank) is None
    assert run.to_dict()["mean_step"] is None


def pair_of(first: int, second: int, name: str) -> dict[str, Any]:
    """Describe a process group of two ranks."""
    return {"group": name, "group_size": 2, "ranks": (first, second)}


def test_a_group_of_two_names_is_said_to_be_one() -> None:
    """Where ranks name a group differently, recordings are not to blame; where a rank has both names, they are."""
    both, single = (pair_of(0, 1, name) for name in "34")
    ends = [1_000_000 * n for n in range(1, 9)]
    apart = analysis_of(rank(0, [reduce(0, e, **both) for e in ends]), rank(1, [reduce(0, e, **single) for e in ends]))
    cut = analysis_of(
        rank(0, [*(reduce(0, e, **both) for e in ends), reduce(0, 9_000_000, **single)]),
        rank(1, [reduce(0, e, **single) for e in ends]),
    )

    assert any("'3' on rank 0 and '4' on rank 1" in note for note in apart.notes)
    assert not any("recordings begin or end apart" in note for note in apart.notes)
    assert any("recordings begin or end apart" in note for note in cut.notes)


def test_a_collective_that_one_rank_lacks_is_between_others_or_not() -> None:
    """An event that is missing between others is none of a recording that begins or ends apart."""
    every = [reduce(0, 1_000_000 * n, seq=n, **pair_of(0, 1, "3")) for n in range(1, 9)]
    for lost, begin_apart in ((0, True), (4, False), (7, True)):
        found = analysis_of(rank(0, every), rank(1, [one for n, one in enumerate(every) if n != lost]))
        (note,) = [note for note in found.notes if "lacks a rank" in note]
        assert begin_apart == ("recordings begin or end apart" in note)


def two_gpus_of_one_rank(early: int, late: int) -> CrossRankAnalysis:
    """Two GPUs of rank 0 reduce together; the second arrives late by the difference of the lengths in ns."""
    ends = [10_000_000 * n for n in range(1, 9)]
    about = pair_of(0, 1, "0")
    first = rank(0, [reduce(n // 4, end, length=early, **about) for n, end in enumerate(ends)])
    second = shifted(rank(1, [reduce(n // 4, end, length=late, **about) for n, end in enumerate(ends)]), 900_000)
    return analysis_of(first, replace(second, timeline=replace(second.timeline, rank=0)))


def test_no_rank_waits_for_itself_or_has_a_clock_ahead_of_its_own() -> None:
    """GPUs of one rank are named by their numbers, and a wait of one for the other is for no rank."""
    across = two_gpus_of_one_rank(6_000_000, 100_000)

    assert any("Rank 0 GPU 1's clock is 900 µs ahead of rank 0 GPU 0's" in note for note in across.notes)
    assert {-1} == set(across.exposed_waits[0].calls.waits_for.tolist())
    (finding,) = measured_waiting(FindingContext(across))
    assert finding.text.startswith("A GPU of rank 0 waits for another")


def test_waiting_is_no_more_than_the_step() -> None:
    """A rank that keeps five process groups waiting loses the time once, and none before its own steps."""
    ends = [110_000_000 * n for n in range(1, 5)]
    groups = {i: pair_of(0, i, f"g{i}") for i in range(1, 6)}
    late = [
        reduce(n // 2, end + 1_000 * i, length=1_000, **about)
        for i, about in groups.items()
        for n, end in enumerate(ends)
    ]
    waiting = [
        rank(i, [reduce(n // 2, end + 1_000 * i, length=100_000_000, **about) for n, end in enumerate(ends)])
        for i, about in groups.items()
    ]
    (finding,) = measured_waiting(FindingContext(analysis_of(rank(0, late), *waiting)))

    assert 0.5 < finding.share <= 1


@pytest.mark.heavy
@pytest.mark.skipif(not INPUTS.exists(), reason=f"the inputs are not here ({INPUTS})")
@pytest.mark.parametrize("name", ["files/nc_finding_112_percent", "plants/mesh_opt"])
def test_findings_gain_no_more_than_the_step(name: str) -> None:
    """Durations are damaged, so that none can be made; a rank is late in two groups."""
    run = dptrace.open(INPUTS / name)
    findings = findings_of(run)

    assert run.is_limited or any(finding.kind == "straggler" for finding in findings)
    assert all(finding.share <= 1 for finding in findings)

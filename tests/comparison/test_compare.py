"""Comparisons of runs whose differences are known."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dptrace.comparison.changes import PARTS
from dptrace.comparison.compare import Comparison, compare
from dptrace.errors import DptraceError, UsageError
from dptrace.load.open import open_run
from dptrace.load.options import ReadOptions
from dptrace.run.run import Run
from dptrace.timeline.model import COLUMNS, Phase, Timeline, Windows
from dptrace.timeline.steps import select_steps
from tests.support.builders import TimelineBuilder
from tests.support.jobs import LENGTHS, job, run_of
from tests.support.real_traces import needs_real_traces, real

TRACES = Path(__file__).resolve().parents[2] / "traces"


@cache
def recorded(name: str) -> Run:
    return open_run([str(TRACES / name)])


def named(found: Comparison) -> dict[str, float]:
    """Return the changes beyond noise, in percent of A."""
    return {change.name: change.delta_percent or 0 for change in found.changes if change.beyond}


def half(timeline: Timeline, odd: int) -> Timeline:
    """Keep every second step, without the gaps."""
    bounds: list[int] = [0]
    names: list[str] = []
    parts: list[Timeline] = []
    for k in range(odd, len(timeline.windows), 2):
        selected = select_steps(timeline, k, k)
        part = selected.filter(selected.step >= 0)
        by = bounds[-1] - int(part.windows.bounds[0])
        step = np.full(len(part), len(names), np.int32)
        parts.append(replace(part, start_ns=part.start_ns + by, end_ns=part.end_ns + by, step=step))
        bounds.append(bounds[-1] + int(np.diff(part.windows.bounds)[0]))
        names.append(part.windows.names[0])
    whole = replace(timeline, windows=Windows(tuple(names), np.array(bounds)))
    for column in COLUMNS:
        object.__setattr__(whole, column, np.concatenate([getattr(part, column) for part in parts]))
    return whole


def halves(run: Run) -> Comparison:
    """Compare the even steps of a run with the odd ones."""
    even, odd = (run_of([half(timeline, odd) for timeline in run.timelines]) for odd in (0, 1))
    return compare(even, odd)


@pytest.mark.parametrize("name", ["naive_cpu_2ranks", "single_cpu"])
def test_a_run_against_itself(name: str) -> None:
    """Nothing differs, whatever its noise."""
    found = compare(recorded(name), recorded(name))

    assert "No difference beyond noise: every figure is the same to the nanosecond." == found.summary()
    assert {"same"} == {change.verdict for change in found.changes}
    assert {0} == {row.time.delta for row in found.kernel_changes}
    assert () == found.differences


@pytest.mark.parametrize("seed", range(4))
def test_two_recordings_of_the_same_thing(seed: int) -> None:
    """No difference beyond noise, in any of the tables."""
    found = compare(job(steps=6, seed=2 * seed, noise=0.02), job(steps=6, seed=2 * seed + 1, noise=0.02))

    assert {} == named(found)
    assert not any(row.time.beyond for row in found.kernel_changes)
    assert not any(row.exposed.beyond for row in found.collective_changes)


@pytest.mark.parametrize("seed", range(3))
def test_halves_of_one_run(seed: int) -> None:
    """Odd steps against even steps: no difference beyond noise."""
    run = job(steps=16, seed=seed, noise=0.02)
    found = halves(run)

    assert 8 == len(found.a.steps) == len(found.b.steps)
    assert {} == named(found)


@needs_real_traces
@pytest.mark.parametrize("name", ["sharded_h100_8ranks", "perparam_v100_rank1of2"])
def test_halves_of_a_real_run(name: str) -> None:
    """No change is named: two or three steps are too few, or the halves' steps are of different kinds."""
    run = open_run([real(name)])
    found = halves(run)

    assert {} == named(found)
    assert found.too_few_steps is not None
    assert found.summary().startswith("Cannot tell")


def test_naive_against_interleaved() -> None:
    """Communication that only B overlaps is named; four noisy steps cannot tell the rest."""
    found = compare(recorded("naive_cpu_2ranks"), recorded("interleaved_cpu_2ranks"))

    assert {"overlapped_comm_ns"} == set(named(found))
    assert found.change("overlapped_comm_ns").delta > 20e6
    assert "cannot tell" == found.change("wall_ns").verdict
    assert "overlapped communication +29.8 ms" in found.summary()
    assert ("Mode: A naive, B interleaved.",) == found.differences


@pytest.mark.parametrize("seed", range(3))
def test_a_longer_backward_and_nothing_else(seed: int) -> None:
    """Each backward kernel 10 % longer: backward +10 %, and the wall by as much."""
    found = compare(job(seed=seed), job(seed=seed + 10, factors={"backward": 1.1}))
    moved = named(found)

    assert {"backward_ns", "wall_ns"} == set(moved)
    assert moved["backward_ns"] == pytest.approx(10, abs=1)
    assert {"gemm_backward", "relu"} == {row.time.name for row in found.kernel_changes if row.time.beyond}
    summary = found.summary()
    assert "B is " in summary
    assert "slower per step: backward +" in summary
    assert "forward" not in summary


def test_three_steps_are_no_claim() -> None:
    """With three steps, even a backward twice as long is reported as undecided."""
    found = compare(job(steps=3), job(steps=3, seed=1, factors={"backward": 2}))

    assert {} == named(found)
    assert "cannot tell" == found.change("backward_ns").verdict
    assert found.summary().startswith("Cannot tell, with 3 steps per run: B was ")
    assert "backward +" in found.summary()
    assert "3 and 2 steps" == compare(job(steps=3), job(steps=2)).too_few_steps


def test_a_slow_first_step_is_no_difference() -> None:
    """It is left out, and a note names it with its length."""
    found = compare(job(steps=8), job(steps=8, seed=1, first=3))

    assert {} == named(found)
    assert any(note.startswith("B: ") and "ProfilerStep#4 (" in note for note in found.notes)
    kept = compare(job(steps=8), job(steps=8, seed=1, first=3), every_step=True)
    assert kept.change("wall_ns").b > 1.2 * found.change("wall_ns").b


def test_runs_of_different_sizes_are_compared_rank_for_rank_on_average() -> None:
    """The ranks in both runs are also compared one by one."""
    found = compare(job(ranks=2), job(ranks=4, seed=1))

    assert found.change("wall_ns").delta_percent == pytest.approx(0, abs=1)
    assert [(0, 0), (1, 0)] == [place for place, _ in found.by_rank]
    assert "A had 2 ranks, B 4" in found.differences[0]


def test_ranks_that_one_run_lacks_are_left_out_of_the_other() -> None:
    """A straggler that has a trace in one run only does not count as a change."""
    b = job(ranks=4, seed=1)
    found = compare(job(ranks=4), replace(b, timelines=b.timelines[1:], devices=()))

    assert ((1, 0), (2, 0), (3, 0)) == found.a.device_ids == found.b.device_ids
    assert "3 of 4 ranks" in found.differences[0]


def test_cpu_against_gpu_is_compared_and_said() -> None:
    """Figures are compared; kernels share no name."""
    cpu = run_of([replace(timeline, device=-1, device_name="CPU") for timeline in job().timelines])

    assert "operators on CPUs" in compare(cpu, job()).differences[0]


def test_the_dictionary_holds_everything_as_json() -> None:
    """The schema of the documentation; parts add up in it."""
    found = compare(job(), job(seed=1, factors={"backward": 1.1}))
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    rows = {row["figure"]: row for row in data["figures"]}

    assert {
        "schema",
        "summary",
        "a",
        "b",
        "before",
        "after",
        "differs",
        "figures",
        "overlap",
        "wait_and_transfer",
        "kinds",
        "ranks",
        "collectives",
        "kernels",
        "notes",
    } == set(data)
    assert 1 == data["schema"]
    assert rows["wall_ns"]["delta_ns"] == sum(rows[name]["delta_ns"] for name in PARTS)
    assert rows["backward_ns"]["delta_ns"] == rows["backward_ns"]["b_ns"] - rows["backward_ns"]["a_ns"]
    assert "beyond noise" == rows["backward_ns"]["verdict"]
    assert {0, 1} == {row["rank"] for row in data["ranks"]}
    assert isinstance(data["overlap"]["a_percent"], float)


def test_frames_hold_the_same() -> None:
    """A row for each figure, rank, collective and kernel."""
    found = compare(job(), job(seed=1))

    assert 14 == len(found.figures())
    assert 28 == len(found.ranks())
    assert ["all_reduce"] == found.collectives()["kind"].tolist()
    assert {"gemm<float>(int)", "gemm_backward", "relu", "adam"} == set(found.kernels()["name"])


def test_frames_without_rows_have_their_columns() -> None:
    """A run without communication."""
    alone = compare(recorded("single_cpu"), recorded("single_cpu")).collectives()

    assert (0, "kind") == (len(alone), alone.columns[0])
    assert alone.columns.tolist() == compare(job(), job()).collectives().columns.tolist()


def test_a_run_opened_for_its_figures_has_no_kernels_to_compare() -> None:
    """All other changes are the same, and a note says that kernels are not compared."""
    path = str(TRACES / "naive_cpu_2ranks")
    thin = open_run([path], ReadOptions(figures_only=True))
    found, full = (
        compare(thin, recorded("interleaved_cpu_2ranks")),
        compare(recorded("naive_cpu_2ranks"), recorded("interleaved_cpu_2ranks")),
    )

    assert () == found.kernel_changes
    assert found.changes == full.changes
    assert found.collective_changes == full.collective_changes
    assert any("Kernels are not compared" in note for note in found.notes)


def test_intervals_are_needed_for_no_figure() -> None:
    """The figures of a run opened with figures_only are those of the whole run."""
    thin = open_run([str(TRACES / "single_cpu")], ReadOptions(figures_only=True))

    with pytest.raises(DptraceError):
        thin.kernels()
    assert {"same"} == {change.verdict for change in compare(thin, recorded("single_cpu")).changes}


@pytest.mark.parametrize(("old", "new"), [("differs", "differences"), ("few", "too_few_steps")])
def test_old_names_warn_and_give_the_same(old: str, new: str) -> None:
    """Code written for version 0.1 works for one more release."""
    found = compare(job(steps=3), job(steps=3, ranks=1))

    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(found, new) == getattr(found, old)


def alternating(steps: int = 12, seed: int = 0, start: int = 0, exposed: float = 1.0, extra: int = 40_000_000) -> Run:
    """Make a run in which every second step is longer and has the optimizer and a further collective."""
    draw = np.random.default_rng(seed)
    timelines = []
    for rank in (0, 1):
        bounds, build = [1_000_000_000], TimelineBuilder(rank)
        for k in range(start, start + steps):
            length = int(60_000_000 * (1 + 0.002 * draw.standard_normal()))
            at, end = bounds[-1], bounds[-1] + length + extra * (k % 2)
            build.compute(at, at + length - 20_000_000, Phase.BACKWARD)
            build.all_reduce(at + length - 20_000_000, at + length)
            if k % 2:
                comm = int(10_000_000 * exposed)
                build.all_reduce(at + length, at + length + comm)
                build.compute(at + length + comm, end, Phase.OPTIMIZER, "adam")
            bounds.append(end)
        build.bounds = tuple(bounds)
        timelines.append(build.build())
    return run_of(timelines)


def test_alternating_steps_are_compared_with_their_like() -> None:
    """A change in every second step, smaller than the distance of the kinds, is named, with its kind."""
    found = compare(alternating(), alternating(seed=1, exposed=1.5))

    assert found.change("exposed_comm_ns").beyond
    assert 2 == len(found.kinds)
    without, with_optimizer = sorted(found.kinds, key=lambda kind: "with optimizer" in kind.kind)
    moved = {change.name for change in with_optimizer.changes if change.beyond}
    assert "exposed_comm_ns" in moved
    assert not any(change.beyond for change in without.changes)
    assert (6, 6) == (without.a_steps, without.b_steps)
    assert found.change("exposed_comm_ns").delta == pytest.approx(2.5e6, rel=0.2)


def test_another_mix_of_kinds_is_no_difference() -> None:
    """A has one more of the longer steps, B one more of the shorter ones."""
    found = compare(alternating(steps=9, start=1), alternating(steps=9, seed=1))

    assert {} == named(found)
    assert abs(found.change("wall_ns").delta) < 0.5e6


def test_a_kind_that_one_side_lacks_cannot_be_told() -> None:
    """Its steps are left out, and a note names the kind and the side."""
    both = alternating()
    only_short = halves_of(both, 0)
    found = compare(both, only_short)

    assert 6 == len(found.a.steps)
    assert {} == named(found)
    assert any("only in A" in note and "6 steps" in note for note in found.notes)


def test_sides_without_a_common_kind_cannot_be_compared() -> None:
    """However large the difference."""
    run = alternating()
    found = compare(halves_of(run, 0), halves_of(run, 1))

    assert {} == named(found)
    assert found.summary().startswith("Cannot tell")
    assert "only B's run the optimizer" in found.summary()


def halves_of(run: Run, odd: int) -> Run:
    return run_of([half(timeline, odd) for timeline in run.timelines])


def several(seeds: range, scale: float = 1.0, wander: float = 0.0) -> list[Run]:
    """Make recordings of one job on a machine whose speed changes from recording to recording."""
    draw = np.random.default_rng(seeds.start)
    runs = []
    for seed in seeds:
        speed = scale * (1 + wander * draw.standard_normal())
        runs.append(job(seed=seed, path=f"runs/{seed}", factors=dict.fromkeys(LENGTHS, speed)))
    return runs


def test_recordings_that_differ_among_themselves_make_no_claim() -> None:
    """Two of them would be called different; three of each side show that starts differ as much."""
    a, b = several(range(3), wander=0.1), several(range(3, 6), wander=0.1)
    found = compare(a, b)

    assert compare(a[0], b[0]).change("wall_ns").beyond
    assert {} == named(found)
    assert found.several
    assert (3, 3) == (len(found.before), len(found.after))
    assert "cannot tell" == found.change("wall_ns").verdict


def test_recordings_that_agree_show_a_change() -> None:
    """A job that is 5 % slower in three recordings than in three others; the means are those of the recordings."""
    a, b = several(range(3), wander=0.002), several(range(3, 6), 1.05, 0.002)
    found = compare(a, b)
    walls = [run.splits[0].figures["wall_ns"].mean() / 2 + run.splits[1].figures["wall_ns"].mean() / 2 for run in a]

    assert found.change("wall_ns").beyond
    assert found.change("wall_ns").a == pytest.approx(np.mean(walls), rel=1e-6)
    assert found.summary().startswith("B is ")
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [f"runs/{k}" for k in range(3)] == [side["run"] for side in data["before"]]
    assert data["figures"][-6]["detectable_ns"] > 0


def test_recordings_made_one_side_after_the_other_are_noted() -> None:
    """A drifting machine looks like a change; alternating recordings have no such note."""

    def made(seed: int, hour: int) -> Run:
        return job(seed=seed, metadata={"created": f"2026-01-01T{hour:02}:00:00+00:00"})

    apart = compare([made(0, 1), made(1, 2)], [made(2, 3), made(3, 4)])
    mixed = compare([made(0, 1), made(1, 3)], [made(2, 2), made(3, 4)])

    assert any("Alternate" in note for note in apart.notes)
    assert not any("Alternate" in note for note in mixed.notes)


def test_a_recording_counts_once() -> None:
    """A copy is no further evidence, and a recording on both sides no difference."""
    a, b = job(), job(seed=1)
    for before, after in (([a, a], [b]), ([a, b], [b]), ([], [b])):
        with pytest.raises(UsageError):
            compare(before, after)


def test_limits_are_checked_in_python() -> None:
    """By the grammar of --fail-if."""
    found = compare(job(), job(seed=1, factors={"backward": 1.1}))

    assert found.check("backward > +5%").failed
    assert not found.check("forward > +5%").failed
    assert not found.check("transfer > +5%").crossed
    with pytest.raises(UsageError):
        found.check("backward")


def test_a_longer_transfer_is_named_apart_from_waiting() -> None:
    """Each rank's all-reduce takes longer by as much: the transfer does, the wait does not."""
    found = compare(job(ranks=2), job(ranks=2, seed=1, factors={"exposed": 1.5}))
    transfer, wait = (found.change(name) for name in ("transfer_ns", "wait_ns"))
    (row,) = found.collective_changes

    assert transfer.beyond
    assert transfer.delta_percent == pytest.approx(50, abs=3)
    assert not wait.beyond
    assert row.transfer is not None
    assert row.transfer.delta == pytest.approx(transfer.delta)
    assert row.to_dict()["transfer_verdict"] == "beyond noise"


def test_what_lacks_a_rank_has_no_transfer() -> None:
    """One rank's trace of a job of two: nothing shows how long it waited."""
    a, b = (job(seed=seed, world_size=2) for seed in (0, 1))
    one_rank = [replace(run, timelines=run.timelines[:1], devices=()) for run in (a, b)]
    found = compare(one_rank[0], one_rank[1])

    assert () == found.wait_and_transfer
    assert {None} == {row.transfer for row in found.collective_changes}
    assert "no collective" in found.check("transfer > +5%").text


@needs_real_traces
@pytest.mark.slow
def test_a_longer_all_gather_is_found(tmp_path: Path) -> None:
    """Durations stretched by a fifth in copies of eight ranks' traces of four steps of two kinds."""
    stretch(Path(real("sharded_h100_8ranks")), tmp_path)
    found = compare(open_run([real("sharded_h100_8ranks")]), open_run([str(tmp_path)]))
    moved = [row for row in found.collective_changes if row.transfer is not None and row.transfer.beyond]

    assert {"all_gather"} == {row.collective.kind for row in moved}
    assert [row.transfer.delta_percent for row in moved if row.transfer] == pytest.approx([20], abs=1)
    assert "all_gather" in found.summary()
    assert 2 == len(found.kinds)


def stretch(folder: Path, target: Path) -> None:
    """Copy traces with every all-gather 20 % longer."""
    for path in folder.iterdir():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            trace = json.load(file)
        for event in trace["traceEvents"]:
            if event.get("cat") == "kernel" and "AllGather" in event["name"]:
                event["dur"] *= 1.2
        with gzip.open(target / path.name, "wt", compresslevel=1, encoding="utf-8") as file:
            json.dump(trace, file)

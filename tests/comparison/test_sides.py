"""Several recordings per side, limits in Python, and waiting apart from transfer."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from msgspec.structs import force_setattr, replace

from dptrace import Run
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.comparison.compare import Comparison, compare, shared_notes
from dptrace.comparison.sides import (
    COLLECTIVE_VALUES,
    devices_by_id,
    differences,
    drawn_differences,
    incomparable,
    kernel_name,
    sample_run,
    two_lengths,
)
from dptrace.errors import DptraceError, UsageError
from dptrace.timeline.model import COLUMNS, Phase, Timeline, Windows
from dptrace.timeline.steps import select_steps
from tests.support.builders import TimelineBuilder
from tests.support.jobs import LENGTHS, job, run_of


def several(seeds: range, scale: float = 1.0, wander: float = 0.0) -> list[Run]:
    """Make recordings of one job on a machine whose speed changes from recording to recording."""
    draw = np.random.default_rng(seeds.start)
    speeds = [scale * (1 + wander * draw.standard_normal()) for _ in seeds]
    return [
        job(seed=seed, path=f"runs/{seed}", factors=dict.fromkeys(LENGTHS, speed))
        for seed, speed in zip(seeds, speeds, strict=True)
    ]


def some_ranks(run: Run, first: int, end: int) -> Run:
    """Leave out the traces of the others."""
    return dataclasses.replace(run, timelines=run.timelines[first:end], devices=())


def moved(found: Comparison) -> set[str]:
    """Return the names of the changes beyond noise."""
    return {change.name for change in found.changes if change.beyond}


@pytest.mark.heavy
def test_recordings_that_differ_among_themselves_make_no_claim() -> None:
    """Two of them would be called different; three of each side show that starts differ as much."""
    a, b = several(range(3), wander=0.1), several(range(3, 6), wander=0.1)
    found = compare(a, b)

    assert compare(a[0], b[0]).change("wall_ns").beyond
    assert set() == moved(found)
    assert found.several
    assert (3, 3) == (len(found.before), len(found.after))
    assert "cannot tell" == found.change("wall_ns").verdict


@pytest.mark.heavy
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
    assert all(row["detectable_ns"] > 0 for row in data["figures"] if row["figure"] == "wall_ns")


@pytest.mark.heavy
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


@pytest.mark.heavy
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


@pytest.mark.heavy
def test_what_lacks_a_rank_has_no_transfer() -> None:
    """One rank's trace of a job of two: nothing shows how long it waited."""
    a, b = (some_ranks(job(seed=seed, world_size=2), 0, 1) for seed in (0, 1))
    found = compare(a, b)

    assert () == found.wait_and_transfer
    assert {None} == {row.transfer for row in found.collective_changes}
    assert "no collective" in found.check("transfer > +5%").text


@pytest.mark.heavy
@pytest.mark.parametrize("swapped", [False, True])
def test_unknown_transfers_of_one_side_are_not_zero(swapped: bool) -> None:
    """All ranks' all-gathers against one rank's all-reduces: nothing shows how long the latter transferred."""
    gathers = [
        replace(t, collectives=tuple(replace(c, kind="all_gather") for c in t.collectives)) for t in job().timelines
    ]
    pair = run_of(gathers), some_ranks(job(seed=1, world_size=2), 0, 1)
    found = compare(*(pair[::-1] if swapped else pair))

    assert () == found.wait_and_transfer
    assert {True, False} == {row.transfer is None for row in found.collective_changes}
    assert found.check("transfer < -10%").text.endswith("no collective has all its ranks recorded in both runs.")


@pytest.mark.heavy
def test_differences_and_notes_name_the_recordings_they_are_on() -> None:
    """By number within a side, by letter where all recordings of it agree; each note once."""
    modes = ("naive", "ddp"), ("naive", "naive")
    runs = [
        [job(seed=2 * i + j, metadata={"mode": mode}) for j, mode in enumerate(side)] for i, side in enumerate(modes)
    ]
    found = compare(runs[0], runs[1])

    assert ("Within A: Mode: A1 naive, A2 ddp.",) == found.differences
    assert ("Mode: A1 ddp, B naive.", "Within A: Mode: A1 ddp, A2 naive.") == compare(
        runs[0][::-1], runs[1]
    ).differences
    assert ["A and B: late", "A1 and B2: cut", "B: odd"] == shared_notes(
        [["late", "cut"], ["late"]], [["late", "odd"], ["odd", "late", "cut"]]
    )


def test_recordings_of_one_side_share_ranks() -> None:
    """Rank 0 of one recording and rank 1 of another are no side."""
    a, b = job(), job(seed=1)

    with pytest.raises(DptraceError, match="share a rank"):
        compare([some_ranks(a, 0, 1), some_ranks(a, 1, 2)], b)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("factor", [1.0, 1.004, 1.1])
def test_no_row_moves_under_a_headline_without_a_difference(seed: int, factor: float) -> None:
    """Every figure beyond noise is behind the headline; without any, no rank, kernel or collective is."""
    found = compare(job(seed=seed), job(seed=seed + 10, factors={"backward": factor}))
    moves = any(change.beyond for change in (*found.changes, *found.wait_and_transfer))
    rows = [change for _, changes in found.by_rank for change in changes] + [row.time for row in found.kernel_changes]
    rows += [change for row in found.collective_changes for change in (row.exposed, row.overlapped, row.duration)]
    calm = found.summary().startswith(("No difference", "Cannot tell whether the step time differs (B"))

    assert calm == (not moves) or "but its parts differ" in found.summary()
    assert moves or not any(row.beyond for row in rows)


# How two recordings differ in setup.


def info(**changed: Any) -> dict[str, Any]:
    options = {"batch_size": 256, "lr": 0.1, **changed.pop("options", {})}
    return {"mode": "naive", "model": "small", "options": options, "versions": {"torch": "2.9"}, **changed}


@pytest.mark.heavy
def test_what_run_json_shows_is_reported() -> None:
    """One sentence for each difference; what is strange does no harm: it is somebody's file."""
    for changed, words in (
        ({"mode": "ddp"}, "Mode: A naive, B ddp."),
        ({"model": "large"}, "Model: A small, B large."),
        ({"options": {"batch_size": 512}}, "Option batch size: A 256, B 512."),
        ({"versions": {"torch": "2.10"}}, "Version of torch: A 2.9, B 2.10."),
    ):
        assert [words] == differences(job(metadata=info()), job(metadata=info(**changed)), [(0, 0), (1, 0)])
    strange: tuple[object, ...] = ([], "x", None, {"torch": {"a": 1}}, {1: 2})
    for value in strange:
        odd = dict.fromkeys(info(), value)
        assert isinstance(differences(job(metadata=odd), job(metadata=info()), None), list)


def test_world_sizes_ranks_and_devices_are_reported() -> None:
    """World size, ranks that one lacks, no rank in common, CPU against GPU; nothing of means where runs are drawn."""
    a = job(ranks=4, metadata=info())
    few, others = some_ranks(a, 0, 2), some_ranks(a, 2, 4)
    cpu = run_of([replace(t, device=-1, device_name="CPU") for t in a.timelines], metadata=info())

    assert "A had 4 ranks, B 2" in differences(a, job(ranks=2), None)[0]
    assert "A had 1 rank, B 2" in differences(job(ranks=1), job(ranks=2), None)[0]
    assert "2 of 4 ranks" in differences(a, few, [(0, 0), (1, 0)])[0]
    assert "no rank in common" in differences(few, others, None)[0]
    assert ["A shows operators on CPUs", "Device: A CPU, B NVIDIA H100."] == [
        text.partition(", B kernels")[0] for text in differences(cpu, a, [(rank, 0) for rank in range(4)])
    ]
    assert [] == drawn_differences(a, a)
    (note,) = drawn_differences(a, few)
    assert "B: 2 of 4 ranks" in note
    other = job(ranks=2, metadata=info(model="large"))
    assert ["A had 4 ranks, B 2.", "Model: A small, B large."] == drawn_differences(a, other)


def test_only_another_work_is_incomparable() -> None:
    """CPUs against GPUs, another model, no backward; not another number of ranks, device, or option."""
    a = job(metadata=info())
    cpu = run_of([replace(t, device=-1, device_name="CPU") for t in a.timelines])
    forward = run_of([TimelineBuilder(0).build()])
    faster = run_of([replace(t, device_name="NVIDIA H200") for t in a.timelines], metadata=info(mode="ddp"))

    assert "A shows operators on CPUs, B kernels on GPUs" == incomparable(cpu, a)
    assert "A trained the model small, B large" == incomparable(a, job(metadata=info(model="large")))
    assert "A has no backward, B has one" == incomparable(forward, a)
    assert "B has no backward, A has one" == incomparable(a, forward)
    assert "" == incomparable(a, faster) == incomparable(a, job(ranks=4))


# The samples of one run.


def test_kernels_add_up_to_the_phases() -> None:
    """One stream without overlap: the compute kernels' time is the step's compute time."""
    run = job(steps=4)
    one = sample_run(run, devices_by_id(run))
    kernels = one.kernels()
    compute = sum(one.figures[name].mean(axis=0) for name in FIGURES[:4])

    assert {("compute", name) for name in ("gemm<float>(int)", "gemm_backward", "relu", "adam")} == set(kernels)
    assert np.allclose(compute, sum(values[0] for values in kernels.values()))
    assert all((values[1] == 1).all() for values in kernels.values())


def test_collectives_add_up_to_the_communication() -> None:
    """Exposed and overlapped time of the one sort of collective are the step's."""
    run = job(steps=4)
    one = sample_run(run, devices_by_id(run))
    ((sort, values),) = one.collectives().items()

    assert ("all_reduce", 4096, -1) == (sort.kind, sort.bytes, sort.seq)
    assert np.allclose(values[1], one.figures["exposed_comm_ns"].mean(axis=0))
    assert np.allclose(values[2], one.figures["overlapped_comm_ns"].mean(axis=0))
    assert np.allclose(values[0], values[1] + values[2])
    named = dict(zip(COLLECTIVE_VALUES, values, strict=True))
    assert [1.0] * 4 == named["count"].tolist() == named["matched"].tolist()
    assert np.allclose(named["transfer"] + named["wait"], named["duration"])


def test_only_the_steps_that_all_ranks_have_are_taken() -> None:
    """A note says how many there are."""
    a, b = job(steps=6).timelines
    b = replace(b, windows=Windows(b.windows.names[:4], b.windows.bounds[:5]), step=np.where(b.step > 3, -2, b.step))
    run = run_of([a, b])
    one = sample_run(run, devices_by_id(run))

    assert ("ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#7") == one.steps
    assert "Only the 4 steps" in one.notes[0]
    assert [4, 4] == [kernels.shape[1] for kernels in list(one.kernels().values())[:2]]


def test_steps_without_a_common_name_are_taken_by_their_order() -> None:
    """As when each rank counts from where its own recording began."""
    a, b = job(steps=3).timelines
    b = replace(b, windows=replace(b.windows, names=("x", "y", "z")))
    one = sample_run(run_of([a, b]), {(0, 0), (1, 0)})

    assert 3 == len(one.steps)
    assert "by order" in one.notes[0]


def test_an_outlier_is_left_out_unless_asked_for() -> None:
    """With its length."""
    run = job(steps=6, first=2)
    one, whole = sample_run(run, devices_by_id(run)), sample_run(run, devices_by_id(run), every_step=True)

    assert ["ProfilerStep#4"] == [name for name, _ in one.left_out]
    assert 5 == len(one.steps)
    assert (6, ()) == (len(whole.steps), whole.left_out)
    assert one.left_out[0][1] > 1.9 * one.figures["wall_ns"].mean()


def test_names_are_compared_without_what_compilers_spell_differently() -> None:
    """Template arguments stay, since they distinguish kernels."""
    assert kernel_name("void a::(anonymous namespace)::k<4>(int)") == kernel_name("a::<unnamed>::k<4>(int)")
    assert kernel_name("k<4>()") != kernel_name("k<8>()")
    assert "Cijk_Ailk" == kernel_name("Cijk_Ailk [clone .kd]")
    assert "void " == kernel_name("void ")


# Steps are compared with those that do the same.


def half(timeline: Timeline, odd: int) -> Timeline:
    """Keep every second step, without the gaps."""
    bounds: list[int] = [0]
    names: list[str] = []
    parts: list[Timeline] = []
    for k in range(odd, len(timeline.windows), 2):
        selected, _ = select_steps(timeline, k, k)
        part = selected.take(selected.step >= 0)
        by = bounds[-1] - int(part.windows.bounds[0])
        step = np.full(len(part), len(names), np.int32)
        parts.append(replace(part, start_ns=part.start_ns + by, end_ns=part.end_ns + by, step=step))
        bounds.append(bounds[-1] + int(np.diff(part.windows.bounds)[0]))
        names.append(part.windows.names[0])
    whole = replace(timeline, windows=Windows(tuple(names), np.array(bounds)))
    for column in COLUMNS:
        force_setattr(whole, column, np.concatenate([getattr(part, column) for part in parts]))
    return whole


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


@pytest.mark.heavy
def test_alternating_steps_are_compared_with_their_like() -> None:
    """A change in every second step, smaller than the distance of the kinds, is named, with its kind."""
    found = compare(alternating(), alternating(seed=1, exposed=1.5))

    assert found.change("exposed_comm_ns").beyond
    assert 2 == len(found.kinds)
    without, with_optimizer = sorted(found.kinds, key=lambda kind: "with optimizer" in kind.kind)
    assert "exposed_comm_ns" in {change.name for change in with_optimizer.changes if change.beyond}
    assert not any(change.beyond for change in without.changes)
    assert (6, 6) == (without.a_steps, without.b_steps)
    assert found.change("exposed_comm_ns").delta == pytest.approx(2.5e6, rel=0.2)


@pytest.mark.heavy
def test_another_mix_of_kinds_is_no_difference() -> None:
    """A has one more of the longer steps, B one more of the shorter ones."""
    found = compare(alternating(steps=9, start=1), alternating(steps=9, seed=1))

    assert set() == moved(found)
    assert abs(found.change("wall_ns").delta) < 0.5e6


@pytest.mark.heavy
def test_a_kind_that_one_side_lacks_is_no_figure() -> None:
    """Its steps are left out, and a note names the kind and the side."""
    both = alternating()
    only_short = halves_of(both, 0)
    found = compare(both, only_short)

    assert 6 == len(found.a.steps)
    assert set() == moved(found)
    assert any("only in A" in note and "6 steps" in note for note in found.notes)


@pytest.mark.heavy
def test_sides_without_a_common_kind_cannot_be_compared() -> None:
    """However large the difference; one step of the kind that B has is too few, and its others are no substitute."""
    run = alternating(steps=20)
    found, few = (compare(a, halves_of(run, 1)) for a in (halves_of(run, 0), run.select(steps=(0, 1))))

    assert set() == moved(found) == moved(few)
    assert found.summary().startswith("Cannot tell")
    assert "only B's run the optimizer" in found.summary()
    assert "too few steps of any kind" in few.summary()


@pytest.mark.heavy
def test_a_step_of_three_is_not_left_out() -> None:
    """One of A's three is of a kind that B lacks. Without it two remain, so that all count, as a note says: what is
    evident is told, though not what is smaller.
    """
    few = alternating(steps=3, start=1)
    slow, alike = (halves_of(alternating(steps=6, extra=extra), 1) for extra in (1_000_000_000, 40_000_000))
    found = compare(few, slow)

    assert (3, 3) == (len(found.a.steps), len(found.b.steps))
    assert "wall_ns" in moved(found)
    assert "slower per step" in found.summary()
    assert any("too few steps of any kind" in note for note in found.notes)
    assert set() == moved(compare(few, alike))
    assert "too few steps of any kind" in compare(few, alike).summary()


def halves_of(run: Run, odd: int) -> Run:
    return run_of([half(timeline, odd) for timeline in run.timelines])


def test_two_lengths_are_kinds_where_they_alternate() -> None:
    """Not where the machine changed its speed once, nor where lengths are spread."""
    found = two_lengths(np.array([10, 20, 10.1, 20.2, 9.9, 20.1, 10, 19.9]))
    assert found is not None
    assert [0, 1] * 4 == found.tolist()
    for walls in (
        [10, 20, 10.1, 10.2, 9.9, 10.1, 10, 9.9],  # one longer step
        [10, 10.1, 9.9, 10, 20, 20.1, 19.9, 20],  # a change in the middle
        [10, 12, 14, 16, 11, 13, 15, 17],  # all lengths
        [10, 10, 10, 10, 10, 10],  # one length
        [10, 20, 10, 20],  # too few
    ):
        assert two_lengths(np.array(walls, np.float64)) is None

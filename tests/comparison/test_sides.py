"""Several recordings per side, limits in Python, and waiting apart from transfer."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from dptrace.comparison.compare import Comparison, compare
from dptrace.comparison.sides import make_sides
from dptrace.comparison.summary import shared_notes
from dptrace.errors import DptraceError, UsageError
from dptrace.load.open import open_run
from dptrace.run.run import Run
from tests.support.jobs import LENGTHS, job, run_of
from tests.support.real_traces import needs_real_traces, real


def named(found: Comparison) -> dict[str, float]:
    """Return the changes beyond noise, in percent of A."""
    return {change.name: change.delta_percent or 0 for change in found.changes if change.beyond}


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
    assert all(row["detectable_ns"] > 0 for row in data["figures"] if row["figure"] == "wall_ns")


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
    one_rank = [dataclasses.replace(run, timelines=run.timelines[:1], devices=()) for run in (a, b)]
    found = compare(one_rank[0], one_rank[1])

    assert () == found.wait_and_transfer
    assert {None} == {row.transfer for row in found.collective_changes}
    assert "no collective" in found.check("transfer > +5%").text


@pytest.mark.parametrize("swapped", [False, True])
def test_unknown_transfers_of_one_side_are_not_zero(swapped: bool) -> None:
    """All ranks' all-gathers against one rank's all-reduces: nothing shows how long the latter transferred."""
    whole = job()
    gathers = [
        replace(t, collectives=tuple(replace(c, kind="all_gather") for c in t.collectives)) for t in whole.timelines
    ]
    one_of_two = job(seed=1, world_size=2)
    one_of_two = dataclasses.replace(one_of_two, timelines=one_of_two.timelines[:1], devices=())
    pair = run_of(gathers), one_of_two
    found = compare(*(pair[::-1] if swapped else pair))

    assert () == found.wait_and_transfer
    assert {True, False} == {row.transfer is None for row in found.collective_changes}
    assert found.check("transfer < -10%").text.endswith("no collective has all its ranks recorded in both runs.")


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
    first, second = (dataclasses.replace(a, timelines=a.timelines[k : k + 1], devices=()) for k in (0, 1))

    with pytest.raises(DptraceError, match="share a rank"):
        compare([first, second], b)


def test_sides_hold_all_steps_of_their_recordings() -> None:
    """One after the other, with the number of each recording."""
    found = make_sides([job(steps=5), job(steps=6, seed=1)], [job(steps=7, seed=2)])

    assert (11, 7) == (found.a.steps, found.b.steps)
    assert [5, 6, 7] == np.bincount(found.steps.recording).tolist()
    assert (2, 11) == found.a.figures["wall_ns"].shape
    assert 1 == pytest.approx(found.weights[0].sum()) == pytest.approx(found.weights[1].sum())


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


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("factor", [1.0, 1.004, 1.1])
def test_no_row_moves_under_a_headline_without_a_difference(seed: int, factor: float) -> None:
    """Every figure beyond noise is behind the headline; without any, no rank, kernel or collective is."""
    found = compare(job(seed=seed), job(seed=seed + 10, factors={"backward": factor}))
    moved = [change for change in (*found.changes, *found.wait_and_transfer) if change.beyond]
    rows = [
        *(change for _, changes in found.by_rank for change in changes),
        *(row.time for row in found.kernel_changes),
    ]
    rows += [change for row in found.collective_changes for change in (row.exposed, row.overlapped, row.duration)]
    calm = found.summary().startswith(("No difference", "Cannot tell whether the step time differs (B"))

    assert calm == (not moved) or "but its parts differ" in found.summary()
    assert moved or not any(row.beyond for row in rows)

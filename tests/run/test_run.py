"""A run as tables and as plain data, and its most notable ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from msgspec.structs import replace

import dptrace
from dptrace.analysis.cross_rank.transfers import WAIT_FIGURES
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.analysis.per_gpu.split import FIGURES, SHOWN
from dptrace.errors import DptraceError
from dptrace.run.notable_ranks import HELD_UP, middle_step_of, notable_ranks, ranks_first
from dptrace.run.run import Run
from tests.support.builders import TimelineBuilder
from tests.support.jobs import job, late_run, run_of
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.mesh import Mesh
from tests.support.synthetic import training_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("run")
    for rank in (1, 0):
        file = KinetoFile(rank=rank, world_size=2)
        training_step(training_step(file, 4, 0), 5, 100).write(found / f"r{rank}.json.gz")
    return found


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return dptrace.open(folder)


def test_open_gives_ranks_in_order_with_their_figures(run: Run) -> None:
    """Two ranks of two steps are four rows of nine figures; parts sum to the wall time, causes to the idle time."""
    steps, idle = run.steps(), run.idle_causes()

    assert ([0, 0, 1, 1], ["ProfilerStep#4", "ProfilerStep#5"] * 2) == (list(steps["rank"]), list(steps["step"]))
    parts = [name for name in FIGURES if name not in ("wall_ns", "overlapped_comm_ns")]
    assert list(steps["wall_ns"]) == list(steps[parts].sum(axis=1))
    assert list(steps["idle_ns"]) == list(idle["idle_ns"]) == list(idle[list(CAUSES)].sum(axis=1))
    assert [40.0, 40.0] == list(run.totals()["overlap_percent"])
    assert () == run.notes


def test_collectives_and_intervals_are_rows(run: Run) -> None:
    """Each collective has its own exposed and overlapped time; each interval is a row."""
    first = run.collectives().iloc[0]

    assert ("all_reduce", 4000, 15_000, 10_000) == tuple(first[["kind", "bytes", "exposed_ns", "overlapped_ns"]])
    assert pd.isna(first["label"])
    assert 16 == len(run.kernels())
    assert {"compute", "communication"} == set(run.kernels()["kind"])


def test_to_dict_is_the_documented_schema(run: Run) -> None:
    """Schema 2: ranks, their steps with the nine figures and the kinds, and totals, all plain data."""
    data = json.loads(json.dumps(run.to_dict()))

    rank = data["ranks"][0]
    assert (2, 2, 0) == (data["schema"], data["world_size"], rank["rank"])
    assert {*SHOWN, *WAIT_FIGURES, "step", "comm", "idle", "recompute_ns"} == set(rank["steps"][0])
    assert rank["steps"][0]["idle_ns"] == sum(rank["steps"][0]["idle"].values())
    figures = {"count": 1, "bytes": 4000, "exposed_ns": 15_000, "overlapped_ns": 10_000}
    assert figures | {"exposed_wait_ns": 0, "exposed_unmatched_ns": 0} == rank["steps"][0]["comm"]["all_reduce"]
    assert {*SHOWN, *WAIT_FIGURES} == set(rank["total"])
    assert 2 == len(rank["collectives"])


def test_figures_only_keeps_all_but_the_intervals(folder: Path, run: Run) -> None:
    """The tables and data are the same, but for what findings gain; asking for intervals is an error."""
    thin = dptrace.open(folder, figures_only=True)

    whole, figures = run.to_dict(), thin.to_dict()
    assert {finding["kind"] for finding in whole.pop("findings")} == {f["kind"] for f in figures.pop("findings")}
    assert whole == figures
    assert run.collectives().equals(thin.collectives())
    assert len(thin.timelines[0]) < len(run.timelines[0])
    with pytest.raises(DptraceError, match="figures_only"):
        thin.kernels()


def test_forward_computed_again_is_a_share_of_backward(run: Run) -> None:
    """The share is a sum over devices and steps; None for a run without recomputation."""
    assert run.recompute_percent() is None

    devices = tuple(replace(one, recompute_ns=one.split.figures["backward_ns"] // 4) for one in run.devices)
    again = Run(run.path, run.timelines, devices=devices)
    assert pytest.approx(25, abs=0.1) == again.recompute_percent()


# The most notable ranks of a run.


def test_the_one_that_stands_out_comes_first() -> None:
    """The slowest rank comes before the others, which follow by rank after a typical one."""
    timelines = [TimelineBuilder(rank, bounds=(0, 1000)).compute(0, 700 + rank).build() for rank in range(6)]
    timelines[4] = TimelineBuilder(4, bounds=(0, 1500)).compute(0, 1400).build()

    found = notable_ranks(run_of(timelines))

    assert 4 == found[0].index
    assert "slowest" in found[0].why
    assert [0, 1, 2, 3, 4, 5] == sorted(one.index for one in found)
    rest = [one.index for one in found if not one.why]
    assert sorted(rest) == rest
    assert ["typical"] == [one.why for one in found if "typical" in one.why]


@pytest.mark.heavy
def test_a_rank_that_waits_itself_has_not_held_others_up(tmp_path: Path) -> None:
    """Rank 0 is late: its peer, for which a third rank then waits, is not, and none is where rank 0 is left out."""
    run = dptrace.open(Mesh(tp=2, dp=2, late_us={0: 900}).write(tmp_path / "run"), cache=False)

    assert [0] == [one.index for one in notable_ranks(run) if HELD_UP in one.why]
    assert [] == [one.index for one in notable_ranks(run.select(ranks={1, 2, 3})) if HELD_UP in one.why]


@pytest.mark.parametrize(("ranks", "first"), [(16, {}), (64, {32: "held others up", 0: "most exposed", 63: "last"})])
def test_of_many_ranks_the_notable_ones_come_first(ranks: int, first: dict[int, str]) -> None:
    """With the first and the last one; the others, and all of up to sixteen, are in the order of ranks."""
    found = ranks_first(late_run(*(70 if rank == 32 else 30 for rank in range(ranks))))

    assert list(first) == [one.index for one in found[: len(first)]]
    assert all(why in one.why for why, one in zip(first.values(), found, strict=False))
    assert [rank for rank in range(ranks) if rank not in first] == [one.index for one in found[len(first) :]]


def test_nodes_are_those_of_the_recording() -> None:
    """As run.json says, else the traces' hosts, else the names of the files; nothing is guessed from other names."""
    for paths, hosts, metadata, nodes in (
        (("gpu-a_11.1700.pt.trace.json", "gpu-b_12.1701.pt.trace.json.gz"), ("", ""), {}, ("gpu-a", "gpu-b")),
        (("run/x-node01-rank0.json", "run/x-node02-rank1.json"), ("", ""), {}, ("node01", "node02")),
        (("rank0.json", "rank1.json"), ("", ""), {}, ("", "")),
        (("rank0.json", "rank1.json"), ("alps", "etna"), {}, ("alps", "etna")),
        (("a_1.json", "b_2.json"), ("x", "y"), {"ranks": [{"rank": 0, "host": "h"}, {"rank": 1}]}, ("h", "")),
        (("a_1.json", "b_2.json"), ("x", "y"), {"ranks": [{"rank": 1, "node": 7}]}, ("", "node 7")),
    ):
        one = job(ranks=1).timelines[0]
        timelines = [replace(one, rank=k, path=paths[k], host_name=hosts[k]) for k in (0, 1)]
        assert nodes == Run("x", tuple(timelines), metadata).nodes


def test_ranks_that_are_alike_keep_their_order() -> None:
    """Except for the one that is called typical."""
    found = notable_ranks(run_of([replace(job(ranks=1).timelines[0], rank=rank) for rank in range(4)]))

    assert ["typical", "", "", ""] == [one.why for one in found]
    assert [0, 1, 2, 3] == [one.index for one in found]


def test_a_rank_without_steps_is_left_out() -> None:
    """A run without ranks has no notable rank."""
    none = TimelineBuilder(1, bounds=()).compute(1, 3).build()

    assert [0] == [one.index for one in notable_ranks(run_of([job(ranks=1).timelines[0], none]))]
    assert () == notable_ranks(Run("x", ()))


# The step of median length.


def test_the_middle_step_is_cut_out() -> None:
    """Every GPU has that step only."""
    run = middle_step_of(training_run(600, ranks=2, steps=3))

    assert [1, 1] == [len(timeline.windows) for timeline in run.timelines]
    assert () == middle_step_of(Run("x", ())).timelines

"""A run as tables and as plain data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dptrace
import dptrace.run.run
from dptrace.analysis.cross_rank.transfers import WAIT_FIGURES
from dptrace.analysis.per_gpu.split import CAUSES, FIGURES
from dptrace.errors import DptraceError
from tests.support.kineto_files import KinetoFile, training_step


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in (1, 0):
        file = KinetoFile(rank=rank, world_size=2)
        training_step(training_step(file, 4, 0), 5, 100).write(tmp_path / f"r{rank}.json.gz")
    return tmp_path


def test_open_gives_ranks_in_order_with_their_figures(folder: Path) -> None:
    """Two ranks of two steps are four rows of nine figures; parts sum to the wall time."""
    run = dptrace.open(str(folder))
    steps = run.steps()

    assert ([0, 0, 1, 1], ["ProfilerStep#4", "ProfilerStep#5"] * 2) == (list(steps["rank"]), list(steps["step"]))
    parts = [name for name in FIGURES if name not in ("wall_ns", "overlapped_comm_ns")]
    assert list(steps["wall_ns"]) == list(steps[parts].sum(axis=1))
    assert [40.0, 40.0] == list(run.totals()["overlap_percent"])
    assert () == run.notes


def test_collectives_and_intervals_are_rows(folder: Path) -> None:
    """Each collective has its own exposed and overlapped time; each interval is a row."""
    run = dptrace.open(str(folder))
    first = run.collectives().iloc[0]

    assert ("all_reduce", 4000, 15_000, 10_000) == tuple(first[["kind", "bytes", "exposed_ns", "overlapped_ns"]])
    assert "" == first["label"]
    assert 16 == len(run.kernels())
    assert {"compute", "communication"} == set(run.kernels()["kind"])


def test_idle_has_its_causes(folder: Path) -> None:
    """A row for each rank and step; the causes add up to the idle time of the split."""
    run = dptrace.open(folder)
    idle = run.idle_causes()

    assert list(run.steps()["idle_ns"]) == list(idle["idle_ns"]) == list(idle[list(CAUSES)].sum(axis=1))


def test_to_dict_is_the_documented_schema(folder: Path) -> None:
    """Schema 1: ranks, their steps with the nine figures and the kinds, and totals, all plain data."""
    data = json.loads(json.dumps(dptrace.open(str(folder)).to_dict()))

    rank = data["ranks"][0]
    assert (1, 2, 0) == (data["schema"], data["world_size"], rank["rank"])
    assert {*FIGURES, *WAIT_FIGURES, "step", "comm", "idle", "recompute_ns"} == set(rank["steps"][0])
    assert rank["steps"][0]["idle_ns"] == sum(rank["steps"][0]["idle"].values())
    figures = {"count": 1, "bytes": 4000, "exposed_ns": 15_000, "overlapped_ns": 10_000}
    assert figures | {"exposed_wait_ns": 0, "exposed_unmatched_ns": 0} == rank["steps"][0]["comm"]["all_reduce"]
    assert {*FIGURES, *WAIT_FIGURES} == set(rank["total"])
    assert 2 == len(rank["collectives"])


def test_figures_only_keeps_all_but_the_intervals(folder: Path) -> None:
    """The tables and data are the same; asking for intervals is an error."""
    run, thin = dptrace.open(folder), dptrace.open(folder, figures_only=True)

    assert run.to_dict() == thin.to_dict()
    assert run.collectives().equals(thin.collectives())
    assert len(thin.timelines[0]) < len(run.timelines[0])
    with pytest.raises(DptraceError, match="figures_only"):
        thin.kernels()


def test_forward_computed_again_is_a_share_of_backward(folder: Path) -> None:
    """The share is a sum over devices and steps; None for a run without recomputation."""
    from msgspec.structs import replace

    run = dptrace.open(str(folder))
    assert run.recompute_percent() is None

    devices = tuple(replace(one, recompute_ns=one.split.figures["backward_ns"] // 4) for one in run.devices)
    again = dptrace.run.run.Run(run.path, run.timelines, devices=devices)
    assert pytest.approx(25, abs=0.1) == again.recompute_percent()

"""Which stage is late, and which group waits for a rank first."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from dptrace.replay.reach import reach_text, stages_of
from dptrace.replay.transforms.stragglers import excesses
from tests.support.programs import (
    Plant,
    Program,
    data_parallel,
    interleaved,
    looped,
    mesh,
    of_several_stages,
    one_forward_one_backward,
    pipeline,
    run,
    write,
)


def said(folder: Path, program: Program, size: int, plant: Plant) -> tuple[dict[int, int], str]:
    """Return the stages of a program with a late rank, and what is said of its largest delay."""
    model = dptrace.open(write(folder, run(program, size, (plant,))), cache=False).replay.model
    every = excesses(model)
    late = max(every, key=lambda excess: excess.ns).process
    return stages_of(model), reach_text(model, late, [one for one in every if one.process == late])


@pytest.mark.heavy
def test_a_late_stage_is_named(tmp_path: Path) -> None:
    """Stages are counted along the messages, which go to and fro between neighbors."""
    stages, text = said(tmp_path, pipeline(one_forward_one_backward, 4), 4, Plant(2, "F", 20))

    assert stages == {0: 0, 1: 1, 2: 2, 3: 3}
    assert "stage 2 of 4" in text


@pytest.mark.heavy
def test_of_several_stages_of_a_rank_the_late_one_is_named(tmp_path: Path) -> None:
    """By the labels of the schedule; where all of them are late, none is."""
    program = of_several_stages(interleaved, 3, looped)
    stages, of_one = said(tmp_path / "one", program, 3, Plant(1, "F4", 12))
    _, of_rank = said(tmp_path / "rank", program, 3, Plant(1, "F", 8))

    assert stages == {0: 0, 1: 1, 2: 2}
    assert all("stages 1, 4 of 6" in text for text in (of_one, of_rank))
    assert "late in stage 4" in of_one
    assert "late in" not in of_rank


@pytest.mark.heavy
def test_the_group_that_waits_first_is_named(tmp_path: Path) -> None:
    """A rank that is late in the forward pass delays its tensor-parallel pair; the others inherit that."""
    stages, text = said(tmp_path, mesh, 4, Plant(3, "forward", 40))

    assert stages == {}
    assert "ranks 2, 3" in text


def test_of_one_group_nothing_is_said(tmp_path: Path) -> None:
    """All ranks wait."""
    assert said(tmp_path, data_parallel, 3, Plant(1, "forward", 40)) == ({}, "")

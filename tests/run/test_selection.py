"""Ranks and steps to keep, as text and as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dptrace
from dptrace.errors import UsageError
from dptrace.run.selection import ranks_of, steps_of
from tests.support.kineto_files import KinetoFile, training_step


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        ("0", {0}),
        ("0,2", {0, 2}),
        ("0-2, 5", {0, 1, 2, 5}),
        (3, {3}),
        (np.int64(3), {3}),
        ([0, 2, 2], {0, 2}),
        (range(2), {0, 1}),
        (np.array([4]), {4}),
        ((), set()),
    ],
)
def test_ranks_are_read(given: Any, ranks: set[int]) -> None:
    """Text as on the command line, one number, or several."""
    assert ranks == ranks_of(given)


@pytest.mark.parametrize(
    ("given", "steps"),
    [("4", (4, 4)), (" 4:6 ", (4, 6)), (4, (4, 4)), ((4, 6), (4, 6)), ([np.int64(4), 4], (4, 4))],
)
def test_steps_are_read(given: Any, steps: tuple[int, int]) -> None:
    """One, or the first and the last."""
    assert steps == steps_of(given)


@pytest.mark.parametrize("given", ["", "a", "1,", "-1", "1:2", "3-1", "0-9999999", "²", 1.5, True, [0.5], ["0"], -1])
def test_other_ranks_are_refused(given: Any) -> None:
    """A range of more ranks than there are in any job is not built."""
    with pytest.raises(UsageError, match="--ranks"):
        ranks_of(given)


@pytest.mark.parametrize(
    "given", ["", "a", "6:4", "4-6", ":", "4:", "4,6", (6, 4), (4,), [4, 5, 6], {4, 6}, ("4", "6"), 1.5, True, -1]
)
def test_other_steps_are_refused(given: Any) -> None:
    """The message has the option."""
    with pytest.raises(UsageError, match="--before-steps"):
        steps_of(given, "--before-steps")


@pytest.fixture
def run(tmp_path: Path) -> dptrace.Run:
    """Two ranks of steps 8 to 11."""
    paths = []
    for rank in (0, 1):
        file = KinetoFile(rank=rank, world_size=2)
        for step in range(8, 12):
            training_step(file, step, 100 * step)
        paths.append(file.write(tmp_path / f"rank{rank}.json"))
    return dptrace.open(*paths)


def test_python_selects_as_the_command_line_does(run: dptrace.Run) -> None:
    """Texts and numbers select the same part, of which the critical path can be found, too."""
    part = run.select(ranks="0", steps="10:11")

    assert ((0,), ["ProfilerStep#10", "ProfilerStep#11"]) == (part.ranks, part.steps()["step"].tolist())
    assert part.steps().equals(run.select(ranks=0, steps=(10, 11)).steps())
    assert ["ProfilerStep#10"] * 3 == [run.critical_path(step).step for step in (10, "10", "ProfilerStep#10")]


@pytest.mark.parametrize(
    "selection", [{"ranks": "2"}, {"ranks": []}, {"steps": "77"}, {"steps": "11:8"}, {"ranks": "x"}]
)
def test_what_is_not_there_can_not_be_selected(run: dptrace.Run, selection: dict[str, Any]) -> None:
    """Neither ranks nor steps that the run lacks, nor what is none."""
    with pytest.raises(UsageError, match=r"rank|step"):
        run.select(**selection)


def test_one_pattern_of_communication_is_one(tmp_path: Path) -> None:
    """A text is not taken for its letters."""
    path = training_step(KinetoFile(), 1, 0).write(tmp_path / "rank0.json")

    assert (
        dptrace.open(path, comm_patterns="gemm_b").steps().equals(dptrace.open(path, comm_patterns=("gemm_b",)).steps())
    )
    assert not dptrace.open(path, comm_patterns="gemm_b").steps().equals(dptrace.open(path).steps())

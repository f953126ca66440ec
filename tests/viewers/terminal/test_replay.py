"""A critical path in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

import dptrace
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.replay.paths import PathPiece
from dptrace.replay.simulation import SteadyState
from dptrace.replay.whatif import Doubt, RankAnswer, Sweep, WhatIf
from dptrace.viewers.terminal.replay import print_critical_path, print_whatif, sweep_sentence, sweep_table
from tests.support.kineto_files import KinetoFile


def printed(show: Callable[..., None], what: object, all_rows: bool = False) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        show(what, console, all_rows)
    return capture.get()


@pytest.mark.heavy
def test_of_many_pieces_the_longest_are_listed(tmp_path: Path) -> None:
    """Forty pieces are printed, all of them on request; control characters and long names do not reach the terminal."""
    file = KinetoFile().label("ProfilerStep#1", 0, 5000)
    for i in range(60):
        file.kernel(f"\x1b[31mgemm_{i}" + "x" * 200, 20 + 50 * i, 50 + 50 * i, 10 + 50 * i)
        file.event("cuda_runtime", "cudaDeviceSynchronize", 13 + 50 * i, 55 + 50 * i)
    run = dptrace.open(file.write(tmp_path / "rank0.json"), cache=False)

    few, all_of_them = (printed(print_critical_path, run.critical_path(), every) for every in (False, True))

    assert "the 40 longest of" in few
    assert len(all_of_them.splitlines()) > len(few.splitlines()) + 20
    assert "\x1b" not in all_of_them
    assert "x" * 100 not in all_of_them


# The answer of a what-if in the terminal.


def figures(**changed: int) -> dict[str, int]:
    return {**dict.fromkeys(FIGURES, 0), "forward_ns": 60_000_000, "wall_ns": 100_000_000, **changed}


def answer(ranks: int, *doubts: Doubt) -> WhatIf:
    after = figures(wall_ns=80_000_000)
    return WhatIf(
        path="run",
        changes=("kernels 'x\x1b[31m' 0.5×",),
        steps=("ProfilerStep#1",),
        measured_step_ns=100_000_000,
        replayed_step_ns=101_000_000,
        predicted_step_ns=80_000_000,
        low_ns=70_000_000,
        high_ns=90_000_000,
        run_gain_ns=20_000_000,
        step_gain_ns=20_000_000,
        micro_steps=1,
        measured=figures(),
        predicted=after,
        steady=SteadyState(10, 20),
        path_ns={"host": 60_000_000, "compute": 20_000_000},
        longest=(PathPiece(55_000_000, "host", 1, "cudaMalloc in aten::cat", "aten::cat"),),
        ranks=tuple(
            RankAnswer(rank, 0, figures(wall_ns=100_000_000 + rank), figures(), after) for rank in range(ranks)
        ),
        doubts=doubts,
        interference=None,
        notes=("inferred",),
        _outcome=None,  # type: ignore[arg-type]
        _selected=None,  # type: ignore[arg-type]
    )


def test_an_answer_has_its_error_its_range_and_its_doubts() -> None:
    """The replay's error of 1 %, the range of the prediction; a doubt that refuses precedes the figures."""
    text = printed(print_whatif, answer(2, Doubt("replay_misses", "It misses.", True)))

    for fact in ("1.00 % off", "range 70.00 to 90.00 ms", "−20.00", "cudaMalloc in aten::cat on rank 1, 55.0 ms"):
        assert fact in text
    assert text.index("cannot tell") < text.index("80.00 ms") < text.index("! It misses.")


def test_of_many_ranks_the_slowest_are_listed() -> None:
    """A table has 16 rows, unless every rank is requested; control characters do not reach the terminal."""
    few, all_of_them = (printed(print_whatif, answer(40), every) for every in (False, True))

    assert len(all_of_them.splitlines()) - len(few.splitlines()) == 40 - 16
    assert "slowest 16" in few
    assert "\x1b" not in few


# The answers for several values in the terminal.


def whatif_sweep_answer(step_ms: int, can_tell: bool = True) -> Any:
    step = step_ms * 1_000_000
    return SimpleNamespace(
        measured_step_ns=100_000_000,
        predicted_step_ns=step,
        low_ns=step - 1_000_000,
        high_ns=step + 1_000_000,
        predicted={"exposed_comm_ns": 5_000_000},
        can_tell=can_tell,
    )


def sweep(option: str, *answers: tuple[float, Any]) -> Sweep:
    return Sweep.of(option, [value for value, _ in answers], cast(Any, [one for _, one in answers]))


def test_each_value_has_a_row() -> None:
    """With its step, its range, its change, and whether it can be told."""
    found = sweep("bucket-cap-mb", (1, whatif_sweep_answer(120)), (25, whatif_sweep_answer(80, can_tell=False)))

    assert ("1", "120.0", "119.0–121.0", "5.00", "+20 %", "yes") == sweep_table(found).rows[0]
    assert ("25 (best)", "80.00", "79.00–81.00", "5.00", "−20 %", "no") == sweep_table(found).rows[1]


@pytest.mark.parametrize(("option", "steps"), [("world-size", (100, 110)), ("bucket-cap-mb", (200, 199))])
def test_nothing_is_best_among_unlike_or_equal_steps(option: str, steps: tuple[int, int]) -> None:
    """Steps of more ranks have more samples; those that are equal within a percent are not ranked."""
    found = sweep(option, *((value, whatif_sweep_answer(step)) for value, step in zip((1, 25), steps, strict=True)))

    assert "best" not in sweep_sentence(found)
    assert ["1", "25"] == [row[0] for row in sweep_table(found).rows]

"""The answers for several values in the terminal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from dptrace.replay.whatif import Sweep
from dptrace.viewers.terminal.replay.whatif_sweep import sweep_sentence, sweep_table


def answer(step_ms: int, can_tell: bool = True) -> Any:
    step = step_ms * 1_000_000
    return SimpleNamespace(
        measured_step_ns=100_000_000,
        predicted_step_ns=step,
        low_ns=step - 1_000_000,
        high_ns=step + 1_000_000,
        predicted={"exposed_comm_ns": 5_000_000},
        can_tell=can_tell,
    )


def test_each_value_has_a_row() -> None:
    """With its step, its range, its change, and whether it can be told."""
    table = sweep_table(Sweep.of("bucket-cap-mb", [1, 25], cast(Any, [answer(120), answer(80, can_tell=False)])))

    assert ("1", "120.0", "119.0–121.0", "5.00", "+20 %", "yes") == table.rows[0]
    assert ("25 (best)", "80.00", "79.00–81.00", "5.00", "−20 %", "no") == table.rows[1]


def test_ranks_have_no_best() -> None:
    """The sentence says why."""
    sentence = sweep_sentence(Sweep.of("world-size", [2, 4], cast(Any, [answer(100), answer(110)])))

    assert "best" not in sentence
    assert "more samples" in sentence


def test_values_that_make_no_difference_have_no_best() -> None:
    """Steps that are equal within a percent are not ranked."""
    sweep = Sweep.of("bucket-cap-mb", [1, 25], cast(Any, [answer(200), answer(199)]))

    assert "best" not in sweep_sentence(sweep)
    assert ["1", "25"] == [row[0] for row in sweep_table(sweep).rows]

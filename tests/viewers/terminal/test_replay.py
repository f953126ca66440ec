"""A critical path in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import dptrace
from dptrace.replay.whatif import Doubt, Sweep, WhatIf
from dptrace.viewers.terminal.replay import print_critical_path, print_whatif, sweep_sentence, sweep_table
from tests.support.kineto_files import KinetoFile
from tests.support.replay_files import write_job
from tests.support.terminal_text import captured


def printed(show: Callable[..., None], what: object, all_rows: bool = False) -> str:
    return captured(lambda console: show(what, console, all_rows), 200)


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


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> WhatIf:
    """What a job of two ranks would take on devices of twice the speed."""
    return dptrace.open(write_job(tmp_path_factory.mktemp("job")), cache=False).whatif(compute=2)


def test_an_answer_has_its_error_its_range_and_its_doubts(answer: WhatIf) -> None:
    """The replay's error of 1 %, the range of the prediction; a doubt that refuses precedes the figures."""
    off = replace(answer, replayed_step_ns=round(1.01 * answer.measured_step_ns), low_ns=400_000, high_ns=500_000)
    text = printed(print_whatif, replace(off, doubts=(Doubt("replay_misses", "It misses.", True),)))

    for fact in ("1.00 % off", "range 0.40 to 0.50 ms", "−0.33", "The longest pieces: forward on rank 1, 200 µs"):
        assert fact in text
    assert text.index("cannot tell") < text.index("0.47 ms a step instead of 0.80 ms") < text.index("! It misses.")


def test_of_many_ranks_the_slowest_are_listed(answer: WhatIf) -> None:
    """A table has 16 rows, unless every rank is requested; control characters do not reach the terminal."""
    many = replace(answer, ranks=answer.ranks * 20, changes=("kernels 'x\x1b[31m' 0.5×",))
    few, all_of_them = (printed(print_whatif, many, every) for every in (False, True))

    assert len(all_of_them.splitlines()) - len(few.splitlines()) == 40 - 16
    assert "slowest 16" in few
    assert "\x1b" not in few


# The answers for several values in the terminal.


def sweep(answer: WhatIf, option: str, steps: dict[float, float], refused: Doubt | None = None) -> Sweep:
    """Answers of these steps in ms by value, for a step of 100 ms; the last has a doubt."""
    answers = []
    for ms in steps.values():
        step, unit = round(ms * 1_000_000), 1_000_000
        figures = {**answer.predicted, "exposed_comm_ns": 5 * unit}
        ranged = replace(answer, predicted_step_ns=step, low_ns=step - unit, high_ns=step + unit, predicted=figures)
        answers.append(replace(ranged, measured_step_ns=100 * unit, doubts=()))
    answers[-1] = replace(answers[-1], doubts=(refused,) if refused else ())
    return Sweep.of(option, [*steps], answers)


def test_each_value_has_a_row(answer: WhatIf) -> None:
    """With its step, its range, its change, and whether it can be told."""
    found = sweep(answer, "bucket-cap-mb", {1: 120, 25: 80}, Doubt("replay_misses", "It misses.", True))

    assert ("1", "120.0", "119.0–121.0", "5.00", "+20 %", "yes") == sweep_table(found).rows[0]
    assert ("25 (best)", "80.00", "79.00–81.00", "5.00", "−20 %", "no") == sweep_table(found).rows[1]


def test_nothing_is_best_among_unlike_or_equal_steps(answer: WhatIf) -> None:
    """Steps of more ranks have more samples; those that are equal within a percent are not ranked."""
    cases: tuple[tuple[str, dict[float, float]], ...]
    cases = (("world-size", {1: 100, 25: 110}), ("bucket-cap-mb", {1: 200, 25: 199}))
    for option, steps in cases:
        found = sweep(answer, option, steps)

        assert "best" not in sweep_sentence(found), (option, steps)
        assert ["1", "25"] == [row[0] for row in sweep_table(found).rows], (option, steps)

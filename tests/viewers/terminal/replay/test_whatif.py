"""The answer of a what-if in the terminal."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from dptrace.replay.paths import PathPiece
from dptrace.replay.simulation import SteadyState
from dptrace.replay.whatif import Doubt, RankAnswer, WhatIf
from dptrace.viewers.terminal.replay.whatif import print_whatif

FIGURES = {"forward_ns": 60_000_000, "wall_ns": 100_000_000}


def figures(**changed: int) -> dict[str, int]:
    names = ("forward_ns", "backward_ns", "optimizer_ns", "other_ns", "exposed_comm_ns", "overlapped_comm_ns")
    return {**dict.fromkeys((*names, "exposed_memory_ns", "idle_ns", "wall_ns"), 0), **FIGURES, **changed}


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


def printed(one: WhatIf, every: bool = False) -> str:
    text = StringIO()
    print_whatif(one, Console(file=text, width=200, highlight=False), every)
    return text.getvalue()


def test_an_answer_that_can_not_be_reported_says_so() -> None:
    """A doubt that refuses precedes the figures, and its reason is printed."""
    text = printed(answer(2, Doubt("replay_misses", "It misses.", True)))

    assert text.index("cannot tell") < text.index("80.00 ms")
    assert "! It misses." in text


def test_the_error_and_the_range_are_printed() -> None:
    """The replay's error of 1 % and the range of the prediction stand beside it."""
    text = printed(answer(2))

    assert "1.00 % off" in text
    assert "range 70.00 to 90.00 ms" in text
    assert "−20.00" in text
    assert "cudaMalloc in aten::cat on rank 1, 55.0 ms" in text


def test_of_many_ranks_the_slowest_are_listed() -> None:
    """A table has 16 rows, unless every rank is requested; control characters do not reach the terminal."""
    few, all_of_them = printed(answer(40)), printed(answer(40), every=True)

    assert len(all_of_them.splitlines()) - len(few.splitlines()) == 40 - 16
    assert "slowest 16" in few
    assert "\x1b" not in few

"""A comparison in the terminal."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from dptrace.comparison.changes import PARTS
from dptrace.comparison.compare import Comparison, compare
from dptrace.core.units import milliseconds, signed_milliseconds
from dptrace.run.run import Run
from dptrace.viewers.terminal.comparison import (
    change_cells,
    percent,
    print_comparison,
    shown_changes,
    side_lines,
)
from tests.support.jobs import job, run_of
from tests.support.terminal_text import captured


def printed(found: Comparison, width: int = 80, all_rows: bool = False, per_rank: bool = False) -> str:
    return captured(lambda console: print_comparison(found, console, all_rows, per_rank), width)


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(
        job(path="runs/main", metadata={"mode": "ddp"}), job(seed=1, factors={"backward": 1.1}, path="runs/branch")
    )


def renamed(run: Run, names: dict[str, str]) -> Run:
    """Give kernels other names."""
    timelines = [replace(t, names=tuple(names.get(name, name) for name in t.names)) for t in run.timelines]
    return run_of(timelines)


def test_it_says_what_matters_first(found: Comparison) -> None:
    """What was compared, what it comes to, then tables whose parts are the figures of the comparison."""
    text = printed(found)
    lines = text.splitlines()

    assert lines[0].startswith("A  main · ddp · 2 ranks")
    assert lines[1].startswith("B  branch · 2 ranks")
    assert found.summary() in " ".join(" ".join(lines[2:5]).split())
    row = next(line for line in lines if line.startswith("backward")).split()
    change = found.change("backward_ns")
    assert [milliseconds(change.a), milliseconds(change.b), signed_milliseconds(change.delta)] == list(
        change_cells(change)[:3]
    )
    assert ["backward", *change_cells(change), "moved"] == row
    assert next(line for line in lines if line.startswith("forward")).split()[6] in ("in", "=")
    assert "gemm_backward" in text
    assert "! One recording per side" in text


@pytest.mark.heavy
def test_every_table_fits_eighty_columns(found: Comparison) -> None:
    """Ranks are rows where they are asked for, and it is said where there is none in both runs."""
    text = printed(found, all_rows=True, per_rank=True)

    assert max(map(len, text.splitlines())) <= 80
    assert "all_reduce · default_pg" in text
    assert [True, False] == ["of each rank" in one for one in (text, printed(found))]
    assert "No rank is in both runs." in printed(dataclasses.replace(found, compare_gpus=tuple), per_rank=True)


def test_every_figure_that_is_not_nothing_has_its_row(found: Comparison) -> None:
    """The parts, the causes of idling, the wall and the overlap; not what neither run has."""
    names = [change.name for change in shown_changes(found)]

    assert [name for name in names if name in PARTS] == [
        name for name in PARTS if name not in ("other_ns", "exposed_memory_ns")
    ]
    after = names[names.index("wall_ns") :]
    assert ["wall_ns", "overlapped_comm_ns", "transfer_ns", "wait_ns"] == after
    assert "overlap " in printed(found)


@pytest.mark.heavy
def test_what_only_one_run_has_is_said() -> None:
    """Of kernels; the first few, unless all are asked for."""
    a = job()
    b = renamed(job(seed=1), {"adam": "fused_adam", "relu": "gelu", "gemm_backward": "dgrad"})
    text = printed(compare(a, b))

    assert "only in B" in text
    assert "only in A" in text
    assert "2 more; --all shows them." in text
    assert "more; --all" not in printed(compare(a, b), all_rows=True)


@pytest.mark.heavy
def test_names_of_strangers_give_no_orders() -> None:
    """Neither markup nor escape sequences."""
    hostile = "[bold]x[/bold]\x1b[31m\u202e"
    a = renamed(job(), {"adam": hostile})
    text = printed(compare(a, job(seed=1)))

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]x[/bold]" in text


def test_percents_are_readable(found: Comparison) -> None:
    """What is new has none; what is a thousand has no decimals."""
    for a, b, text in ((0, 1, "new"), (1.0, 12.0, "+1,100"), (2.0, 1.0, "−50.0"), (1e6, 1e6 - 1, "0.0")):
        assert text == percent(dataclasses.replace(found.change("backward_ns"), a=a, b=b)), a


@pytest.mark.heavy
def test_the_steps_reported_are_those_compared() -> None:
    """A run of eight of which one was left out has seven."""
    for run, steps in ((job(first=3), "7 steps"), (job(steps=1), "1 step")):
        assert steps == side_lines(compare(run, job()))[0][1].split(" · ")[3], (run, steps)

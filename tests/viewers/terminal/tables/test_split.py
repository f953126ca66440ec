"""The split as tables."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from dptrace.analysis.per_gpu.split import split
from dptrace.core.units import milliseconds
from dptrace.run.run import Run
from dptrace.viewers.base.format import plain
from dptrace.viewers.terminal.tables.split import step_tables
from tests.support.builders import TimelineBuilder, two_rank_timelines


def printed(run: Run, every: bool = False, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(*step_tables(run, every))
    return out.getvalue()


def test_rows_are_the_splits_figures() -> None:
    """The numbers of a row are the figures of the split, in ms."""
    run = Run("r", two_rank_timelines())
    text = printed(run, every=True)
    figures = split(run.timelines[1]).figures

    row = next(line for line in text[text.index("rank 1") :].splitlines() if line.startswith("0"))
    assert [milliseconds(int(figures[name][0])) for name in ("forward_ns", "backward_ns")] == row.split()[1:3]


@pytest.mark.heavy
def test_many_ranks_and_steps_are_summed_up_unless_all_is_asked() -> None:
    """Forty ranks give one short table; --all gives each rank its own."""
    builders = (TimelineBuilder(rank, bounds=tuple(range(0, 3100, 100))).compute(0, 30) for rank in range(40))
    run = Run("r", tuple(build.build() for build in builders))

    assert len(printed(run).splitlines()) < 25
    assert "…" in printed(run)
    assert "rank 39" in printed(run, every=True)


def test_names_from_a_trace_are_shown_not_obeyed() -> None:
    """Markup stays text; escape sequences and text-direction marks become visible."""
    assert "[red]a\\x1b[31mb\\u202ec" == plain("[red]a\x1b[31mb\u202ec").plain


def test_waiting_stands_beside_the_communication_it_is_part_of() -> None:
    """In ms, for each rank; without a known wait there is no column."""
    run = Run("r", two_rank_timelines())
    heading, row = printed(run).splitlines()[2:4]
    wait = run.cross_rank.exposed_waits[0].mean()["exposed_wait_ns"] or 0

    assert ["comm", "waiting", "memory"] == heading.split()[5:8]
    assert milliseconds(wait) == row.split()[6]
    assert "waiting" not in printed(Run("r", two_rank_timelines()[:1]))


def test_ranks_missing_have_a_column_only_where_there_are_any() -> None:
    """A rank on its own shows no waits, so that all of its exposed communication stands there."""
    alone = printed(Run("r", two_rank_timelines()[:1], world_size=2))

    assert "incom" in alone
    assert "incom" not in printed(Run("r", two_rank_timelines()))


def test_figures_are_whole_in_a_terminal_of_80_columns() -> None:
    """Waiting is one column more, and no digit may be cut for it."""
    run = Run("r", tuple(two_rank_timelines()))
    long = Run("r", tuple(replace(t, start_ns=t.start_ns * 5_000, end_ns=t.end_ns * 5_000) for t in run.timelines))

    assert "…" not in printed(run, width=80)
    assert "…" not in printed(long, width=80)

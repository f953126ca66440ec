"""A run in the terminal."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

import dptrace
from dptrace.run.run import Run
from dptrace.timeline.model import Collective
from dptrace.viewers.terminal.summary import print_collectives, print_run, sentence
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.jobs import MS, job, late_run
from tests.support.paths import ROOT


def flat(text: str) -> str:
    return " ".join(text.split())


def printed(run: Run, every: bool = False) -> str:
    out = io.StringIO()
    print_run(run, Console(file=out, width=100, color_system=None), every)
    return out.getvalue()


def test_findings_come_before_tables_and_notes_last() -> None:
    """The headline, the findings, the tables, the notes."""
    lines = printed(Run("runs/x", two_rank_timelines(), notes=("mind this",))).splitlines()

    assert lines[1].startswith("A step takes 0.10 ms (mean of 2): ")
    noted = [line.strip() for line in lines if line.startswith("!")]
    assert "! mind this" == noted[0]
    assert noted[-1] == lines[-1].strip()
    places = [
        next(i for i, line in enumerate(lines) if line.startswith(start))
        for start in (
            "Mean step, ",
            "Findings",
            "mean step by rank",
            "mean step by kind",
            "mean step by cause",
            "--all",
        )
    ]
    assert places == sorted(places)


def test_the_headline_has_the_profilers_overhead() -> None:
    """Where run.json has it."""
    ranks = [{"unprofiled_ns": [100_000], "profiled_ns": [110_000]}]
    text = printed(Run("r", two_rank_timelines(), metadata={"profiler_overhead": 0.1, "ranks": ranks}))

    assert "100 µs without the profiler and 110 µs with it (+10 %)" in text
    assert text.index("profiler") < text.index("Findings")


def test_the_mean_step_adds_up() -> None:
    """Its shares are those of the whole run; parts that no step has are left out."""
    text = printed(Run("r", (TimelineBuilder().compute(0, 30).build(),)))

    assert "Mean step, 100 ns: forward 30 ns (30 %), idle 70 ns (70 %)." in text


def test_rows_left_out_are_reported() -> None:
    """How to see the rest."""
    timelines = tuple(TimelineBuilder(rank).compute(0, 30).build() for rank in range(9))

    assert "--all prints every table in full" in printed(Run("r", timelines))
    assert "--all" not in printed(Run("r", timelines), every=True)


def test_a_run_without_communication_says_so() -> None:
    """No table of collectives, and a sentence instead of a share."""
    out = io.StringIO()
    run = Run("r", (TimelineBuilder().compute(0, 10).build(),))
    print_collectives(run, Console(file=out, width=100))

    assert "no communication" in printed(run)
    assert "No communication in this run." in out.getvalue()


def test_the_headline_divides_exposed_communication() -> None:
    """Waiting, with the rank that is waited for, and transfer; the mean step has the same parts."""
    text = printed(late_run(30, 30, 70))

    assert "26.7 % waiting for rank 2, 10.0 % exposed transfer, 20.0 % idle" in sentence(late_run(30, 30, 70)).plain
    assert "waiting for rank 2 26.7 ms (27 %), exposed transfer 10.0 ms (10 %), idle 20.0 ms (20 %)" in flat(text)
    assert "exposed communication" not in text[: text.index("Findings")]


def test_ranks_that_share_a_wait_are_named_together() -> None:
    """Two ranks are late, at a collective with another one each; more than three are many."""
    comm = [Collective("all_reduce", 4_096, "float", str(pair), 2, ranks=(pair, pair + 1)) for pair in (0, 2)]
    starts = (20, 70, 20, 70)
    builders = [
        TimelineBuilder(rank, bounds=(0, 100 * MS)).collective(start * MS, 80 * MS, comm[rank // 2])
        for rank, start in enumerate(starts)
    ]

    assert " waiting for ranks 1 and 3," in sentence(Run("r", tuple(build.build() for build in builders))).plain
    assert " waiting for other ranks," in sentence(late_run(20, *[70] * 8)).plain


def cells(table: str, label: str, column: int) -> list[float]:
    """Return a column of numbers below a table's title, in the rows that begin with a rank."""
    rows = table[table.index(label) :].split("\n\n")[0].splitlines()
    return [float(row.split()[column].replace(",", "")) for row in rows if row[:1].isdigit()]


@pytest.mark.parametrize(
    ("name", "longest"), [("", 1), ("", 3), ("", 50), ("ddp_cpu_2ranks", 1), ("interleaved_cpu_2ranks", 1)]
)
def test_every_share_of_the_headline_is_that_of_the_tables(name: str, longest: int) -> None:
    """Each percentage is the table's figure over the headline's step, and the causes of idle time add up to it; one
    step of many times the length of the others changes nothing about that, and is named with the median.
    """
    run = dptrace.open(ROOT / "traces" / name) if name else job(steps=5, first=longest)
    text = printed(run)
    step = float(re.search(r"A step takes ([\d.,]+) ms", text)[1].replace(",", ""))  # type: ignore[index]
    part = {
        what: float(share) / 100 * step
        for share, what in re.findall(r"([\d.]+) % (waiting|exposed transfer|idle)", sentence(run).plain)
    }
    figures = {heading: np.mean(cells(text, "mean step by rank", place)) for heading, place in COLUMNS.items()}
    rounding = 0.0006 * step + 0.006

    assert figures["wall"] == pytest.approx(step, abs=rounding)
    assert figures["idle"] == pytest.approx(part["idle"], abs=rounding)
    assert figures["waiting"] == pytest.approx(part["waiting"], abs=rounding)
    assert figures["exposed"] == pytest.approx(part["waiting"] + part["exposed transfer"], abs=2 * rounding)
    assert cells(text, "mean step by cause", -1) == pytest.approx(cells(text, "mean step by rank", COLUMNS["idle"]))
    assert run.to_dict()["mean_step"]["wall_ns"] / 1e6 == pytest.approx(step, abs=rounding)
    assert (longest > 1) == ("longest" in sentence(run).plain) == ("; median" in sentence(run).plain)


COLUMNS = {"exposed": 5, "waiting": 6, "idle": 8, "wall": 9}
"""Places in the rows of the table by rank."""


def test_an_unknown_wait_is_reported_once() -> None:
    """Ranks are missing: exposed communication is not divided, and no table has a column of question marks."""
    run = late_run(30, size=2)
    text = printed(run)

    assert "50.0 % exposed communication (waiting unknown: incomplete collectives), 20.0 % idle" in sentence(run).plain
    assert 1 == text.count("waiting unknown")
    assert "?" not in text


def test_collectives_of_missing_ranks_have_their_own_share() -> None:
    """Beside waiting and transfer in the headline, the mean step and the tables."""
    whole, lone = late_run(30, 70), Collective("all_reduce", 64, "float", "1", 2, ranks=(0, 9))
    first = TimelineBuilder(0, bounds=(0, 100 * MS)).compute(0, 30 * MS)
    first.collective(30 * MS, 80 * MS, Collective("all_reduce", 4_096, "float", "0", 2))
    run = Run("r", (first.collective(80 * MS, 100 * MS, lone).build(), whole.timelines[1]), world_size=10)
    text = flat(printed(run))

    assert "20.0 % waiting for rank 1, 10.0 % exposed transfer, 10.0 % exposed in incomplete collectives" in text
    assert "exposed in incomplete collectives 10.0 ms (10 %)" in text
    assert "incomplete ms" in text
    assert "incomplete" not in flat(printed(whole))


def test_each_collective_has_its_wait_and_its_rank() -> None:
    """In milliseconds; the rank that arrived last has none."""
    out = io.StringIO()
    print_collectives(late_run(30, 70), Console(file=out, width=100))
    rows = [line.split() for line in out.getvalue().splitlines() if "all_reduce" in line]

    assert ["50.000", "40.000", "1", "0.000"] == rows[0][-4:]
    assert ["10.000", "0.000", "0.000"] == rows[1][-3:]

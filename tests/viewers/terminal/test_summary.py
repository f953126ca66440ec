"""A run in the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from rich.console import Console

import dptrace
from dptrace.run.run import Run
from dptrace.run.utilization import Utilization
from dptrace.timeline.model import Collective
from dptrace.viewers.terminal.screen import utilization_sentence
from dptrace.viewers.terminal.summary import (
    memory_sentence,
    print_collectives,
    print_run,
    profiler_sentence,
    sentence,
)
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.jobs import MS, job, late_run
from tests.support.paths import ROOT
from tests.support.terminal_text import captured


def flat(text: str) -> str:
    return " ".join(text.split())


def printed(run: Run, all_rows: bool = False, show: Callable[..., None] = print_run) -> str:
    return captured(lambda console: show(run, console, all_rows))


def test_findings_come_before_tables_and_notes_last() -> None:
    """The headline, what the profiler costs, the findings, the tables, how to see all rows, the notes."""
    ranks = [{"unprofiled_ns": [100_000], "profiled_ns": [110_000]}]
    run = Run("r", two_rank_timelines(), metadata={"profiler_overhead": 0.1, "ranks": ranks}, notes=("mind this",))
    lines = printed(run).splitlines()
    starts = [
        "A step takes 0.10 ms (mean of 2): ",
        "Mean step, ",
        "Steps timed apart from these take 100 µs",
        "Findings",
    ]
    starts += [f"mean step by {what}" for what in ("rank", "kind", "cause")] + [
        "--all prints every table",
        "! mind this",
    ]
    places = [next(i for i, line in enumerate(lines) if line.startswith(start)) for start in starts]

    assert sorted(places) == places
    assert lines[-1].startswith("!")
    assert "--all" not in printed(run, all_rows=True)


def test_a_run_without_communication_says_so() -> None:
    """No table of collectives; the mean step's shares are those of the whole run, without what no step has."""
    text = printed(alone := Run("r", (TimelineBuilder().compute(0, 30).build(),)))

    assert "no communication" in text
    assert "Mean step, 100 ns: forward 30 ns (30 %), idle 70 ns (70 %)." in text
    assert "No communication in this run." in printed(alone, show=print_collectives)


def test_each_collective_has_its_wait_and_its_rank() -> None:
    """In milliseconds; the rank that arrived last has none."""
    lines = printed(late_run(30, 70), show=print_collectives).splitlines()
    first, last = (line.split() for line in lines if "all_reduce" in line)

    assert ["50.000", "40.000", "1", "0.000"] == first[-4:]
    assert ["10.000", "0.000", "0.000"] == last[-3:]


def test_the_headline_divides_exposed_communication() -> None:
    """Waiting, with the rank that is waited for, and transfer; the mean step has the same parts."""
    text = printed(late_run(30, 30, 70))

    shares = "26.7 % waiting mostly for rank 2, 10.0 % exposed transfer, 20.0 % idle"
    assert shares in sentence(late_run(30, 30, 70)).plain
    parts = "waiting mostly for rank 2 26.7 ms (27 %), exposed transfer 10.0 ms (10 %), idle 20.0 ms (20 %)"
    assert parts in flat(text)
    assert "exposed communication" not in text[: text.index("Findings")]


def test_ranks_that_share_a_wait_are_named_together() -> None:
    """Two ranks are late, at a collective with another one each; more than three are many."""
    comm = [Collective("all_reduce", 4_096, "float", str(pair), 2, ranks=(pair, pair + 1)) for pair in (0, 2)]
    starts = (20, 70, 20, 70)
    builders = [
        TimelineBuilder(rank, bounds=(0, 100 * MS)).collective(start * MS, 80 * MS, comm[rank // 2])
        for rank, start in enumerate(starts)
    ]

    assert " waiting mostly for ranks 1 and 3," in sentence(Run("r", tuple(build.build() for build in builders))).plain
    assert " waiting for other ranks," in sentence(late_run(20, *[70] * 8)).plain


def cells(table: str, label: str, column: int) -> list[float]:
    """Return a column of numbers below a table's title, in the rows that begin with a rank."""
    rows = table[table.index(label) :].split("\n\n")[0].splitlines()
    return [float(row.split()[column].replace(",", "")) for row in rows if row[:1].isdigit()]


@pytest.mark.heavy
def test_every_share_of_the_headline_is_that_of_the_tables() -> None:
    """Each percentage is the table's figure over the headline's step, and the causes of idle time add up to it; one
    step of many times the length of the others changes nothing about that, and is named with the median.
    """
    for name, longest in (("", 1), ("", 3), ("", 50), ("ddp_cpu_2ranks", 1), ("interleaved_cpu_2ranks", 1)):
        run = dptrace.open(ROOT / "traces" / name) if name else job(steps=5, first=longest)
        text = printed(run)
        step = float(re.search(r"A step takes ([\d.,]+) ms", text)[1].replace(",", ""))  # type: ignore[index]
        part = {
            what: float(share) / 100 * step
            for share, what in re.findall(r"([\d.]+) % (waiting|exposed transfer|idle)", sentence(run).plain)
        }
        figures = {heading: np.mean(cells(text, "mean step by rank", place)) for heading, place in COLUMNS.items()}
        rounding = 0.0006 * step + 0.006

        assert figures["wall"] == pytest.approx(step, abs=rounding), (name, longest)
        assert figures["idle"] == pytest.approx(part["idle"], abs=rounding), (name, longest)
        assert figures["waiting"] == pytest.approx(part["waiting"], abs=rounding), (name, longest)
        assert figures["exposed"] == pytest.approx(part["waiting"] + part["exposed transfer"], abs=2 * rounding)
        idle = cells(text, "mean step by rank", COLUMNS["idle"])
        assert cells(text, "mean step by cause", -1) == pytest.approx(idle), (name, longest)
        assert run.to_dict()["mean_step"]["wall_ns"] / 1e6 == pytest.approx(step, abs=rounding), (name, longest)
        assert (longest > 1) == ("longest" in sentence(run).plain) == ("; median" in sentence(run).plain)


COLUMNS = {"exposed": 5, "waiting": 6, "idle": 8, "wall": 9}
"""Places in the rows of the table by rank."""


def test_what_is_selected_is_said_once() -> None:
    """Below the findings, or with all notes."""
    for sections in (("findings",), ("findings", "notes"), ()):
        run = late_run(30, 70, 30).select(ranks={0, 1})
        [note] = [note for note in run.notes if note.startswith("Only")]

        def show(run: Run, console: Console, all_rows: bool, sections: Sequence[str] = sections) -> None:
            print_run(run, console, all_rows, sections)

        assert 1 == flat(printed(run, show=show)).count(note), sections


def test_an_unknown_wait_is_reported_once() -> None:
    """Ranks are missing: exposed communication is not divided, and no table has a column of question marks."""
    run = late_run(30, size=2)
    text = printed(run)

    assert "50.0 % exposed communication (waiting unknown: rank 1 was not recorded), 20.0 % idle" in sentence(run).plain
    assert 1 == text.count("waiting unknown")
    assert "?" not in text


def test_collectives_of_missing_ranks_have_their_own_share() -> None:
    """Beside waiting and transfer in the headline, the mean step and the tables."""
    whole, lone = late_run(30, 70), Collective("all_reduce", 64, "float", "1", 2, ranks=(0, 9))
    first = TimelineBuilder(0, bounds=(0, 100 * MS)).compute(0, 30 * MS)
    first.collective(30 * MS, 80 * MS, Collective("all_reduce", 4_096, "float", "0", 2))
    run = Run("r", (first.collective(80 * MS, 100 * MS, lone).build(), whole.timelines[1]), world_size=10)
    text = flat(printed(run))

    assert "20.0 % waiting mostly for rank 1, 10.0 % exposed transfer, 10.0 % exposed in incomplete collectives" in text
    assert "exposed in incomplete collectives 10.0 ms (10 %)" in text
    assert "incomplete ms" in text
    assert "incomplete" not in flat(printed(whole))


# Facts of run.json as sentences.


def _held(parameters: int, optimizer: int | None = 0, **further: int | None) -> dict[str, Any]:
    held = {"parameters_bytes": parameters, "gradients_bytes": parameters, "optimizer_bytes": optimizer}
    return {"memory": held | further}


def test_what_a_rank_holds_is_said() -> None:
    """The largest amounts over ranks, and the GPU's peak; the process's where there is no GPU."""
    for ranks, facts in (
        ([_held(4_000_000, peak_process_bytes=300_000_000)], ("4.0 MB of parameters", "0 B of optim", "300.0 MB")),
        ([_held(4_000, 8_000)] * 2, ("Each rank", "4.0 kB of gradients", "8.0 kB of optimizer state")),
        (
            [_held(4_000, 8_000, peak_allocated_bytes=2), _held(4_000, 9_000, peak_allocated_bytes=7_000_000_000)],
            ("up to", "9.0 kB of optimizer state", "7.0 GB"),
        ),
        ([{"memory": {"peak_allocated_bytes": 5_000}}], ("GPU memory", "5.0 kB")),
    ):
        assert all(fact in memory_sentence({"ranks": ranks}) for fact in facts), (ranks, facts)


TIMED = [{"unprofiled_ns": [100e6, 90e6, 500e6]}, {"unprofiled_ns": []}]
BUSY = {"profiler_overhead_range": [-0.1, 0.95], "profiler_cpu_overhead": 0.045}


def test_the_profilers_overhead_is_a_sentence() -> None:
    """The mean over ranks of their median steps; of a busy machine the range by window and the processor time."""
    for info, facts in (
        ({"profiler_overhead": 0.2}, ("100 ms without the profiler", "120 ms with it (+20 %).")),
        ({"profiler_overhead": -0.1}, ("100 ms without the profiler (no overhead seen).",)),
        (BUSY, ("cannot be told", "−10 % to +95 %", "+4.5 %")),
        (BUSY | {"profiler_overhead": 0.5}, ("150 ms with it", "−10 % to +95 %", "+4.5 %")),
    ):
        assert [fact for fact in facts if fact in profiler_sentence(info | {"ranks": TIMED})] == [*facts], (info, facts)


def test_what_cannot_be_told_of_the_overhead_has_its_reason() -> None:
    """A busy machine, or steps that are too short; windows that differ by several steps are not shown."""
    short = {"ranks": [{"unprofiled_ns": [4e6]}]}

    assert "busy" in profiler_sentence({"ranks": TIMED} | BUSY)
    assert "steps as short" in profiler_sentence(short | BUSY)
    assert "window" not in profiler_sentence(short | BUSY | {"profiler_overhead_range": [-24.0, 23.0]})


def test_what_was_not_recorded_is_not_said() -> None:
    """Older runs without these figures, and run.json files with other content."""
    infos: tuple[dict[str, Any], ...] = (
        *({"ranks": ranks} for ranks in (None, [5, {}], [{"memory": None}], [_held(-1, None)])),
        *({"profiler_overhead": 0.1, "ranks": ranks} for ranks in ([], [{"unprofiled_ns": "x", "profiled_ns": 5}])),
        {"profiler_overhead": None, "ranks": []},
        {},
    )
    for info in infos:
        assert ("", "") == (memory_sentence(info), profiler_sentence(info)), info


def test_what_a_step_computes_is_one_sentence() -> None:
    """Rates, MFU with its peak, HFU only where something is recomputed; nothing where nothing is known."""
    known = {"tflops": 494.7, "mfu": 0.5, "hfu": 0.6, "peak_tflops": 989.4, "samples_per_s": 320_000.0}
    empty = Utilization((), "", "", "", None, "", None, None, None, None, None)

    found = utilization_sentence(replace(empty, **known, gpu="H100 SXM", dtype="bf16", source="counted"))

    assert "" == utilization_sentence(empty)
    assert all(text in found for text in ("495 TFLOP/s", "MFU 50 % of 989 TFLOP/s (H100 SXM bf16)", "HFU 60 %"))
    assert "HFU" not in utilization_sentence(replace(empty, **known | {"hfu": 0.5}))

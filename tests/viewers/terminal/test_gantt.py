"""What a terminal can show: colours, letters, harmless names."""

from __future__ import annotations

import io
import re
from collections import Counter
from itertools import product
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from dptrace.analysis.per_gpu.split import FIGURES, PART_LABELS, Part, partition
from dptrace.comparison.compare import compare
from dptrace.comparison.step_alignment import align_steps, run_steps
from dptrace.errors import DptraceError
from dptrace.run.run import Run
from dptrace.timeline.model import Phase, Timeline
from dptrace.viewers.base.theme import DARK, OVERLAPPED, PART_COLORS
from dptrace.viewers.base.time_saved import time_saved_sentence
from dptrace.viewers.terminal.gantt import MAX_RANKS, print_gantt
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.jobs import job, late_run
from tests.support.jobs import run_of as job_of
from tests.support.terminal_text import GLYPHS, drawn, paired, run_of, training
from tests.support.totals import totals


def colored(run: Run, system: Literal["standard", "256", "truecolor"], width: int = 100, **options: bool) -> str:
    file = io.StringIO()
    print_gantt(run, Console(file=file, width=width, force_terminal=True, color_system=system, _environ={}, **options))  # type: ignore[arg-type]
    return file.getvalue()


def test_colour_is_never_alone() -> None:
    """In colour, every stretch carries its part's name or letter in the palette's colours, exposed work a hatch."""
    out = colored(run_of(*two_rank_timelines()), "truecolor", 80)

    assert " Forward " in out
    assert "X///" in out
    for color in (PART_COLORS[Part.FORWARD], PART_COLORS[Part.EXPOSED_COMM], OVERLAPPED):
        red, green, blue = (int(DARK[color][0][k : k + 2], 16) for k in (1, 3, 5))
        assert f"48;2;{red};{green};{blue}" in out


def test_every_part_has_its_own_colour_on_any_terminal() -> None:
    """The legend names all; of sixteen colours they are the terminal's own, since the nearest ones may be black."""
    for system in ("standard", "256", "truecolor"):
        out = colored(run_of(training(0, 1)), system)
        legend = [line for line in out.splitlines() if "Forward" in line or "Overlapped" in line]
        grounds = [code for line in legend for code in re.findall(r"\x1b\[([\d;]*)m [FBOCXM=] ", line)]

        assert 7 == len(grounds) == len(set(grounds)), system
        assert all(f"{PART_LABELS[part]}  " in out for part in Part), system
        if system == "standard":
            assert "38;5" not in out, system
            assert {"37;41", "30;42"} <= set(grounds), system


def test_no_color_is_respected() -> None:
    """With NO_COLOR a terminal gets the letters that a pipe gets."""
    run = run_of(*two_rank_timelines())

    assert drawn(run)[2:9] == drawn(run, force_terminal=True, no_color=True, color_system="truecolor")[2:9]


def test_ascii_terminals_get_ascii() -> None:
    """An encoding without block characters gets none, and no error, whatever the names."""
    buffer = io.BytesIO()
    timeline = replace(two_rank_timelines()[0], device_name="日本 × µ")
    file = io.TextIOWrapper(buffer, encoding="ascii", errors="strict")
    print_gantt(Run("runs/日本", (timeline,), notes=("… ok",)), Console(file=file, width=80))
    file.flush()

    text = buffer.getvalue().decode("ascii")
    assert "|ProfilerStep#0" in text
    assert "XXXX" in text
    assert "OO" in text
    assert "?? x u" in text


def test_hostile_names_stay_text() -> None:
    """Escape sequences, markup and direction characters in names are spelled out, as in every view, or left out."""
    timeline = training(0, 2)
    names = ("[red]\x1b[31mone", "\x1b]0;title\x07\u202etwo\u2028")
    timeline = replace(timeline, device_name="[bold]GPU\x1b[2J\x9b", windows=replace(timeline.windows, names=names))

    lines = drawn(Run("runs/x[/]y\r", (timeline,), notes=("\x1b[31mnote [bold]\n! forged",)))

    text = "\n".join((*lines, *paired(run_of(timeline), run_of(timeline), 120)))
    assert not set("\x1b\x07\x9b\u202e\u2028\r") & set(text)
    assert "│[red]\\x1b[31mone" in text
    assert "[bold]GPU\\x1b[2J\\x9b" in text
    assert "! \\x1b[31mnote [bold]! forged" in lines


# The terminal's Gantt: which ranks, and what is said of them.


_IDLE = TimelineBuilder(1, bounds=()).compute(1, 3).build()


def test_rows_are_those_that_hold_something() -> None:
    """A rank, or each of its GPUs, is a row of the picture and one of figures; what is not drawn is named."""
    for run, lines in (
        (run_of(TimelineBuilder(0).compute(0, 50).build()), {"rank 0": 2, "  comm": 0, "Not drawn": 0}),
        (run_of(TimelineBuilder(0, bounds=(5,)).compute(1, 3).build()), {"No steps to draw.": 1, "rank": 0}),
        (Run("x", (), notes=("why",)), {"No steps to draw.": 1, "! why": 1}),
        (run_of(training(0, 1), _IDLE), {"Not drawn, as they have no step: rank 1.": 1}),
        (
            run_of(*(TimelineBuilder(0, device=k).compute(0, 100).build() for k in (0, 1))),
            {"rank 0 GPU 0 ": 2, "rank 0 GPU 1 ": 2},
        ),
    ):
        shown = drawn(run)

        assert lines == {start: sum(line.startswith(start) for line in shown) for start in lines}, (run, lines)


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [1, MAX_RANKS, MAX_RANKS + 1, 1000])
def test_many_ranks_are_cut_and_reported(ranks: int) -> None:
    """The number of those left out is told with the way to see them."""
    lines = drawn(run_of(*(training(rank, 1) for rank in range(ranks))), 100)

    assert min(ranks, MAX_RANKS) == sum("comm  " in line[:8] for line in lines)
    assert (ranks > MAX_RANKS) == any(line.startswith(f"{ranks - MAX_RANKS} more rank") for line in lines)


@pytest.mark.heavy
def test_a_screen_full_of_ranks_is_drawn_with_those_that_matter() -> None:
    """The slowest one is first among them, and it is said where to look."""
    for height, least, most in ((24, MAX_RANKS, MAX_RANKS), (100, 40, 50)):
        slow = TimelineBuilder(33, bounds=(0, 1500)).compute(0, 1400).build()
        run = run_of(*(slow if rank == 33 else training(rank, 1) for rank in range(60)))
        lines = drawn(run, 100, height=height, force_terminal=True, color_system=None)

        # The slowest one does not communicate.
        assert least <= 1 + sum("comm  " in line[:8] for line in lines) <= most + 1, height
        assert next(line for line in lines if line.startswith("rank ")).startswith("rank 33 "), height
        assert any(line.startswith("Look at: rank 33 (slowest") for line in lines), height


# The figures below the terminal's picture: those of the split.


def test_narrow_terminals_keep_the_figures_that_matter() -> None:
    """Where not all columns fit, communication and idle time stay, none of them cut, and what left is named."""
    lines = drawn(run_of(training(0, 2)), 40)
    row = next(line.split() for line in lines if line.startswith("rank 0 ") and "." in line)

    assert "15.0" in row
    assert max(map(len, lines)) <= 40
    assert "Left out at 40 columns: " in " ".join(lines)


def test_causes_and_kinds_are_reported() -> None:
    """Why the GPU was idle, how much of each collective was hidden and waiting, where known, and the findings."""
    both, alone = (drawn(run_of(*two_rank_timelines()[:count]), 108) for count in (2, 1))
    of_kind = "all_reduce: 1 per step, 4.1 kB, 10.5 µs exposed (none of it waiting), 20.0 µs overlapped (65.6"

    assert any(line.startswith(of_kind) for line in both)
    assert any(line.startswith("Idle 11.5 µs per step: ") for line in both)
    first = next(i for i, line in enumerate(alone) if line.startswith("Findings, "))
    assert not any("waiting)" in line or " wait " in line for line in alone[:first])


@pytest.mark.heavy
def test_the_figures_of_both_runs_stand_below() -> None:
    """Shares by rank, steps side by side, idling by cause and collectives by kind, of each."""
    a, b = job(), job(seed=1, factors={"exposed": 0.2})
    lines = paired(a, b, 120)

    for letter, run in (("A", a), ("B", b)):
        for split in run.splits:
            share = f"{100 * totals(split)['backward_ns'] / totals(split)['wall_ns']:.1f}"
            assert any(line.startswith(f"{letter} rank {split.rank} ") and share in line for line in lines)
        for start in (f"{letter}  all_reduce: 1 per step, 4.1 kB", f"{letter}  Idle "):
            assert any(line.startswith(start) for line in lines)
    assert 8 == sum("saved (" in line and line.strip()[0].isdigit() for line in lines)


def test_the_figures_are_the_splits() -> None:
    """Below the picture stand the figures of each rank, as shares and the wall time, with what of it is waiting."""
    run = run_of(*two_rank_timelines())
    waits = run.cross_rank.exposed_waits

    rows = [line.split() for line in drawn(run) if line.startswith("rank ") and line.endswith("s")]

    for split, row in zip(run.splits, rows, strict=True):
        total = split.total() | waits[split.rank].total()
        names = [*FIGURES[:5], "exposed_wait_ns", *FIGURES[5:-1]]
        shares = [f"{100 * (total[name] or 0) / (total['wall_ns'] or 1):.1f}" for name in names]
        assert ["rank", str(split.rank), *shares, "200", "µs"] == row


# The terminal's picture in any width: steps, rows, axis.


def test_a_pipe_gets_letters() -> None:
    """Without colours each cell is its part's letter, and communication has a row of its own."""
    lines = drawn(run_of(*two_rank_timelines()), 108)

    assert lines[:6] == [
        "made · 2 ranks · 2 × NVIDIA H100 · 2 steps",
        "steps   │ProfilerStep#0                                   │ProfilerStep#1" + " " * 35,
        "rank 0  " + 2 * "MFFFFFFFFFFFFFFBBBBBBBBBBBBBBBBBBBBXXXXX·OOOO·····",
        "  comm  " + 2 * "                         ==========XXXXX          ",
        "rank 1  " + 2 * "MFFFFFFFFFFFFFFBBBBBBBBBBBBBBBBBBBBXXXXXXOOOO·····",
        "  comm  " + 2 * "                         ==========XXXXXX         ",
    ]
    assert lines[6].startswith("        ┴────")
    assert ["0", "µs", "50", "µs", "100", "µs", "150", "µs"] == lines[7].split()


@pytest.mark.heavy
def test_any_number_of_steps_fits() -> None:
    """No line is wider than the terminal, and with many steps only every so-manieth is named."""
    for width, steps in (*product((10, 40, 80, 200), (1, 3, 40)), (10, 700), (80, 700)):
        lines = drawn(run_of(training(0, steps)), width)

        assert max(map(len, lines)) <= width, (width, steps)
        if width == 80:
            named = lines[1].count("│")
            assert 1 <= named <= 12, steps
            assert (steps == 1) == (named == 1), steps
            assert any("Many steps" in line for line in lines) == (steps > 12), steps


def test_ranks_share_one_axis_unless_clocks_are_far_apart() -> None:
    """A rank that began late is drawn late; one whose clock lies years apart from its own start, and that is told."""
    for origin, begins in ((1000, 30), (10**18, 0)):
        lines = drawn(run_of(training(0, 2), training(1, 2, origin=origin)).on_own_clocks(), 98)

        assert (0, begins) == (lines[2][8:].index("F"), lines[4][8:].index("F")), (origin, begins)
        assert (begins == 0) == any("its own first step" in line for line in lines), (origin, begins)


@pytest.mark.slow
def test_two_runs_fit_any_width() -> None:
    """No line is wider than the terminal, and the sentence is the figures' own."""
    for width in (40, 60, 80, 110, 300):
        a, b = job(ranks=4), job(ranks=1, seed=1, factors={"exposed": 0.2})
        lines = paired(a, b, width)

        assert max(map(len, lines)) <= width, width
        found = compare(a, b)
        text = " ".join(" ".join(lines).split())
        assert time_saved_sentence(align_steps(run_steps(a), run_steps(b), comparison=found)) in text, width
        assert found.summary() in text, width
        assert 5 == sum("comm  " in line[:8] for line in lines), width


# The cells of the terminal's picture: exactly what holds most of each.


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Give a step of 200 ns with any work in it."""
    build = TimelineBuilder(0, bounds=(0, 90, 200))
    for _ in range(draw(st.integers(0, 12))):
        start, length = draw(st.integers(0, 199)), draw(st.integers(1, 60))
        phase = draw(st.sampled_from([*Phase, None]))
        if phase is None:
            build.all_reduce(start, start + length)
        else:
            build.compute(start, start + length, phase)
    return build.build()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(timelines(), st.integers(24, 120))
def test_each_cell_shows_what_holds_most_of_it(timeline: Timeline, width: int) -> None:
    """Counting every nanosecond of a cell finds no part that holds more of it than the one shown.

    A small letter is the largest part of a cell that is idle for more of its time than that.
    """
    row = next(line for line in drawn(run_of(timeline), width) if line.startswith("rank 0  "))[8:]
    pieces = partition(timeline)
    part_at = np.repeat(pieces.part, pieces.end_ns - pieces.start_ns)

    cells = width - 8
    assert len(row) == cells
    for cell, glyph in enumerate(row):
        held = Counter(GLYPHS[Part(p)] for p in part_at[200 * cell // cells : 200 * (cell + 1) // cells])
        if glyph.islower():
            work = {part: count for part, count in held.items() if part != GLYPHS[Part.IDLE]}
            assert work[glyph.upper()] == max(work.values()) >= 0.1 * held.total()
            glyph = GLYPHS[Part.IDLE]
        assert held[glyph] == max(held.values())


def steady(length: int, steps: int = 2) -> Run:
    """A run of a GPU that computes in all of its steps."""
    bounds = tuple(length * k for k in range(steps + 1))
    build = TimelineBuilder(0, bounds=bounds)
    for at in bounds[:-1]:
        build.compute(at, at + length)
    return job_of([build.build()])


@pytest.mark.heavy
def test_two_runs_stand_over_each_other() -> None:
    """A's ranks over B's, with the time that B takes less; saved is what is beyond noise."""
    for a, b, by_step, rows, line in (
        # Each step of both begins in one cell, and in between stands how much shorter B's are.
        (
            steady(100),
            steady(50),
            True,
            (80 * "F", 20 * "F"),
            "In the 2 steps drawn, B takes 50 ns (50 %) less per step",
        ),
        # Without alignment by step, what B takes less stands once at the end.
        (steady(100), steady(50), False, (80 * "F", 40 * "F" + " 100 ns shorter (50 %) ".center(40, "-")), ""),
        # Where B is slower, A's row has a rest; one step each shows nothing beyond noise.
        (steady(50, 1), steady(100, 1), True, (40 * "F" + "-", 80 * "F"), "In the step drawn, B takes 50"),
        (steady(2_000_000, 10), steady(1_000_000, 10), True, ("", ""), "B saves 1.00 ms (50 %) per step"),
    ):
        lines = paired(a, b, 90, by_step)

        for label, cells in zip(("A rank 0", "B rank 0"), rows, strict=True):
            assert next(one[10:] for one in lines if one.startswith(label)).startswith(cells), a
        assert any(one.startswith(line) for one in lines), a
        assert line.startswith("B saves") == any("Saved by B" in one for one in lines), a


def test_a_run_without_steps_cannot_stand_beside_another() -> None:
    """It is refused by its name."""
    with pytest.raises(DptraceError, match=r"runs/made: there is no step"):
        paired(job(), run_of(TimelineBuilder(0, bounds=()).build()))


@pytest.mark.heavy
def test_waiting_has_a_letter_of_its_own() -> None:
    """In both rows of the rank that waits, also in a pair, and in the legend; none where waits are not known."""
    late, alone = (drawn(run, 108) for run in (late_run(30, 70), late_run(30, size=2)))
    phases, comm = (next(line for line in late if line.startswith(start)) for start in ("rank 0", "  comm"))
    pair = paired(late_run(30, 70), late_run(30, 70), 110)

    assert 30 * "F" + 40 * "W" + 10 * "X" + 20 * "·" == phases[8:]
    assert 40 * "W" + 10 * "X" == comm[8:].strip()
    assert any("Waiting for other ranks" in line for line in late)
    assert not any("W" in line for line in alone)
    assert 2 == sum(40 * "W" + 10 * "X" in line for line in pair if line[2:].startswith("rank 0"))

"""What a terminal can show: colours, letters, harmless names."""

from __future__ import annotations

import io
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

import dptrace
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
from tests.support.real_traces import needs_real_traces, real
from tests.support.terminal_text import GLYPHS, drawn, paired, run_of, training


def test_colour_is_never_alone() -> None:
    """In colour, every stretch carries its part's name or letter in the palette's colours, exposed work a hatch."""
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system="truecolor", _environ={})
    print_gantt(run_of(*two_rank_timelines()), console)

    out = file.getvalue()
    assert " Forward " in out
    assert "X///" in out
    for color in (PART_COLORS[Part.FORWARD], PART_COLORS[Part.EXPOSED_COMM], OVERLAPPED):
        red, green, blue = (int(DARK[color][0][k : k + 2], 16) for k in (1, 3, 5))
        assert f"48;2;{red};{green};{blue}" in out


def test_no_color_is_respected() -> None:
    """With NO_COLOR a terminal gets the letters that a pipe gets."""
    run = run_of(*two_rank_timelines())

    lines = drawn(run, force_terminal=True, no_color=True, color_system="truecolor")

    assert drawn(run)[2:9] == lines[2:9]


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

    text = "\n".join(lines)
    assert not set("\x1b\x07\x9b\u202e\u2028\r") & set(text)
    assert "│[red]\\x1b[31mone" in text
    assert "[bold]GPU\\x1b[2J\\x9b" in text
    assert "! \\x1b[31mnote [bold]! forged" in lines


def test_the_legend_names_every_part() -> None:
    """Every part is in the legend, overlapped communication as well."""
    text = "\n".join(drawn(run_of(training(0, 1))))

    assert all(f"{GLYPHS[part]}  {PART_LABELS[part]}" in text for part in Part)
    assert "=  Overlapped communication" in text


@pytest.mark.parametrize("system", ["standard", "256", "truecolor"])
def test_every_part_has_its_own_colour_on_any_terminal(system: str) -> None:
    """With sixteen colours no two parts share one."""
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=True, color_system=system, _environ={})  # type: ignore[arg-type]
    print_gantt(run_of(training(0, 1)), console)

    legend = [line for line in file.getvalue().splitlines() if "Forward" in line or "Overlapped" in line]
    grounds = [code for line in legend for code in re.findall(r"\x1b\[([\d;]*)m [FBOCXM=] ", line)]
    assert 7 == len(grounds) == len(set(grounds))


def test_sixteen_colours_are_the_terminals_own() -> None:
    """Not the nearest to the palette's, which may be black."""
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=True, color_system="standard", _environ={})
    print_gantt(run_of(training(0, 1)), console)

    assert "38;5" not in file.getvalue()
    assert "\x1b[37;41m" in file.getvalue()
    assert "\x1b[30;42m" in file.getvalue()


# The terminal's Gantt: which ranks, what is said of them, and two runs over each other.


@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [1, MAX_RANKS, MAX_RANKS + 1, 1000])
def test_many_ranks_are_cut_and_reported(ranks: int) -> None:
    """The first ranks are drawn, and the number of those left out is told with the way to see them."""
    lines = drawn(run_of(*(training(rank, 1) for rank in range(ranks))), 100)

    assert min(ranks, MAX_RANKS) == sum("comm  " in line[:8] for line in lines)
    remarks = [line for line in lines if "not drawn" in line]
    assert len(remarks) == (ranks > MAX_RANKS)
    assert all(line.startswith(f"{ranks - MAX_RANKS} more rank") for line in remarks)


def test_a_run_without_communication_has_no_row_for_it() -> None:
    """On a single GPU the row of communication is left out, not drawn empty."""
    lines = drawn(run_of(TimelineBuilder(0).compute(0, 50).build()))

    assert not any(line.startswith("  comm") for line in lines)


@pytest.mark.parametrize("bounds", [(), (5,)])
def test_no_steps_are_reported(bounds: tuple[int, ...]) -> None:
    """A run without steps, or without ranks, is told in words."""
    timeline = TimelineBuilder(0, bounds=bounds).compute(1, 3).build()

    assert "No steps to draw." in drawn(run_of(timeline))
    assert "No steps to draw." in drawn(Run("x", (), notes=("why",)))
    assert "! why" in drawn(Run("x", (), notes=("why",)))


def test_a_rank_without_steps_is_named() -> None:
    """A rank with nothing to draw is listed below the picture."""
    lines = drawn(run_of(training(0, 1), TimelineBuilder(1, bounds=()).compute(1, 3).build()))

    assert "Not drawn, as they have no step: rank 1." in lines


def test_two_devices_of_one_rank_are_distinguished() -> None:
    """A rank with several GPUs has a row for each, named by the GPU."""
    lines = drawn(run_of(*(TimelineBuilder(0, device=k).compute(0, 100).build() for k in (0, 1))))

    assert ["rank 0 GPU 0", "rank 0 GPU 1"] == [
        line[:12] for line in lines if line.startswith("rank 0 GPU") and "FF" in line
    ]


@pytest.mark.heavy
@needs_real_traces
def test_real_run_shows_its_straggler() -> None:
    """In the eight-GPU recording rank 1 waits least and idles most, which its row shows."""
    lines = drawn(dptrace.open(real("sharded_h100_8ranks")), 120)

    rows = [line for line in lines if line.startswith("rank ") and "%" not in line]
    waiting = [row.count("W") for row in rows]
    assert len(rows) == 8
    assert min(waiting) == waiting[1] < min(waiting[:1] + waiting[2:]) / 2


def test_a_run_without_steps_cannot_stand_beside_another() -> None:
    """It is refused by its name."""
    with pytest.raises(DptraceError, match=r"runs/made: there is no step"):
        paired(job(), run_of(TimelineBuilder(0, bounds=()).build()))


def test_those_that_matter_are_drawn_first() -> None:
    """Of more ranks than fit, the slowest one is among those drawn, and it is said where to look."""
    timelines = [training(rank, 1) for rank in range(40)]
    slow = TimelineBuilder(33, bounds=(0, 1500)).compute(0, 1400).build()
    lines = drawn(run_of(*timelines[:33], slow, *timelines[34:]), 100)

    first = next(line for line in lines if line.startswith("rank "))
    assert first.startswith("rank 33 ")
    assert any(line.startswith("Look at: rank 33 (slowest") for line in lines)


def test_a_screen_full_of_ranks_is_drawn() -> None:
    """On a tall terminal more are drawn than on a low one, or than go to a pipe."""
    run = run_of(*(training(rank, 1) for rank in range(60)))

    counts = [
        sum("comm  " in line[:8] for line in drawn(run, 100, height=height, force_terminal=True, color_system=None))
        for height in (24, 100)
    ]

    assert MAX_RANKS == counts[0]
    assert 40 <= counts[1] <= 50


# The figures below the terminal's picture: those of the split.


def test_the_figures_are_the_splits() -> None:
    """Below the picture stand the figures of each rank, as shares and the wall time, with what of it is waiting."""
    run = run_of(*two_rank_timelines())
    waits = run.cross_rank.exposed_waits

    rows = [line.split() for line in drawn(run) if line.startswith("rank ") and "%" in line]

    for split, row in zip(run.splits, rows, strict=True):
        total = split.total() | waits[split.rank].total()
        names = [*FIGURES[:5], "exposed_wait_ns", *FIGURES[5:-1]]
        shares = [f"{100 * (total[name] or 0) / (total['wall_ns'] or 1):.1f}%" for name in names]
        assert ["rank", str(split.rank), *shares, "200", "µs"] == row


def test_narrow_terminals_get_sentences() -> None:
    """Where the table would be cut the figures are told in words, none of them cut."""
    text = " ".join(drawn(run_of(training(0, 2)), 40))

    assert "rank 0: forward 30.0%, backward 40.0%" in text
    assert "exposed comm 15.0%, overlapped comm 20.0%" in " ".join(text.split())


def test_the_figures_of_both_runs_stand_below() -> None:
    """Shares by rank, steps side by side, idling by cause and collectives by kind, of each."""
    a, b = job(), job(seed=1, factors={"exposed": 0.2})
    text = "\n".join(paired(a, b, 120))

    for letter, run in (("A", a), ("B", b)):
        for split in run.splits:
            share = 100 * split.total()["backward_ns"] / split.total()["wall_ns"]
            assert any(
                line.startswith(f"{letter} rank {split.rank} ") and f"{share:.1f}%" in line
                for line in text.splitlines()
            )
        assert f"{letter}  all_reduce: 1 per step, 4.1 kB" in text
        assert f"{letter}  Idle 4.0" in text or f"{letter}  Idle 3.9" in text
    assert 8 == sum("saved (" in line and line.strip()[0].isdigit() for line in text.splitlines())


def test_the_names_of_compared_steps_are_text() -> None:
    """Also where the terminal's library would take them for markup."""
    timeline = training(0, 2)
    timeline = replace(timeline, windows=replace(timeline.windows, names=("one[/b]", "two[/b]")))

    assert any("one[/b]" in line and "µs" in line for line in paired(run_of(timeline), run_of(timeline), 120))


def test_causes_and_kinds_are_reported() -> None:
    """Why the GPU was idle, and what of each collective was hidden: means of a step."""
    lines = drawn(run_of(*two_rank_timelines()), 108)

    assert any(
        line.startswith(
            "all_reduce: 1 per step, 4.1 kB, 10.5 µs exposed (none of it waiting), 20.0 µs overlapped (65.6"
        )
        for line in lines
    )
    assert any(line.startswith("Idle 11.5 µs per step: ") for line in lines)


def test_a_wait_that_is_not_known_has_no_column() -> None:
    """One of two ranks does not show how long it waited."""
    alone, both = (drawn(run_of(*two_rank_timelines()[:count]), 108) for count in (1, 2))

    assert not any("waiting)" in line or " wait " in line for line in alone)
    assert any("waiting)" in line for line in both)


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


@pytest.mark.parametrize("width", [10, 40, 80, 200])
@pytest.mark.parametrize("steps", [1, 3, 40, 700])
def test_any_number_of_steps_fits(width: int, steps: int) -> None:
    """No line is wider than the terminal, and with many steps only every so-manieth is named."""
    lines = drawn(run_of(training(0, steps)), width)

    assert max(map(len, lines)) <= width
    if width == 80:
        named = lines[1].count("│")
        assert 1 <= named <= 12
        assert (steps == 1) == (named == 1)
        assert any("Many steps" in line for line in lines) == (steps > 12)


def test_ranks_share_one_axis() -> None:
    """A rank that began late is drawn late."""
    lines = drawn(run_of(training(0, 2), training(1, 2, origin=1000)), 98)

    assert lines[2][8:].startswith("F")
    assert lines[4][8:].index("F") == 30
    assert lines[4][8:38].isspace()


def test_wild_clocks_get_an_axis_each() -> None:
    """Ranks whose clocks lie years apart are drawn from their own starts, and that is told."""
    lines = drawn(run_of(training(0, 2), training(1, 2, origin=10**18)))

    assert lines[2][8:] == lines[4][8:]
    assert any("its own first step" in line for line in lines)


@pytest.mark.heavy
@pytest.mark.parametrize("width", [40, 60, 80, 110, 300])
def test_two_runs_fit_any_width(width: int) -> None:
    """No line is wider than the terminal, and the sentence is the figures' own."""
    a, b = job(ranks=4), job(ranks=1, seed=1, factors={"exposed": 0.2})
    lines = paired(a, b, width)

    assert max(map(len, lines)) <= width
    found = compare(a, b)
    text = " ".join(" ".join(lines).split())
    assert time_saved_sentence(align_steps(run_steps(a), run_steps(b), comparison=found)) in text
    assert found.summary() in text
    assert 5 == sum("comm  " in line[:8] for line in lines)


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


@pytest.mark.heavy
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


def row_of(lines: list[str], label: str) -> str:
    """Return the cells of a row by its label."""
    return next(line[10:] for line in lines if line.startswith(label.ljust(10)))


def test_where_b_is_slower_a_has_time() -> None:
    """It is then A's row that has a rest; of one step each, nothing shows that B has lost it."""
    a = job_of([TimelineBuilder(0, bounds=(0, 50)).compute(0, 50).build()])
    b = job_of([TimelineBuilder(0, bounds=(0, 100)).compute(0, 100).build()])

    lines = paired(a, b, 90)

    assert "50 ns longer (100 %)" in row_of(lines, "A rank 0")
    assert 80 * "F" == row_of(lines, "B rank 0")
    assert any("B longer" in line for line in lines)


def test_two_runs_stand_over_each_other() -> None:
    """A's ranks over B's, each step of both beginning in one cell, and in between how much shorter B's are."""
    a = job_of([TimelineBuilder(0, bounds=(0, 100, 200)).compute(0, 100).compute(100, 200).build()])
    b = job_of([TimelineBuilder(0, bounds=(0, 50, 100)).compute(0, 50).compute(50, 100).build()], path="runs/b")

    lines = paired(a, b, 90)

    for side in "AB":
        steps = row_of(lines, f"{side} steps").rstrip()
        assert "│ProfilerStep#0".ljust(40) + "│ProfilerStep#1" == steps
    assert 80 * "F" == row_of(lines, "A rank 0")
    cells = row_of(lines, "B rank 0")
    assert 20 * "F" == cells[:20] == cells[40:60]
    assert "F" not in cells[20:40] + cells[60:]
    assert "In the 2 steps drawn, B takes 100 ns (50 %) less: 100 ns against A's 200 ns." in lines


def test_time_is_saved_where_the_step_time_differs_beyond_noise() -> None:
    """Ten steps each: the gaps and the sentence say so."""
    length = 1_000_000

    def steady(factor: int) -> Run:
        bounds = tuple(factor * length * k for k in range(11))
        build = TimelineBuilder(0, bounds=bounds)
        for at in bounds[:-1]:
            build.compute(at, at + factor * length)
        return job_of([build.build()])

    lines = paired(steady(2), steady(1), 90)

    assert any(line.startswith("B saves 10.0 ms (50 %) in 10 steps") for line in lines)
    assert any("Saved by B" in line for line in lines)


def test_runs_that_only_begin_together_go_on_as_they_ran() -> None:
    """Without alignment by step, what B takes less stands once at the end."""
    a = job_of([TimelineBuilder(0, bounds=(0, 100, 200)).compute(0, 200).build()])
    b = job_of([TimelineBuilder(0, bounds=(0, 50, 100)).compute(0, 100).build()])

    row = row_of(paired(a, b, 90, by_step=False), "B rank 0")

    assert 40 * "F" + " 100 ns shorter (50 %) ".center(40, "-") == row


def test_waiting_has_a_letter_of_its_own() -> None:
    """In both rows of the rank that waits, and in the legend; none where waits are not known."""
    late, alone = (drawn(run, 108) for run in (late_run(30, 70), late_run(30, size=2)))
    phases, comm = (next(line for line in late if line.startswith(start)) for start in ("rank 0", "  comm"))

    assert 30 * "F" + 40 * "W" + 10 * "X" + 20 * "·" == phases[8:]
    assert 40 * "W" + 10 * "X" == comm[8:].strip()
    assert any("Waiting for other ranks" in line for line in late)
    assert not any("W" in line for line in alone)


def test_waiting_is_drawn_in_a_pair_of_runs() -> None:
    """In the row of either run."""
    lines = paired(late_run(30, 70), late_run(30, 70), 110)

    assert 2 == sum(40 * "W" + 10 * "X" in line for line in lines if line[2:].startswith("rank 0"))

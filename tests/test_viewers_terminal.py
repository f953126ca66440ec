"""The terminal's Gantt: exact cells, harmless names, and a picture for every width and terminal."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import dptrace
from dptrace.run import Run
from dptrace.split import FIGURES, Part, partition
from dptrace.timeline import Phase, Timeline
from dptrace.viewers.terminal import MOST_RANKS, print_gantt
from dptrace.viewers.theme import OVERLAPPED, PART_COLORS, PART_LABELS
from tests.builders import TimelineBuilder, two_rank_timelines
from tests.real_traces import needs_real_traces, real

GLYPHS = {
    Part.FORWARD: "F",
    Part.BACKWARD: "B",
    Part.OPTIMIZER: "O",
    Part.OTHER: "C",
    Part.EXPOSED_COMM: "X",
    Part.EXPOSED_MEMORY: "M",
    Part.IDLE: "·",
}


def drawn(run: Run, width: int = 80, **options: object) -> list[str]:
    """Give the lines that a pipe gets."""
    file = io.StringIO()
    print_gantt(run, Console(file=file, width=width, **options))  # type: ignore[arg-type]
    return file.getvalue().splitlines()


def run_of(*timelines: Timeline) -> Run:
    return Run("runs/made", timelines)


def training(rank: int, steps: int, origin: int = 0) -> Timeline:
    build = TimelineBuilder(rank, bounds=tuple(origin + 1000 * k for k in range(steps + 1)))
    for t in range(origin, origin + 1000 * steps, 1000):
        build.compute(t, t + 300).compute(t + 300, t + 700, Phase.BACKWARD).all_reduce(t + 500, t + 850)
    return build.build()


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


def test_the_figures_are_the_splits() -> None:
    """Below the picture stand the nine figures of each rank, as shares and the wall time."""
    run = run_of(*two_rank_timelines())

    rows = [line.split() for line in drawn(run) if "%" in line]

    for split, row in zip(run.splits, rows, strict=True):
        total = split.total()
        shares = [f"{100 * total[name] / total['wall_ns']:.1f}%" for name in FIGURES[:-1]]
        assert ["rank", str(split.rank), *shares, "200", "µs"] == row


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


def test_colour_is_never_alone() -> None:
    """In colour, every stretch carries its part's name or letter in the palette's colours, exposed work a hatch."""
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system="truecolor", _environ={})
    print_gantt(run_of(*two_rank_timelines()), console)

    out = file.getvalue()
    assert " Forward " in out
    assert "X///" in out
    for color in (PART_COLORS[Part.FORWARD], PART_COLORS[Part.EXPOSED_COMM], OVERLAPPED):
        red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
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
    """Escape sequences, markup and direction characters in names reach the terminal as harmless text or not at all."""
    timeline = training(0, 2)
    names = ("[red]\x1b[31mone", "\x1b]0;title\x07\u202etwo\u2028")
    timeline = replace(timeline, device_name="[bold]GPU\x1b[2J\x9b", windows=replace(timeline.windows, names=names))

    lines = drawn(Run("runs/x[/]y\r", (timeline,), notes=("\x1b[31mnote [bold]\n! forged",)))

    text = "\n".join(lines)
    assert not set("\x1b\x07\x9b\u202e\u2028\r") & set(text)
    assert "│[red]one" in text
    assert "[bold]GPU" in text
    assert "! note [bold]! forged" in lines


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


@pytest.mark.parametrize("ranks", [1, MOST_RANKS, MOST_RANKS + 1, 1000])
def test_many_ranks_are_cut_and_told(ranks: int) -> None:
    """The first ranks are drawn, and the number of those left out is told with the way to see them."""
    lines = drawn(run_of(*(training(rank, 1) for rank in range(ranks))), 100)

    assert min(ranks, MOST_RANKS) == sum("comm  " in line[:8] for line in lines)
    told = [line for line in lines if "not drawn" in line]
    assert len(told) == (ranks > MOST_RANKS)
    assert all(line.startswith(f"{ranks - MOST_RANKS} more rank") for line in told)


def test_a_run_without_communication_has_no_row_for_it() -> None:
    """On a single GPU the row of communication is left out, not drawn empty."""
    lines = drawn(run_of(TimelineBuilder(0).compute(0, 50).build()))

    assert not any(line.startswith("  comm") for line in lines)


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


def test_narrow_terminals_get_sentences() -> None:
    """Where the table would be cut the figures are told in words, none of them cut."""
    text = " ".join(drawn(run_of(training(0, 2)), 40))

    assert "rank 0: forward 30.0%, backward 40.0%" in text
    assert "exposed comm 15.0%, overlapped comm 20.0%" in " ".join(text.split())


@pytest.mark.parametrize("bounds", [(), (5,)])
def test_no_steps_are_told(bounds: tuple[int, ...]) -> None:
    """A run without steps, or without ranks, is told in words."""
    timeline = TimelineBuilder(0, bounds=bounds).compute(1, 3).build()

    assert "No steps to draw." in drawn(run_of(timeline))
    assert "No steps to draw." in drawn(Run("x", (), notes=("why",)))
    assert "! why" in drawn(Run("x", (), notes=("why",)))


def test_a_rank_without_steps_is_named() -> None:
    """A rank with nothing to draw is named beside those that are drawn."""
    lines = drawn(run_of(training(0, 1), TimelineBuilder(1, bounds=()).compute(1, 3).build()))

    assert "Without a step, and so not drawn: rank 1." in lines


def test_two_devices_of_one_rank_are_told_apart() -> None:
    """A rank with several GPUs has a row for each, named by the GPU."""
    lines = drawn(run_of(*(TimelineBuilder(0, device=k).compute(0, 100).build() for k in (0, 1))))

    assert ["rank 0 GPU 0", "rank 0 GPU 1"] == [
        line[:12] for line in lines if line.startswith("rank 0 GPU") and "FF" in line
    ]


def test_the_legend_names_every_part() -> None:
    """Every part is in the legend, overlapped communication as well."""
    text = "\n".join(drawn(run_of(training(0, 1))))

    assert all(f"{GLYPHS[part]}  {PART_LABELS[part]}" in text for part in Part)
    assert "=  Overlapped communication" in text


@needs_real_traces
def test_real_run_shows_its_straggler() -> None:
    """In the eight-GPU recording rank 1 waits least and idles most, which its row shows."""
    lines = drawn(dptrace.open(real("sharded_h100_8ranks")), 120)

    rows = [line for line in lines if line.startswith("rank ") and "%" not in line]
    exposed = [row.count("X") for row in rows]
    assert len(rows) == 8
    assert min(exposed) == exposed[1] < min(exposed[:1] + exposed[2:]) / 2

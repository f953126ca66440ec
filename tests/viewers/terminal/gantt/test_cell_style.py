"""What a terminal can show: colours, letters, harmless names."""

from __future__ import annotations

import io
import re

import pytest
from msgspec.structs import replace
from rich.console import Console

from dptrace.analysis.per_gpu.split import PART_LABELS, Part
from dptrace.run.run import Run
from dptrace.viewers.base.theme import DARK, OVERLAPPED, PART_COLORS
from dptrace.viewers.terminal.gantt.chart import print_gantt
from tests.support.builders import two_rank_timelines
from tests.support.terminal_text import GLYPHS, drawn, run_of, training


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

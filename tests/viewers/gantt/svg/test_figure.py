"""The figure for papers and slides."""

from __future__ import annotations

import re

import pytest

import dptrace
from dptrace.run.run import Run
from dptrace.viewers.gantt.svg.figure import figure_svg
from tests.support.paths import TRACES
from tests.support.synthetic import training_run
from tests.support.view_cases import many_ranks


def texts(drawn: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn)


def test_one_step_is_drawn_without_a_heading() -> None:
    """The one of median length; nothing but axis, rows and legend stands around it."""
    run = training_run(600, ranks=2, steps=5)
    drawn = texts(figure_svg(run))

    assert 1 == sum(text.startswith("step ") for text in drawn)
    assert {"rank 0 · GPU 0", "rank 1 · GPU 1"} <= set(drawn)
    assert not any(run.path in text or "A step takes" in text for text in drawn)


@pytest.mark.parametrize("width", [400, 640, 1200])
def test_it_is_as_wide_as_asked_and_nothing_leaves_it(width: int) -> None:
    """Boxes and legend end within the figure, and labels of the axis do not touch."""
    drawn = figure_svg(training_run(600, ranks=2, steps=3), width=width)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
    boxes = [(float(x), float(w)) for x, w in re.findall(r"M([\d.]+) [\d.]+h([\d.]+)v", drawn)]
    starts = [float(x) for x in re.findall(r'<text x="([\d.]+)"', drawn)]

    assert size
    assert width == float(size[1])
    assert boxes
    assert all(x + w <= width for x, w in boxes)
    assert all(x < width - 10 for x in starts)


@pytest.mark.heavy
def test_the_chosen_steps_and_ranks_are_drawn() -> None:
    """All of them, also if they are many."""
    run = many_ranks()
    every = texts(figure_svg(run, every_rank=True))
    some = texts(figure_svg(run))

    assert len(run.ranks) == sum(text.startswith("rank ") for text in every)
    assert 8 == sum(text.startswith("rank ") for text in some)
    assert 3 == sum(text.startswith("step ") for text in texts(figure_svg(training_run(600, steps=3), True)))


def test_findings_are_numbered_in_the_chart_and_written_below() -> None:
    """The culprit is framed, and the text of the finding stands below the rows with its number."""
    run = dptrace.open(str(TRACES / "interleaved_cpu_2ranks"))
    drawn = figure_svg(run, annotate=True)
    numbers = [text for text in texts(drawn) if text in "123"]

    assert numbers.count("1") == 2
    assert any("waits for rank 1" in text for text in texts(drawn))
    assert not any("waits for rank 1" in text for text in texts(figure_svg(run)))


def test_a_run_without_steps_says_so() -> None:
    """The figure holds one sentence."""
    assert any("no step" in text for text in texts(figure_svg(Run("x", ()))))

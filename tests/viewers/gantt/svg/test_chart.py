"""The static Gantt chart: its areas are the split's times, and it has few shapes."""

from __future__ import annotations

import re

import pytest

from dptrace.analysis.per_gpu.split import Part, partition
from dptrace.run.run import Run
from dptrace.timeline.model import Phase
from dptrace.viewers.base import theme
from dptrace.viewers.gantt.svg.chart import MAX_SHAPES, gantt_svg
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.synthetic import training_run
from tests.support.view_cases import many_ranks

BOX = re.compile(r"M([\d.-]+) ([\d.-]+)h([\d.-]+)v([\d.-]+)h")


def areas(text: str, color: str) -> float:
    """Sum the area that paths fill with a colour in the phases row, in square pixels."""
    idle = re.search(rf'y="([\d.]+)" width="[\d.]+" height="20" fill="{theme.IDLE}"', text)
    assert idle
    top, total = float(idle[1]), 0.0
    for path, filled in re.findall(r'<path d="([^"]*)" fill="([^"]*)"', text):
        if filled == color:
            boxes = BOX.findall(path)
            total += sum(float(w) * float(h) for _, y, w, h in boxes if top <= float(y) < top + 20)
    return total


@pytest.mark.parametrize("kernels", [40, 3_000])
def test_areas_are_the_times_of_the_split(kernels: int) -> None:
    """Each part's area in the phases row is its time, drawn whole or as shares of columns."""
    run = training_run(kernels, ranks=1)
    text = gantt_svg(run)
    pieces, bounds = partition(run.timelines[0]), run.timelines[0].windows.bounds
    for part in (Part.FORWARD, Part.BACKWARD):
        mask = pieces.part == part
        share = float((pieces.end_ns[mask] - pieces.start_ns[mask]).sum()) / int(bounds[-1] - bounds[0])
        assert areas(text, theme.PART_COLORS[part]) == pytest.approx(share * 20 * (1400 - 24 - left_of(text)), rel=0.02)


def left_of(text: str) -> float:
    found = re.search(r'<polyline points="([\d.]+),', text)
    assert found
    return float(found[1])


@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_shapes_are_few(ranks: int) -> None:
    """With many kernels and ranks, the file is small."""
    text = gantt_svg(training_run(60_000, ranks=ranks, steps=4))
    whole = sum(len(BOX.findall(path)) for path in re.findall(r'<path d="([^"]*)"', text))

    assert whole <= MAX_SHAPES * 2
    assert len(text) < 1_000_000


def test_what_matters_is_named() -> None:
    """GPUs, rows, steps with their durations, the sentence, and the hatch of exposed communication."""
    text = gantt_svg(Run("runs/two", two_rank_timelines(), world_size=2))

    rows = "rank 1 · GPU 1", "phases", "communication"
    for word in (*rows, "step 0 · 0.10 ms", "A step takes", "Exposed communication"):
        assert word in text
    assert f'fill="url(#hatch-{theme.EXPOSED[1:]})"' in text
    assert "A step takes" not in gantt_svg(Run("x", two_rank_timelines()), heading=False)


def test_no_label_stands_over_idle_time() -> None:
    """A phase is named where its colour fills the place, with its time if idle time does not interrupt it."""
    build = TimelineBuilder(0, bounds=(0, 10_000_000))
    build.compute(0, 4_000_000, Phase.FORWARD, "gemm")
    for i in range(40):
        build.compute(4_100_000 + 140_000 * i, 4_150_000 + 140_000 * i, Phase.BACKWARD, "gemm")
    text = gantt_svg(Run("sparse", (build.build(),)))

    assert 1 == text.count(">Forward 4.00 ms<")
    assert 1 == len(re.findall(">Backward[^<]*<", text))  # in the legend


@pytest.mark.heavy
def test_many_ranks_have_a_row_each() -> None:
    """Only the phases are drawn, and the chart is not too high."""
    text = gantt_svg(many_ranks())
    found = re.search(r'height="([\d.]+)"', text)

    assert found
    assert float(found[1]) < 1_200
    assert 64 == len(re.findall(r">rank \d+ · GPU \d+<", text))

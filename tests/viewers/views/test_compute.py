"""The bars of kernels add up to their time, by phase and kind."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from dptrace.run.kernels import kernel_summary
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.charts import Bar, bar_chart
from dptrace.viewers.base.marks import Box, Dot, Label, Line
from dptrace.viewers.views.compute import kernels, kernels_table, roofline, roofline_table
from tests.support.layered_files import layered_file
from tests.support.synthetic import training_timeline


@pytest.fixture
def run() -> Run:
    return Run("runs/made", (training_timeline(0, 600), training_timeline(1, 600)), world_size=2)


def test_boxes_are_the_time_of_each_kernel(run: Run) -> None:
    """Mean per device and step."""
    drawn = sum(mark.right - mark.left for mark in kernels(run).marks if isinstance(mark, Box))
    totals = kernel_summary(run, "kernel").totals

    assert sum(one["total_ns"] for one in totals.values()) / 6 == pytest.approx(drawn)


def test_a_kernel_of_one_phase_has_no_share_of_itself(run: Run) -> None:
    """Its share of all kernels stands at its end, and no time is written as 0."""
    drawn = kernels(run)
    boxes = [mark for mark in drawn.marks if isinstance(mark, Box)]
    labels = [mark.text for mark in drawn.marks if isinstance(mark, Label)]

    assert any(not box.texts for box in boxes)
    assert not any("100.0 %" in text for box in boxes for text in (box.tip, *box.texts))
    bar = Bar("copy", "copy", [("Memory", 4_670.0, theme.MEMORY)])
    labels += [mark.text for mark in bar_chart("", "", [bar], 20).marks if isinstance(mark, Label)]
    assert "4.67 µs" == labels[-1]


def test_the_table_has_a_row_for_each_kernel(run: Run) -> None:
    """Most time first, with its short name."""
    rows = kernels_table(run).rows
    times = [float(row[3].replace(",", "")) for row in rows]

    assert "vectorized_elementwise_kernel(CUDAFunctor_add<float>)" in [row[0] for row in rows]
    assert sorted(times, reverse=True) == times


# FLOP/s over arithmetic intensity, under the roofline.


def run_on(gpu: str, folder: Path) -> Run:
    """Return a rank with four products of [64, 32] × [32, 16], on a GPU of this name."""
    file = layered_file()
    file.head["deviceProperties"] = [{"id": 0, "name": gpu}]
    return dptrace.open(file.write(folder / "rank0.json"))


@pytest.mark.heavy
def test_an_operator_is_a_dot_under_the_roof(tmp_path: Path) -> None:
    """65,536 FLOPs over 7,168 bytes; the roof bends at the ridge of an H100, at its peak."""
    drawing = roofline(run_on("NVIDIA H100 80GB HBM3", tmp_path))

    (dot,) = (mark for mark in drawing.marks if isinstance(mark, Dot))
    roof, ridge = (mark for mark in drawing.marks if isinstance(mark, Line))
    assert pytest.approx(65_536 / 7_168, rel=1e-5) == dot.x
    assert "aten::mm [64,32] [32,16] bf16" in dot.tip
    assert [pytest.approx((295.3, 989.4), rel=1e-3), (drawing.x.high, 989.4)] == list(roof.points[1:])
    assert ridge.points[0][0] == ridge.points[1][0] == roof.points[1][0]
    assert {"ridge 295", "bf16 989 TFLOP/s"} == {mark.text for mark in drawing.marks if isinstance(mark, Label)}
    (row,) = roofline_table(run_on("NVIDIA H100 80GB HBM3", tmp_path)).rows
    assert ("aten::mm", "[64,32] [32,16]", "bf16", "4", "memory") == (*row[:4], row[-1])
    assert {Dot} == {type(mark) for mark in roofline(run_on("A GPU", tmp_path)).marks}

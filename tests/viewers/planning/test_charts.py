"""The chart of all-reduces by size."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dptrace.model.planning.describe import Description
from dptrace.model.planning.reports import predict_report
from dptrace.model.training.communication import Link, Network, level, message_costs
from dptrace.viewers.base.marks import Dot, Drawing, Line
from dptrace.viewers.planning.charts import message_chart, plan_roofline_chart, recorded_roofline_chart, roofline_chart


def test_lines_cross_where_the_ring_overtakes() -> None:
    """A line and a dot for each algorithm, and a ring on the ring's line where the tree takes as long."""
    link = Link("link", 5e-6, 25e9)
    content = message_costs(Network(link, link, 8), 208e6, 4, 0.0)
    drawing = message_chart(content)
    lines = [mark for mark in drawing.marks if isinstance(mark, Line)]
    dots = [mark for mark in drawing.marks if isinstance(mark, Dot)]
    (crossing,) = [dot for dot in dots if dot.hollow]

    assert len(content["all_reduce"]) == len(lines) == len(dots) - 1
    assert pytest.approx(100e3) == crossing.x
    assert pytest.approx(1e9 * (6 * 5e-6 + 1.5 * 100e3 / 25e9)) == crossing.y
    assert [pytest.approx(1e9 * row["seconds"]) for row in content["all_reduce"]] == [
        dot.y for dot in dots if not dot.hollow
    ]
    for line in lines:
        assert all(
            min(drawing.y.low, drawing.y.high) <= y <= max(drawing.y.low, drawing.y.high) for _, y in line.points
        )


# The communication roofline as a chart.


def levels() -> list[dict[str, Any]]:
    links = (Link("near", 0.0, 450e9), Link("far", 0.0, 50e9))
    return [{"sent_bytes": 1e9, **msgspec.to_builtins(level(link, 989e12, 3072.0, 1.0))} for link in links]


def dots(drawing: Drawing, hollow: bool) -> list[Dot]:
    return [mark for mark in drawing.marks if isinstance(mark, Dot) and mark.hollow == hollow]


def test_each_link_has_its_roof_and_its_points() -> None:
    """The slope ends at the ridge, in the peak; a point is at what is computed for each byte, and how fast."""
    drawing = roofline_chart(levels(), 989e12, [("step 1", 400e12), ("step 2", 100e12)])
    roofs = [mark for mark in drawing.marks if isinstance(mark, Line)]

    assert [(989e12 / 450e9, 989e12), (989e12 / 50e9, 989e12)] == [(ring.x, ring.y) for ring in dots(drawing, True)]
    for roof, rate in zip(roofs, (450e9, 50e9), strict=True):
        (left, low), ridge, (_, end) = roof.points
        assert pytest.approx(left * rate) == low
        assert (989e12, 989e12) == (ridge[1], end)
    assert [(3072.0, 400e12), (3072.0, 100e12)] * 2 == [(dot.x, dot.y) for dot in dots(drawing, False)]
    assert "step 2: 100 TFLOP/s" in dots(drawing, False)[1].tip
    assert all(drawing.y.high < dot.y < drawing.y.low or drawing.y.low < dot.y < drawing.y.high
               for dot in dots(drawing, False))  # fmt: skip


def test_a_plan_lies_below_its_roofs() -> None:
    """A point for each link that it uses, at the rate that its step gives."""
    content = predict_report(Description(params=7e9, gpus=64, strategy="ddp", batch=512))
    drawing = plan_roofline_chart(content)
    rate = content["model_flops"] / 64 / content["step_s"]

    assert [(one["ccr"], rate) for one in content["roofline"]] == [(dot.x, dot.y) for dot in dots(drawing, False)]
    assert all(rate < one["ccr"] * one["bytes_per_s"] for one in content["roofline"])


def test_what_is_not_known_is_not_drawn() -> None:
    """A recording without FLOPs, and a plan on one GPU, give a sentence instead."""
    assert recorded_roofline_chart({"roofline": None}).message
    assert plan_roofline_chart({"roofline": []}).message

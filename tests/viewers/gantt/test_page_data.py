"""What the page is told: rows that do not overlap, columns that come back, and colours of the theme."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.analysis.per_gpu.labels import CAUSE_LABELS
from dptrace.analysis.per_gpu.split import Part
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.gantt.chart import OVERLAPPED, cause_category, chart
from dptrace.viewers.gantt.column_packing import unpack
from dptrace.viewers.gantt.page_data import categories, layout, scene
from tests.support.builders import TimelineBuilder
from tests.support.synthetic import training_run


@pytest.mark.parametrize("ranks", [1, 4, 8, 16])
def test_rows_stand_below_each_other(ranks: int) -> None:
    """In the order of tracks and roles, without touching, inside the height."""
    placed = layout(chart(training_run(200 * ranks, ranks)))
    boxes = sorted((box["y"], box["h"]) for box in (*placed["rows"], *placed["strips"]))

    assert len(placed["rows"]) == 4 * ranks
    assert all(y + h < below for (y, h), (below, _) in pairwise(boxes))
    assert boxes[-1][0] + boxes[-1][1] <= placed["height"]


def test_eight_gpus_fit_a_laptop_s_screen() -> None:
    """Header, minimap and axis take about 260 of 900 pixels."""
    assert layout(chart(training_run(1_600, 8)))["height"] <= 650


def test_rows_that_would_be_empty_on_every_gpu_are_left_out() -> None:
    """Neither communication nor memory in a single-GPU run without copies."""
    single = chart(Run("", (TimelineBuilder(0).compute(0, 50).build(),)))

    assert ["phases", "compute"] == [row["role"] for row in layout(single)["rows"]]


def test_columns_come_back_lane_by_lane() -> None:
    """Starts are sums of steps from the lane's first; the rest stands as it is."""
    drawn = chart(training_run(600))
    told = json.loads(json.dumps(scene(drawn)))
    at = 0
    for lane, said in zip(drawn.lanes, told["lanes"], strict=True):
        rows = slice(at, at + said["count"])
        start = said["first"] + np.cumsum(unpack(told["columns"]["delta"])[rows])
        streams = np.array(told["columns"]["streams"])[unpack(told["columns"]["stream"])[rows]]

        assert lane.start_ns.tolist() == start.tolist()
        assert lane.duration_ns.tolist() == unpack(told["columns"]["duration"])[rows].tolist()
        assert lane.category.tolist() == unpack(told["columns"]["category"])[rows].tolist()
        assert lane.name.tolist() == unpack(told["columns"]["name"])[rows].tolist()
        assert lane.stream.tolist() == streams.tolist()
        at += said["count"]
    assert at == len(drawn)


def test_categories_are_the_theme_s() -> None:
    """A category's index is its part; overlapped communication and idling's causes follow; the order has each once."""
    told = categories()

    assert [theme.PART_COLORS[Part(part)] for part in range(len(Part))] == [one["color"] for one in told[: len(Part)]]
    assert list(CAUSE_LABELS.values()) == [told[cause_category(cause)]["label"] for cause in CAUSES]
    assert ("Overlapped communication", theme.OVERLAPPED) == (told[OVERLAPPED]["label"], told[OVERLAPPED]["color"])
    assert sorted(scene(chart(training_run(200)))["order"]) == list(range(len(told)))


def test_the_same_run_gives_the_same_scene() -> None:
    """Nothing in it depends on when it was made."""
    assert scene(chart(training_run(300))) == scene(chart(training_run(300)))

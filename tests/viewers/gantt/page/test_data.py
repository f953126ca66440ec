"""The page's data: rows do not overlap, columns unpack to the chart's values, colours are the theme's."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from dptrace.analysis.per_gpu.split import CAUSE_LABELS, CAUSES, Part
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.gantt.chart import OVERLAPPED, Role, cause_category, chart
from dptrace.viewers.gantt.column_packing import unpack
from dptrace.viewers.gantt.page.data import categories, layout, scene
from tests.support.builders import TimelineBuilder
from tests.support.synthetic import training_run
from tests.support.times import unpack_times


@pytest.mark.parametrize("ranks", [1, 4, 8, 16])
def test_rows_do_not_overlap(ranks: int) -> None:
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
    """A single-GPU run without copies has neither communication nor memory rows."""
    single = chart(Run("", (TimelineBuilder(0).compute(0, 50).build(),)))

    assert ["phases", "compute"] == [row["role"] for row in layout(single)["rows"]]


def test_columns_come_back_lane_by_lane() -> None:
    """Times as each lane stores them; the other columns are stored directly."""
    drawn = chart(training_run(600))
    data = json.loads(json.dumps(scene(drawn)))
    offset, phases = 0, None
    for lane, entry in zip(drawn.lanes, data["lanes"], strict=True):
        rows = slice(offset, offset + entry["count"])
        starts, durations = unpack(data["columns"]["delta"])[rows], unpack(data["columns"]["duration"])[rows]
        start, duration = unpack_times(entry["times"], entry["first"], starts, durations, phases)
        phases = (start, duration) if lane.role is Role.PHASES else phases
        streams = np.array(data["columns"]["streams"])[unpack(data["columns"]["stream"])[rows]]

        assert lane.start_ns.tolist() == start.tolist()
        assert lane.duration_ns.tolist() == duration.tolist()
        assert lane.category.tolist() == unpack(data["columns"]["category"])[rows].tolist()
        assert lane.name.tolist() == unpack(data["columns"]["name"])[rows].tolist()
        assert lane.stream.tolist() == streams.tolist()
        offset += entry["count"]
    assert offset == len(drawn)


def test_categories_are_the_theme_s() -> None:
    """A category's index is its part, then overlapped communication, then idle causes; the order has each once."""
    shown = categories()

    assert [theme.PART_COLORS[Part(part)] for part in range(len(Part))] == [one["color"] for one in shown[: len(Part)]]
    assert list(CAUSE_LABELS.values()) == [shown[cause_category(cause)]["label"] for cause in CAUSES]
    assert ("Overlapped communication", theme.OVERLAPPED) == (
        shown[OVERLAPPED]["label"],
        shown[OVERLAPPED]["color"],
    )
    assert sorted(scene(chart(training_run(200)))["order"]) == list(range(len(shown)))


def test_the_same_run_gives_the_same_scene() -> None:
    """The scene is deterministic."""
    assert scene(chart(training_run(300))) == scene(chart(training_run(300)))

"""The view of layers draws forward, backward and collectives of each layer where they ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.load.open import open_run
from dptrace.run.run import Run
from dptrace.viewers.base.marks import Box, message
from dptrace.viewers.views.timelines.layers import NO_LAYERS, TITLE, layers, layers_table
from tests.support.layered_files import layered_file


@pytest.fixture
def run(tmp_path: Path) -> Run:
    layered_file(steps=3).write(tmp_path / "rank0.json")
    return open_run([str(tmp_path)])


def test_boxes_lie_where_the_layer_ran(run: Run) -> None:
    """Of one step, from its start: forward 20 to 30 and 33 to 38, backward 60 to 80 µs, the all-reduce 85 to 115."""
    boxes = [mark for mark in layers(run).marks if isinstance(mark, Box)]
    start = min(box.left for box in boxes)

    assert {(0, 10_000), (13_000, 18_000), (40_000, 60_000), (65_000, 95_000)} == {
        (box.left - start, box.right - start) for box in boxes
    }


def test_the_table_has_each_layer(run: Run) -> None:
    """In ms, mean per rank and step."""
    rows = {row[0]: row[1:] for row in layers_table(run).rows}

    assert ("0.015", "0.020", "0.000", "0.030", "0.030") == rows["Block_0"]


def test_a_run_without_layers_says_how_to_get_them(run: Run) -> None:
    """A run in memory can't be read again."""
    alone = Run("runs/memory", run.timelines, world_size=1)

    assert message(TITLE, NO_LAYERS) == layers(alone)
    assert NO_LAYERS == layers_table(alone).note

"""Views over time: layers, memory, pipelines."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from msgspec.structs import replace

import dptrace
from dptrace.load.open import open_run
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.charts import KIND_COLORS
from dptrace.viewers.base.marks import Box, Dot, Drawing
from dptrace.viewers.terminal.summary import print_run
from dptrace.viewers.views.timelines import (
    bubble_table,
    labels,
    layers,
    layers_table,
    memory,
    memory_table,
    schedule,
    schedule_table,
)
from tests.analysis.cross_rank.test_pipeline_bubble import gpipe, run_of
from tests.support.layered_files import layered_file
from tests.support.memory_files import GOLDEN, memory_run, training_file
from tests.support.terminal_text import captured

# The view of layers draws forward, backward and collectives of each layer where they ran.


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
    assert ("Block_0", "0.015", "0.020", "0.000", "0.030", "0.030") in layers_table(run).rows


# The view of memory over time.


def heights(drawing: Drawing) -> dict[str, float]:
    """The tallest box of each color."""
    found: dict[str, float] = {}
    for mark in drawing.marks:
        if isinstance(mark, Box):
            found[mark.color] = max(found.get(mark.color, 0), mark.bottom - mark.top)
    return found


def test_heights_are_bytes(tmp_path: Path) -> None:
    """All kinds have one scale: the state of the optimizer is twice as high as the gradients."""
    drawing = memory(dptrace.open(memory_run(tmp_path, ranks=1)))
    scale = 150 / 4096
    by_kind = {kind.name: round(heights(drawing).get(color, 0) / scale) for kind, color in KIND_COLORS.items()}

    assert {
        "PREEXISTING": 1000,
        "OPTIMIZER_STATE": 200,
        "GRADIENT": 100,
        "ACTIVATION": 40,
        "COMMUNICATION": 16,
        "TEMPORARY": 8,
        "OTHER": 0,
    } == by_kind


def test_peaks_and_failed_allocations_are_marked(tmp_path: Path) -> None:
    """A diamond at each peak, a triangle where an allocation failed."""
    file = training_file()
    file.memory(20, 1 << 40, 0, 1040, device=0, name="[OutOfMemory]")
    dots = [mark for mark in memory(dptrace.open(file.write(tmp_path / "a.json"))).marks if isinstance(mark, Dot)]

    assert {"diamond": 1, "triangle": 1} == Counter(dot.shape for dot in dots)


@pytest.mark.parametrize("gpu", [True, False])
def test_a_host_is_drawn_only_where_it_computes(tmp_path: Path, gpu: bool) -> None:
    """Of a rank with a GPU, only the GPU; the table has both."""
    file = training_file(gpu=gpu)
    file.memory(5, 8, 123, 8)
    run = dptrace.open(file.write(tmp_path / "a.json"))

    assert 1 == len(memory(run).y.strong)
    assert 1 + gpu == len(memory_table(run).rows)


@pytest.mark.heavy
def test_the_rest_of_many_devices_is_named(tmp_path: Path) -> None:
    """Eight are drawn."""
    drawing = memory(dptrace.open(memory_run(tmp_path, ranks=10)))

    assert 8 == len(drawing.y.strong)
    assert "2 more devices" in drawing.subtitle


def test_a_picture_of_a_long_recording_stays_small() -> None:
    """Columns of one height are one box."""
    assert len(memory(dptrace.open(GOLDEN)).marks) < 2000


# A pipeline's schedule, drawn.


def test_the_drawing_has_a_box_for_each_action() -> None:
    """Forward and backward in the colours that they have everywhere; the longest possible name is in it."""
    drawn = schedule(run_of(gpipe(2, 3), 2_000, 4_000))
    boxes = [mark for mark in drawn.marks if isinstance(mark, Box)]

    assert 12 == len(boxes)
    assert [(0, 2_000, ("F0",)), (2_000, 4_000, ("F1",))] == [(box.left, box.right, box.texts) for box in boxes[:2]]
    assert {box.color for box in boxes} == set(list(theme.PART_COLORS.values())[:2])
    assert "bubble 25.0 %" in drawn.subtitle
    rows = schedule_table(run_of(gpipe(2, 3), 2_000_000, 4_000_000)).rows
    assert ("rank 1 · stage 1", "F0", "2.000", "2.000") == rows[6]


def test_actions_at_once_do_not_cover_each_other() -> None:
    """As of DualPipe; the row below begins only then."""
    timelines = run_of(gpipe(1, 2), 2_000, 4_000).timelines
    actions = timelines[0].actions
    assert actions is not None
    moved = replace(actions, start_ns=actions.start_ns // 2)
    drawn = schedule(Run("r", (replace(timelines[0], actions=moved),)))
    boxes = [mark for mark in drawn.marks if isinstance(mark, Box)]

    assert len({box.top for box in boxes}) > 1
    for one, other in combinations(boxes, 2):
        assert one.top != other.top or one.right <= other.left or other.right <= one.left


def test_analyze_prints_the_bubble_beside_the_formula_s() -> None:
    """A row for each rank, and one for all; where a rank has several stages, actions are named with theirs."""
    run = run_of(gpipe(2, 4), 10_000_000, 20_000_000)
    text = captured(lambda console: console.print(bubble_table(run))) + captured(
        lambda console: print_run(run, console)
    )
    lines = [line.split() for line in text.splitlines()]

    assert 2 == lines.count(["0", "0", "120.0", "20.0"])
    assert 2 == lines.count(["all", "2", "gpipe", "4", "20.0", "20.0"])
    assert "1F0" in labels(run.timelines[1].actions, 2)

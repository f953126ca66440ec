"""The view of memory over time."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from dptrace.viewers.base.marks import Box, Dot, Drawing, Line
from dptrace.viewers.charts.memory_curve import KIND_COLORS
from dptrace.viewers.views.timelines.memory import memory, memory_table
from tests.support.memory_files import GOLDEN, memory_run, training_file


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


def test_peak_reserved_steps_and_calls_are_marked(tmp_path: Path) -> None:
    """A diamond at each peak, a line for what is reserved, one per step and one per call of the allocator."""
    drawing = memory(dptrace.open(memory_run(tmp_path)))

    assert 2 == sum(isinstance(mark, Dot) and mark.shape == "diamond" for mark in drawing.marks)
    assert 2 * (1 + 2 + 1) == sum(isinstance(mark, Line) for mark in drawing.marks)


def test_a_failed_allocation_is_marked(tmp_path: Path) -> None:
    """With a triangle, where it failed."""
    file = training_file()
    file.memory(20, 1 << 40, 0, 1040, device=0, name="[OutOfMemory]")
    drawing = memory(dptrace.open(file.write(tmp_path / "a.json")))

    assert 1 == sum(isinstance(mark, Dot) and mark.shape == "triangle" for mark in drawing.marks)


@pytest.mark.parametrize("gpu", [True, False])
def test_a_host_is_drawn_only_where_it_computes(tmp_path: Path, gpu: bool) -> None:
    """Of a rank with a GPU, only the GPU; the table has both."""
    file = training_file(gpu=gpu)
    file.memory(5, 8, 123, 8)
    run = dptrace.open(file.write(tmp_path / "a.json"))

    assert 1 == len(memory(run).y.strong)
    assert 1 + gpu == len(memory_table(run).rows)


def test_the_rest_of_many_devices_is_named(tmp_path: Path) -> None:
    """Eight are drawn."""
    drawing = memory(dptrace.open(memory_run(tmp_path, ranks=10)))

    assert 8 == len(drawing.y.strong)
    assert "2 more devices" in drawing.subtitle


def test_a_picture_of_a_long_recording_stays_small() -> None:
    """Columns of one height are one box."""
    assert len(memory(dptrace.open(GOLDEN)).marks) < 2000


def test_a_run_without_memory_says_so() -> None:
    """Instead of an empty picture."""
    run = dptrace.open(GOLDEN.parents[2] / "traces" / "single_cpu")

    assert "record" in memory(run).message
    assert "record" in memory_table(run).note

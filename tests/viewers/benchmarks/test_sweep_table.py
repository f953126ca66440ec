"""The table of a sweep."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dptrace.bench.sweep_points import BUCKET_CAP
from dptrace.viewers.base.marks import Dot, Label
from dptrace.viewers.benchmarks import pages, sweep_table
from tests.support.sweeps import make_sweep, result

STEPS = {"1": result(0.2, accuracy=0.5), "4": result(0.1), "8": {"failed": "broke | <b>[x]"}}


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    return make_sweep(tmp_path, {BUCKET_CAP: ("1", "4", "8")}, STEPS).result.content


def test_the_cells_are_the_points(content: dict[str, Any]) -> None:
    """Times in ms, the best marked, a failed run without figures, accuracy where there is some."""
    told = sweep_table.cells(content)
    rows = [dict(zip(told.columns, row, strict=True)) for row in told.rows]

    assert [row[""] for row in rows] == ["1 MiB", "4 MiB ◀ best", "8 MiB"]
    assert [row["step p50 ms"] for row in rows] == ["200.00", "100.00", "failed"]
    assert [row["accuracy"] for row in rows] == ["50.0", "–", "–"]
    assert rows[1]["exposed ms"] == f"{1e3 * content['points'][1]['exposed_s']:.2f}"


def test_columns_of_nothing_are_left_out(tmp_path: Path) -> None:
    """No accuracy without validation data, no prediction where no caps were swept."""
    steps = {"64": result(0.1, batch_size=64), "128": result(0.1)}
    told = sweep_table.cells(make_sweep(tmp_path, {"batch-size": ("64", "128")}, steps).result.content)

    assert not {"accuracy", "by the fit ms"} & set(told.columns)


def test_the_terminal_and_markdown_show_the_same(content: dict[str, Any]) -> None:
    """The message of a failed run is not markup in either."""
    out = io.StringIO()
    sweep_table.print_table(content, Console(width=160, file=out))
    text = sweep_table.markdown(content)

    assert "4 MiB ◀ best" in out.getvalue()
    assert "Sweep of bucket cap: resnet18, ddp, 2 ranks" in out.getvalue()
    assert "| 4 MiB ◀ best | 100.00 |" in text
    assert "broke \\| &lt;b>\\[x]" in text


# The charts of quality over communication.


@pytest.fixture
def sweep_loss_content(tmp_path: Path) -> dict[str, Any]:
    losses = {"0.5": 2.0, "1": 2.0, "4": 2.001, "16": 2.5}
    steps = {
        cap: result(0.1, validation_loss=[9.0, loss], accuracy=[0.1, 0.5], training_loss=[9.0, 1.0], epochs=2)
        for cap, loss in losses.items()
    }
    return make_sweep(tmp_path / "sweep", {BUCKET_CAP: tuple(losses)}, steps, epochs=2).result.content


def test_each_point_is_at_its_s_and_its_last_loss(sweep_loss_content: dict[str, Any]) -> None:
    """Filled for validation, a ring for the training data; a diamond where the loss begins to grow."""
    drawing = sweep_table.loss(sweep_loss_content)
    dots = [mark for mark in drawing.marks if isinstance(mark, Dot)]
    s = {point["label"]: 100 * point["communication_fraction"] for point in sweep_loss_content["points"]}

    filled = {(dot.x, dot.y) for dot in dots if not dot.hollow and dot.shape == "circle"}
    assert {(s["0.5 MiB"], 2.0), (s["1 MiB"], 2.0), (s["4 MiB"], 2.001), (s["16 MiB"], 2.5)} == filled
    assert {1.0} == {dot.y for dot in dots if dot.hollow}
    assert (s["16 MiB"], 2.5) in {(dot.x, dot.y) for dot in dots if dot.shape == "diamond"}
    assert any("16 MiB: loss grows" in mark.text for mark in drawing.marks if isinstance(mark, Label))
    assert {50.0} == {mark.y for mark in sweep_table.accuracy(sweep_loss_content).marks if isinstance(mark, Dot)}
    assert "16 MiB" == sweep_loss_content["onset"]["harmful"]


def test_the_page_has_them_where_there_is_validation_data(sweep_loss_content: dict[str, Any], tmp_path: Path) -> None:
    """A model without such data has a message in the picture's place, and no section."""
    without = make_sweep(tmp_path / "b", {BUCKET_CAP: ("1", "4")}, {"1": result(0.1), "4": result(0.1)}).result.content

    assert "Communication and validation loss" in pages.sweep_document(sweep_loss_content)
    assert "Communication and validation loss" not in pages.sweep_document(without)
    assert sweep_table.loss(without).message
    assert without["onset"] is None

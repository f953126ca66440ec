"""The charts of quality over communication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.bench.sweep_points import BUCKET_CAP
from dptrace.viewers.base.marks import Dot, Label
from dptrace.viewers.benchmarks import sweep_loss, sweep_page
from tests.support.sweeps import make_sweep, result


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    losses = {"0.5": 2.0, "1": 2.0, "4": 2.001, "16": 2.5}
    steps = {
        cap: result(0.1, validation_loss=[9.0, loss], accuracy=[0.1, 0.5], training_loss=[9.0, 1.0], epochs=2)
        for cap, loss in losses.items()
    }
    return make_sweep(tmp_path / "sweep", monkeypatch, {BUCKET_CAP: tuple(losses)}, steps, epochs=2).result.content


def test_each_point_is_at_its_s_and_its_last_loss(content: dict[str, Any]) -> None:
    """Filled for validation, a ring for the training data; a diamond where the loss begins to grow."""
    drawing = sweep_loss.loss(content)
    dots = [mark for mark in drawing.marks if isinstance(mark, Dot)]
    s = {point["label"]: 100 * point["communication_fraction"] for point in content["points"]}

    filled = {(dot.x, dot.y) for dot in dots if not dot.hollow and dot.shape == "circle"}
    assert {(s["0.5 MiB"], 2.0), (s["1 MiB"], 2.0), (s["4 MiB"], 2.001), (s["16 MiB"], 2.5)} == filled
    assert {1.0} == {dot.y for dot in dots if dot.hollow}
    assert (s["16 MiB"], 2.5) in {(dot.x, dot.y) for dot in dots if dot.shape == "diamond"}
    assert any("16 MiB: loss grows" in mark.text for mark in drawing.marks if isinstance(mark, Label))
    assert {50.0} == {mark.y for mark in sweep_loss.accuracy(content).marks if isinstance(mark, Dot)}
    assert "16 MiB" == content["onset"]["harmful"]


def test_the_page_has_them_where_there_is_validation_data(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model without such data has a message in the picture's place, and no section."""
    without = make_sweep(
        tmp_path / "b", monkeypatch, {BUCKET_CAP: ("1", "4")}, {"1": result(0.1), "4": result(0.1)}
    ).result.content

    assert "Communication and validation loss" in sweep_page.document(content)
    assert "Communication and validation loss" not in sweep_page.document(without)
    assert sweep_loss.loss(without).message
    assert without["onset"] is None

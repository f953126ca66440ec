"""The table of a sweep, and its charts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.bench.sweep_points import BUCKET_CAP
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Dot, Drawing, Label, Line
from dptrace.viewers.base.svg import svg
from dptrace.viewers.benchmarks import pages, sweep_table
from tests.support.sweeps import make_sweep, result
from tests.support.terminal_text import captured

STEPS = {"1": result(0.2, accuracy=0.5), "4": result(0.1), "8": {"failed": "broke | <b>[x]"}}
TIMES = {"0.5": 0.200, "1": 0.190, "2": 0.180, "4": 0.160, "8": 0.170}


def swept(folder: Path, steps: dict[str, Any], option: str = BUCKET_CAP, epochs: int = 1) -> dict[str, Any]:
    return make_sweep(folder, {option: tuple(steps)}, steps, epochs).result.content


def test_every_table_shows_the_points(tmp_path: Path) -> None:
    """Times in ms, the best marked, a failed run without figures or markup, no column that no point has."""
    content = swept(tmp_path, STEPS)
    cells = sweep_table.cells(content)
    rows = [dict(zip(cells.columns, row, strict=True)) for row in cells.rows]
    out = captured(lambda console: sweep_table.print_table(content, console), 160)
    text = sweep_table.markdown(content)

    assert [row[""] for row in rows] == ["1 MiB", "4 MiB ◀ best", "8 MiB"]
    assert [row["step p50 ms"] for row in rows] == ["200.00", "100.00", "failed"]
    assert [row["accuracy"] for row in rows] == ["50.0", "–", "–"]
    assert rows[1]["exposed ms"] == f"{1e3 * content['points'][1]['exposed_s']:.2f}"
    assert not {"val. loss", "ms/sample"} & set(cells.columns)
    assert "Sweep of bucket cap: resnet18, ddp, 2 ranks" in out
    assert "4 MiB ◀ best" in out
    assert "| 4 MiB ◀ best | 100.00 |" in text
    assert "broke \\| &lt;b>\\[x]" in text


def red(drawing: Drawing) -> list[Dot | Label]:
    marks = [mark for mark in drawing.marks if isinstance(mark, Dot | Label)]
    return [mark for mark in marks if mark.color == theme.EXPOSED]


@pytest.mark.parametrize(
    ("steps", "best", "as_good"),
    [
        (TIMES, "4 MiB", 0),
        ({"1": 0.1, "4": 0.1001}, None, 0),
        ({"1": 0.1, "4": 0.1001, "8": 0.2}, "1 MiB", 1),
    ],
)
def test_no_picture_names_a_best_that_the_text_does_not(
    tmp_path: Path, steps: dict[str, float], best: str | None, as_good: int
) -> None:
    """Text, JSON, tables and charts mark the same point, or none: "no value is clearly best" has nothing red beside."""
    content = swept(tmp_path, {value: result(seconds) for value, seconds in steps.items()})
    drawings = [sweep_table.steps(content), sweep_table.exposed(content)]
    named = [] if best is None else [f"{best} ◀ best"]

    assert content["reading"][0].startswith("No value is clearly best" if best is None else f"{best} is best here")
    assert [point["label"] for point in content["points"] if point["best"]] == ([] if best is None else [best])
    assert as_good == sum(point["as_good"] for point in content["points"])
    assert [row[0] for row in sweep_table.cells(content).rows if "◀" in row[0]] == named
    for drawing in drawings:
        assert [mark.text for mark in red(drawing) if isinstance(mark, Label)] == (
            [] if best is None else [f"best: {best}"]
        )
        assert any(entry.color == theme.EXPOSED for entry in drawing.legend) == (best is not None)
        assert bool(red(drawing)) == (best is not None)
    assert "fastest" not in pages.sweep_document(content) + sweep_table.markdown(content)


# The charts.


def of(drawing: Drawing, kind: type[Any]) -> list[Any]:
    return [mark for mark in drawing.marks if isinstance(mark, kind)]


def test_the_points_stand_where_they_were_measured(tmp_path: Path) -> None:
    """In ms over the caps; a ring for what the line predicts, and an upright line at the cap that it chooses."""
    content = swept(tmp_path, {value: result(seconds) for value, seconds in TIMES.items()})
    drawing, exposed = sweep_table.steps(content), sweep_table.exposed(content)
    chosen = content["chosen"][0]["tried_mb"]

    assert {dot.x: round(dot.y) for dot in of(drawing, Dot)} == {0.5: 200, 1: 190, 2: 180, 4: 160, 8: 170}
    assert [dot.x for dot in of(drawing, Dot) if dot.shape == "diamond"] == [4.0]
    assert drawing.x.log
    rings = {dot.x: dot.y for dot in of(exposed, Dot) if dot.hollow}
    assert rings == {float(p["x"]): 1e3 * p["predicted_exposed_s"] for p in content["points"]}
    assert any({x for x, _ in line.points} == {chosen} for line in of(exposed, Line))
    assert "bucket cap, MiB" in svg(exposed)


def test_other_options_are_curves_and_words_are_places(tmp_path: Path) -> None:
    """A curve for each batch; compressions have no order, so no line joins them."""
    steps = {f"{cap},{batch}": result(0.1, batch_size=batch) for cap in (1, 4) for batch in (64, 128)}
    two = make_sweep(tmp_path / "a", {BUCKET_CAP: ("1", "4"), "batch-size": ("64", "128")}, steps).result.content
    compressed = sweep_table.steps(swept(tmp_path / "b", {"none": result(0.2), "fp16": result(0.1)}, "compress"))

    assert {"batch 64", "batch 128"} <= {entry.name for entry in sweep_table.steps(two).legend}
    assert "a sample" in sweep_table.steps(two).y.title
    assert compressed.x.ticks == ((0.0, "none"), (1.0, "fp16"))
    assert all(len({x for x, _ in line.points}) == 1 for line in of(compressed, Line))


def test_quality_stands_over_s(tmp_path: Path) -> None:
    """Filled for validation, a ring for the training data, a diamond where the loss begins to grow; a model without
    such data has a message in the picture's place, and no section."""
    losses = {"0.5": 2.0, "1": 2.0, "4": 2.001, "16": 2.5}
    more: dict[str, Any] = {"accuracy": [0.1, 0.5], "training_loss": [9.0, 1.0], "epochs": 2}
    steps = {cap: result(0.1, validation_loss=[9.0, loss], **more) for cap, loss in losses.items()}
    content, without = swept(tmp_path / "a", steps, epochs=2), swept(tmp_path / "b", {"1": result(0.1), "4": result(1)})
    s = {point["label"]: 100 * point["communication_fraction"] for point in content["points"]}
    dots = of(sweep_table.loss(content), Dot)
    filled = {(dot.x, dot.y) for dot in dots if not dot.hollow and dot.shape == "circle"}

    assert {(s["0.5 MiB"], 2.0), (s["1 MiB"], 2.0), (s["4 MiB"], 2.001), (s["16 MiB"], 2.5)} == filled
    assert {1.0} == {dot.y for dot in dots if dot.hollow}
    assert [(s["16 MiB"], 2.5)] == [(dot.x, dot.y) for dot in dots if dot.shape == "diamond"][-1:]
    assert {50.0} == {mark.y for mark in of(sweep_table.accuracy(content), Dot)}
    assert "Communication and validation loss" in pages.sweep_document(content)
    assert "Communication and validation loss" not in pages.sweep_document(without)
    assert sweep_table.loss(without).message


def test_without_any_result_the_page_says_so(tmp_path: Path) -> None:
    """No chart and no script; the reasons are in the notes, as text."""
    page = pages.sweep_document(swept(tmp_path, {"1": {"failed": "<script>alert(1)</script>"}, "4": {"failed": "x"}}))

    assert "No run of this sweep succeeded." in page
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page

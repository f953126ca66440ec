"""The page of a sweep, and its charts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.bench.sweep_points import BUCKET_CAP
from dptrace.viewers.base.marks import Dot, Drawing, Label, Line
from dptrace.viewers.base.svg_renderer import svg
from dptrace.viewers.benchmarks import sweep_page
from tests.support.browser import browser_test, chromium, open_page
from tests.support.sweeps import make_sweep, result

TIMES = {"0.5": 0.200, "1": 0.190, "2": 0.180, "4": 0.160, "8": 0.170}


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    steps = {value: result(seconds) for value, seconds in TIMES.items()}
    return make_sweep(tmp_path / "sweep", monkeypatch, {BUCKET_CAP: tuple(TIMES)}, steps).result.content


def of(drawing: Drawing, kind: type[Any]) -> list[Any]:
    return [mark for mark in drawing.marks if isinstance(mark, kind)]


def test_the_points_stand_where_they_were_measured(content: dict[str, Any]) -> None:
    """In ms over the caps; the best is a diamond in its own colour with a label."""
    drawing = sweep_page.steps(content)
    dots = {dot.x: dot for dot in of(drawing, Dot)}

    assert {x: round(dot.y) for x, dot in dots.items()} == {0.5: 200, 1: 190, 2: 180, 4: 160, 8: 170}
    assert [x for x, dot in dots.items() if dot.shape == "diamond"] == [4.0]
    assert "best: 4 MiB" in [label.text for label in of(drawing, Label)]
    assert drawing.x.log


def test_the_lines_choice_and_what_it_says_are_drawn(content: dict[str, Any]) -> None:
    """A ring for each cap at what the line predicts, an upright line at the one that it would have chosen."""
    drawing = sweep_page.exposed(content)
    rings = {dot.x: dot.y for dot in of(drawing, Dot) if dot.hollow}
    chosen = content["chosen"][0]["tried_mb"]

    assert rings == {float(p["x"]): 1e3 * p["predicted_exposed_s"] for p in content["points"]}
    assert any({x for x, _ in line.points} == {chosen} for line in of(drawing, Line))
    assert f"the fit's choice: {chosen:g} MiB" in [label.text for label in of(drawing, Label)]


def test_other_options_are_curves_and_words_are_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A curve for each batch; compressions have no order, so no line joins them."""
    steps = {f"{cap},{batch}": result(0.1, batch_size=batch) for cap in (1, 4) for batch in (64, 128)}
    two = make_sweep(
        tmp_path / "a", monkeypatch, {BUCKET_CAP: ("1", "4"), "batch-size": ("64", "128")}, steps
    ).result.content
    words = {"none": result(0.2), "fp16": result(0.1)}
    compressed = make_sweep(tmp_path / "b", monkeypatch, {"compress": ("none", "fp16")}, words).result.content

    assert {"batch 64", "batch 128"} <= {entry.name for entry in sweep_page.steps(two).legend}
    assert "a sample" in sweep_page.steps(two).y.title
    drawing = sweep_page.steps(compressed)
    assert drawing.x.ticks == ((0.0, "none"), (1.0, "fp16"))
    assert all(len({x for x, _ in line.points}) == 1 for line in of(drawing, Line))


def test_without_any_result_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No chart and no script; the reasons are in the notes, as text."""
    steps = {"1": {"failed": "<script>alert(1)</script>"}, "4": {"failed": "x"}}
    content = make_sweep(tmp_path / "a", monkeypatch, {BUCKET_CAP: ("1", "4")}, steps).result.content
    page = sweep_page.document(content)

    assert "No run of this sweep succeeded." in page
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_the_svg_holds_the_chart(content: dict[str, Any]) -> None:
    """Its title, the axis' title and the best point."""
    text = svg(sweep_page.exposed(content))

    assert "Exposed communication" in text
    assert "bucket cap, MiB" in text
    assert "best: 4 MiB" in text


@browser_test
def test_the_page_opens_without_an_error(tmp_path: Path, content: dict[str, Any]) -> None:
    """Nothing is fetched, the policy holds, both charts are there."""
    path = tmp_path / "sweep.html"
    path.write_text(sweep_page.document(content), encoding="utf-8")
    with chromium() as browser, open_page(browser, path) as (page, errors):
        assert page.locator(".bk-Figure").count() == 2
        assert "4 MiB is best here" in page.inner_text("body")
        assert errors == []

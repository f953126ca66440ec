"""The first picture: drawn before Bokeh has started, from what the page holds, at the place of the chart."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import chart
from dptrace.viewers.gantt.page import document as gantt
from dptrace.viewers.gantt.page.data import collective_entries, layout
from dptrace.viewers.gantt.tiles.answers import TILE, first_view
from dptrace.viewers.gantt.tiles.store import build
from tests.support.browser import browser_test, open_page
from tests.support.gantt_page import expected_figures, settle, shown_figures
from tests.support.synthetic import training_run
from tests.viewers.gantt.tiles.test_served_page import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser


BEFORE = """{
    const { replaceWith } = Element.prototype, { fetch } = globalThis;
    // Bokeh runs when its text is replaced by a script; what is shown then is the first picture.
    Element.prototype.replaceWith = function (...nodes) {
        const box = (node) => Object.values(node.getBoundingClientRect().toJSON()).slice(0, 4);
        const canvases = [dptrace.mini.canvas, dptrace.main.canvas], main = canvases.at(-1);
        main.dataset.early = "1";
        const { data } = main.getContext("2d").getImageData(0, 0, main.width, main.height);
        globalThis.early = {
            bokeh: typeof Bokeh, boxes: canvases.map(box), names: document.querySelectorAll("#names .track").length,
            filled: new Uint32Array(data.buffer).filter((pixel) => pixel).length / (main.width * main.height),
            figures: document.querySelectorAll(".segment").length, size: [main.width, main.height],
        };
        replaceWith.apply(this, nodes);
    };
}"""

PLACES = """() => {
    const box = (node) => Object.values(node.getBoundingClientRect().toJSON()).slice(0, 4);
    return [dptrace.mini, dptrace.main].map(({ canvas }) => box(canvas));
}"""


@pytest.fixture(scope="module")
def run() -> Run:
    return training_run(20_000, ranks=3)


def test_the_first_view_holds_the_rows_of_the_page_and_its_sums(run: Run) -> None:
    """Each row has tiles of its lane to the end of the run, whose shares add up to the time that the sums tell."""
    drawn = chart(run)
    store = build(drawn, collective_entries(drawn))
    first = first_view(store, layout(drawn), -1000, drawn.end_ns + 1000)
    runs, level, data = first["tiles"]["runs"], first["tiles"]["level"], base64.b64decode(first["tiles"]["data"])
    at, total = 0, dict[int, float]()
    for lane, low, high in runs:
        for _ in range(high - low + 1):
            used = data[at + 1 : at + 1 + data[at]]
            at += 1 + data[at]
            for category in used:
                if store.lanes[lane].role == "phases":
                    ns = int(np.frombuffer(data, np.uint8, TILE, at).sum()) / 255 * 2**level
                    total[category] = total.get(category, 0) + ns
                at += TILE

    assert len(data) == at
    assert [(row["track"], row["role"]) for row in layout(drawn)["rows"]] == [
        (store.lanes[lane].track, store.lanes[lane].role) for lane, _, _ in runs
    ]
    assert pytest.approx(first["sums"]["parts"], rel=0.02, abs=2**level) == total


@pytest.mark.slow
def test_of_collapsed_gpus_only_the_phases_are_held() -> None:
    """The others are not on the screen, and the page stays small with hundreds of ranks."""
    drawn = chart(training_run(4_000, ranks=100))
    store = build(drawn, collective_entries(drawn))
    runs = first_view(store, layout(drawn), 0, drawn.end_ns)["tiles"]["runs"]

    assert {"phases"} == {store.lanes[lane].role for lane, _, _ in runs}
    assert 64 == len(runs)


@pytest.mark.slow
@browser_test
@pytest.mark.parametrize("mode", ["served", "one file"])
def test_the_first_picture_is_there_before_bokeh(browser: Browser, run: Run, mode: str, tmp_path: Path) -> None:
    """With rows, names and figures, and the chart stays where it is when Bokeh takes over."""
    path = tmp_path / "page.html"
    path.write_text(gantt.document(run), encoding="utf-8")
    with served(run) as url, open_page(browser, url if mode == "served" else path, before=BEFORE) as (page, errors):
        settle(page)
        early = page.evaluate("early")
        assert "undefined" == early["bokeh"]
        assert 3 == early["names"]
        assert early["filled"] > 0.3
        assert early["figures"] > 3
        for before, after in zip(early["boxes"], page.evaluate(PLACES), strict=True):
            assert pytest.approx(after, abs=2.5) == before
        assert "1" == page.evaluate("dptrace.main.canvas.dataset.early")  # no second chart takes its place
        assert expected_figures(run) == shown_figures(page)
        assert [] == errors

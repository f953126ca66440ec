"""Tables and plotly figures as one page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from dptrace.viewers.pages.hta import MAX_ROWS, plotly_page
from tests.support.browser import PATIENCE_S, browser_test, chromium, open_page

HOSTILE = "</script><img src=x onerror=alert(1)><a href='javascript:alert(1)'>gemm<int></a>"
CONTROLS = "\x1b\x07\u202e\u2066"


class Figure:
    """The part of a plotly figure that the page uses."""

    def __init__(self, **plot: Any) -> None:
        self.plot = plot

    def to_json(self) -> str:
        return msgspec.json.encode(self.plot).decode()


def page_of(*figures: Any, frame: pd.DataFrame | None = None) -> str:
    return plotly_page("a title", "what it says", {"kernels": pd.DataFrame() if frame is None else frame}, figures)


def islands(page: str) -> list[Any]:
    return [msgspec.json.decode(text) for text in re.findall(r'class="figure">(.*?)</script>', page, re.DOTALL)]


@pytest.fixture
def small_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dptrace.viewers.pages.hta._plotly_js", lambda: "var Plotly = {newPlot() {}};")


def test_a_page_of_tables_needs_no_plotly() -> None:
    """Without a figure no script is in it, and none may run."""
    page = page_of(frame=pd.DataFrame({"name": [HOSTILE], "sum (us)": [1.5]}))

    assert "<script" not in page
    assert "&lt;/script&gt;" in page
    assert '<td class="number">1.5</td>' in page


def test_long_tables_are_cut(small_plotly: None) -> None:
    """The page says how many rows are missing."""
    assert "… and 3 more rows." in page_of(frame=pd.DataFrame({"n": range(MAX_ROWS + 3)}))


def test_texts_from_traces_are_inert(small_plotly: None) -> None:
    """No name ends an island or becomes a tag; plotly's and HTA's own line breaks stay."""
    figure = Figure(
        data=[{"type": "pie", "labels": [HOSTILE, CONTROLS], "hovertemplate": "%{x}<br>%{y}<extra></extra>"}],
        layout={"title": {"text": HOSTILE}},
    )

    page = page_of(figure)

    (plot,) = islands(page)
    assert "%{x}<br>%{y}<extra></extra>" == plot["data"][0]["hovertemplate"]
    assert not {"<", *CONTROLS} & set("".join(plot["data"][0]["labels"]))
    assert not set(CONTROLS) & set(page)
    assert "title" not in plot["layout"]
    assert "<img" not in page
    assert "&lt;img src=x" in page  # the title is a heading of the page


def test_long_labels_stay_apart(small_plotly: None) -> None:
    """Names that begin alike are shortened to labels that differ, the same in every pie of a figure."""
    a, b = "k" * 80 + "a", "k" * 80 + "b"
    (plot,) = islands(page_of(Figure(data=[{"labels": [a, b]}, {"labels": [b, a]}], layout={})))

    first, second = (trace["labels"] for trace in plot["data"])
    assert first == second[::-1]
    assert len(set(first)) == 2
    assert all(len(label) < 70 for label in first)


@browser_test
def test_the_page_draws_without_network(tmp_path: Path) -> None:
    """Real plotly.js draws a bar chart under the page's policy, with nothing in the console."""
    graph_objects = pytest.importorskip("plotly.graph_objects", reason="plotly is not installed (it comes with HTA)")
    path = tmp_path / "page.html"
    path.write_text(page_of(graph_objects.Figure(graph_objects.Bar(x=[HOSTILE, "b"], y=[1, 2]))), encoding="utf-8")

    with chromium() as browser, open_page(browser, path, ready=False) as (page, errors):
        page.locator(".bars .point").first.wait_for(state="attached", timeout=1000 * PATIENCE_S)
        shown = page.locator(".xtick text").first.text_content()

    assert not errors
    assert (shown or "").startswith("</script><img")

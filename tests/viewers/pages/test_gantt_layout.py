"""The Gantt chart as a Bokeh layout: its figures, and in what it can be embedded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from bokeh.embed import file_html
from bokeh.models import ColumnDataSource
from bokeh.models.widgets import Button, DataTable, Div
from bokeh.resources import INLINE

import dptrace
from dptrace.viewers.pages import gantt_layout
from tests.support.browser import browser_test, open_page
from tests.support.paths import ROOT, TRACES
from tests.support.synthetic import training_run
from tests.support.view_cases import CASES, many_ranks

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_FORWARD_BELOW = """(ms) => {
    const {children} = Bokeh.documents[0].roots()[0].children[1];
    return children.at(-1).source.data.Forward[0] < ms;
}"""
EXAMPLES = ROOT / "docs" / "examples"
RUN = TRACES / "ddp_cpu_2ranks"


def drawn(run: dptrace.Run, every_rank: bool = False) -> Any:
    """Draw a run; Bokeh's types know less of what is found in a layout than its documentation."""
    return dptrace.figure(run, every_rank=every_rank)


def table_of(layout: Any) -> dict[str, Any]:
    """Return the split that a layout shows."""
    return dict(source_of(layout).data)


def source_of(layout: Any) -> ColumnDataSource:
    """Return the source of the table of a layout."""
    table = layout.select_one({"type": DataTable})
    assert isinstance(table.source, ColumnDataSource)
    return table.source


@pytest.mark.slow
def test_the_table_below_is_the_split() -> None:
    """What the quads in the rows of phases cover, to the nanosecond."""
    for case in ("one rank", "two ranks", "uneven", "no communication", "cpu", "64 ranks"):
        run = CASES[case]()
        shown, totals = table_of(drawn(run, True)), run.totals()

        assert len(totals) == len(shown["GPU"]), case
        for name, column in (("Forward", "forward_ns"), ("Idle", "idle_ns")):
            assert totals[column].to_numpy() / 1e6 == pytest.approx(shown.get(name, np.zeros(len(totals))), abs=1e-9)
        exposed = sum(shown.get(name, np.zeros(len(totals))) for name in ("Exposed", "Transfer", "Waiting"))
        assert totals["exposed_comm_ns"].to_numpy() / 1e6 == pytest.approx(exposed, abs=1e-9), case


@pytest.mark.slow
def test_many_ranks_and_many_intervals_are_reduced_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than eight ranks the most notable; sums of short intervals leave the split as it is."""
    run = many_ranks(20)
    few, every = drawn(run), drawn(run, True)
    assert (8, 20) == (len(table_of(few)["GPU"]), len(table_of(every)["GPU"]))
    assert "8 of 20 ranks" in few.children[0].text

    busy = training_run(3_000, ranks=2)
    exact = table_of(drawn(busy))
    monkeypatch.setattr(gantt_layout, "MOST_INTERVALS", 1_000)
    merged = drawn(busy)
    quads = [glyphs.data_source for glyphs in merged.select({"name": "Forward"})]
    assert 0 < len(quads[0].data["left"]) < 1_000
    assert "are drawn as sums" in merged.children[0].text
    assert exact["Forward"] == pytest.approx(table_of(merged)["Forward"], rel=1e-6)


def test_without_a_step_there_is_nothing_to_draw() -> None:
    """The error names the run."""
    with pytest.raises(dptrace.DptraceError, match="runs/empty"):
        dptrace.figure(CASES["empty"]())


@pytest.mark.slow
@browser_test
def test_a_finding_shows_its_place_and_the_table_follows(browser: Browser, tmp_path: Path) -> None:
    """A click on the first finding zooms the chart, and the split is that of what is shown then."""
    layout, path = drawn(dptrace.open(RUN)), tmp_path / "layout.html"
    assert all(not button.disabled for button in layout.select({"type": Button}))
    assert any("exposed" in text.text for text in layout.select({"type": Div}))
    path.write_text(file_html(layout, INLINE), encoding="utf-8")
    forward = "Math.round(Bokeh.documents[0].get_model_by_id('{}').data.Forward[0] * 1000)"
    forward = forward.format(source_of(layout).id)
    with open_page(browser, path, ready=False) as (page, errors):
        page.locator(".slick-row").nth(1).wait_for()
        assert page.evaluate(forward) == round(1000 * table_of(layout)["Forward"][0])
        page.get_by_role("button").first.click()
        page.wait_for_function(f"{forward} < {round(500 * table_of(layout)['Forward'][0])}")
        assert [] == [error for error in errors if error.startswith("exception")]


# Embedded.


@pytest.mark.slow
@pytest.mark.spawn
@browser_test
def test_a_notebook_shows_it_without_a_frame(browser: Browser, tmp_path: Path) -> None:
    """The output of a cell that a kernel ran, in a page as a notebook builds it."""
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    client = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    cells = [
        "import dptrace\nfrom bokeh.io import output_notebook, show\nfrom bokeh.resources import INLINE",
        "output_notebook(INLINE)",
        f"show(dptrace.figure(dptrace.open({str(RUN)!r})))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = [output["data"] for cell in notebook.cells for output in cell.outputs if "data" in output]
    parts = [
        *(part for data in outputs if "text/html" in data for part in [data["text/html"]]),
        *(f"<script>{data['application/javascript']}</script>" for data in outputs if "application/javascript" in data),
    ]
    path = tmp_path / "notebook.html"
    path.write_text("<!DOCTYPE html><meta charset=utf-8>" + "\n".join(parts), encoding="utf-8")

    assert not any("<iframe" in part for part in parts)
    with open_page(browser, path, ready=False) as (page, _):
        page.locator(".slick-row").nth(1).wait_for()


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve a Bokeh application as ``bokeh serve`` does; yields its address."""
    from bokeh.server.server import Server
    from tornado.ioloop import IOLoop

    started, server, loops = threading.Event(), [], []

    def serve() -> None:
        import asyncio

        asyncio.set_event_loop(asyncio.new_event_loop())
        loops.append(IOLoop.current())
        server.append(Server({"/": app}, io_loop=loops[0], port=0, address="127.0.0.1"))
        server[0].start()
        started.set()
        loops[0].start()
        server[0].stop()
        loops[0].close()

    thread = threading.Thread(target=serve)
    thread.start()
    started.wait(60)
    try:
        yield f"http://localhost:{server[0].port}/"
    finally:
        loops[0].add_callback(loops[0].stop)
        thread.join()


def app_of(name: str) -> Any:
    """Return an example as an application."""
    if name == "app_panel.py":
        application = pytest.importorskip("panel.io.application", reason="panel is not installed")
        return application.build_single_handler_application(str(EXAMPLES / name), argv=[str(RUN)])
    from bokeh.application import Application
    from bokeh.application.handlers import ScriptHandler

    return Application(ScriptHandler(filename=str(EXAMPLES / name), argv=[str(RUN)]))


@pytest.mark.heavy
def test_an_example_makes_a_document() -> None:
    """What a server sends to a browser has the chart, and no frame."""
    made = app_of("app_bokeh.py").create_document()

    made.validate()
    assert ["rank 0 · CPU", "rank 1 · CPU"] == table_of(made)["GPU"]
    assert "iframe" not in str(made.to_json())


@pytest.mark.slow
@browser_test
@pytest.mark.parametrize("name", ["app_bokeh.py", "app_panel.py"])
def test_a_server_serves_the_examples(browser: Browser, name: str) -> None:
    """In a browser, each shows both ranks; in the first, the choice of a step draws another chart."""
    with serving(app_of(name)) as address, open_page(browser, address, ready=False) as (page, errors):
        page.locator(".slick-row").nth(1).wait_for()
        if name == "app_bokeh.py":
            page.locator("select").first.select_option("11")
            page.wait_for_function(_FORWARD_BELOW, arg=100)
        assert [] == [error for error in errors if error.startswith("exception")]

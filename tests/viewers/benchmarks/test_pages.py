"""The chart of timed algorithms."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dptrace.bench.conclusions import conclusions
from dptrace.bench.sweep_points import BUCKET_CAP
from dptrace.bench.table import Row, usable
from dptrace.model.link_report import link_report
from dptrace.viewers.base.marks import Dot, Drawing, Label, Line
from dptrace.viewers.base.screenshot import svg_page
from dptrace.viewers.base.svg import svg
from dptrace.viewers.benchmarks import pages, sweep_table
from dptrace.viewers.benchmarks.bench_table import draw
from dptrace.viewers.benchmarks.pages import Content, algorithms_chart, bench_document
from tests.support.bench_tables import WORKSHOP, bench, with_losses
from tests.support.browser import browser_test, open_page
from tests.support.links_samples import ALPHA_S, BETA_S, measured, with_algorithms
from tests.support.sweeps import make_sweep, result

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_points_are_measured_and_lines_predicted() -> None:
    """A dot for each size of each algorithm and of the library, and a dashed line for each that is predicted."""
    drawing = algorithms_chart(link_report(with_algorithms(measured(kinds=("all_reduce", "send_recv")))))
    dots = [mark for mark in drawing.marks if isinstance(mark, Dot)]
    lines = [mark for mark in drawing.marks if isinstance(mark, Line)]

    assert 17 * 6 == len(dots)
    assert 5 == len(lines)
    assert ["ring", "tree", "halving-doubling", "hierarchical", "naive", "library"] == [e.name for e in drawing.legend]
    assert pytest.approx(1e9 * (6 * ALPHA_S + 1.5 * 1024 * BETA_S), rel=0.05) == lines[0].points[0][1]
    assert any("ring, 1 KiB" in dot.tip and "predicted" in dot.tip for dot in dots)


def test_times_without_a_prediction_are_drawn() -> None:
    """Where no line could be fitted."""
    drawing = algorithms_chart(link_report(with_algorithms(measured(kinds=("broadcast",)))))

    assert not any(isinstance(mark, Line) for mark in drawing.marks)
    assert 17 * 5 == len(drawing.marks)


# The page of a benchmark.


def page(rows: list[Row], title: str = "Benchmark", notes: tuple[str, ...] = ()) -> str:
    charts = [(chart, draw(chart, usable(rows))) for chart in conclusions(rows)]
    return bench_document(Content(title, ["28 rows"], notes, rows, charts))


@pytest.mark.heavy
def test_the_page_says_what_the_charts_show() -> None:
    """The answer first; six charts, also where one is only a sentence; the table; SVG for paper."""
    text = page(WORKSHOP, notes=("ranks share cores",))

    assert 7 == text.count('<section class="part"')
    assert '<p class="answer">On this machine, DDP pays off from 8.4 M parameters up' in text
    assert "these figures have no losses" in text
    assert "ranks share cores" in text
    assert 5 == text.count("<svg")
    assert 28 == len(re.findall(r"<tr>(?=<td)", text))


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "</script><b>", "\u202eevil", "$$x$$"])
def test_names_are_no_markup(name: str) -> None:
    """A model of a user's script can have any name."""
    rows = with_losses([bench(name, "single", 1, 1.0), bench(name, "naive", 2, 0.6)])
    rows.append(Row(name, "ddp", 2, failed=name))
    text = page(rows, title=name, notes=(name,))

    assert "<script>alert" not in text
    assert "</script><b>" not in text
    assert "\u202e" not in text


@pytest.mark.heavy
def test_nothing_may_be_fetched_or_run_but_what_is_in_the_page() -> None:
    """The policy allows the page's own scripts by their hashes."""
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page(WORKSHOP))

    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert "unsafe-eval" not in policy[1]


def test_an_svg_is_framed_for_a_picture() -> None:
    """Alone on a white page."""
    assert "<svg>x</svg>" in svg_page("<svg>x</svg>")


@browser_test
def test_the_pages_open_without_an_error(browser: Browser, tmp_path: Path, content: dict[str, Any]) -> None:
    """Of a benchmark, links and a sweep, whole and with next to nothing: from the disk, with all charts."""
    raw = measured()
    bare = raw | {"samples": [sample for sample in raw["samples"] if sample["bytes"] == 1024]}
    made = [
        (page(with_losses(WORKSHOP)), 6),
        (page([bench("a", "ddp", 2, 1.0)]), 2),
        (pages.links_document(link_report(raw)), 2),
        (pages.links_document(link_report(bare)), 2),
        (pages.sweep_document(content), 2),
    ]
    path = tmp_path / "page.html"
    for text, charts in made:
        path.write_text(text, encoding="utf-8")
        with open_page(browser, path, ready=False) as (shown, errors):
            assert charts == shown.locator(".picture svg").count()
            assert shown.locator("table").first.is_visible()
        assert [] == errors


# The page of measured links.


def test_points_are_the_measured_rows() -> None:
    """A dot in bytes and ns, and in bytes and GB/s, for each size; the tip has the middle half around the median."""
    content = link_report(measured(kinds=("send_recv",)))
    rows = content["collectives"]["send_recv"]["measured"]
    dots = [mark for mark in pages.time_chart(content).marks if isinstance(mark, Dot) and not mark.hollow]
    rates = [mark for mark in pages.rate_chart(content).marks if isinstance(mark, Dot)]

    assert 17 == len(dots) == len(rates) == len(rows)
    assert 1024 == dots[0].x
    assert dots[0].y == pytest.approx(30_256)
    assert "1 KiB" in dots[0].tip
    assert [row["busbw_gbps"] for row in rows] == [dot.y for dot in rates]


def test_the_crossover_lies_on_the_line() -> None:
    """A ring at n*, where the time is twice alpha."""
    content = link_report(measured(kinds=("send_recv",)))
    fit = content["collectives"]["send_recv"]["fit"]

    (ring,) = [mark for mark in pages.time_chart(content).marks if isinstance(mark, Dot) and mark.hollow]
    assert ring.x == fit["crossover_bytes"]
    assert ring.y == pytest.approx(2e9 * fit["alpha_s"])


@pytest.mark.slow
@pytest.mark.parametrize("host", ["<script>alert(1)</script>", "</script><b>"])
def test_names_are_no_markup_links_page(host: str) -> None:
    """A machine's name enters the page as text."""
    content = link_report(measured())
    content["machines"][0]["host"] = host
    page = pages.links_document(content | {"notes": [host]})

    assert host not in page.replace("</script>\n<script", "")
    assert page.count("&lt;") >= 2


# The page of a sweep, and its charts.


TIMES = {"0.5": 0.200, "1": 0.190, "2": 0.180, "4": 0.160, "8": 0.170}


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    steps = {value: result(seconds) for value, seconds in TIMES.items()}
    return make_sweep(tmp_path / "sweep", {BUCKET_CAP: tuple(TIMES)}, steps).result.content


def of(drawing: Drawing, kind: type[Any]) -> list[Any]:
    return [mark for mark in drawing.marks if isinstance(mark, kind)]


def test_the_points_stand_where_they_were_measured(content: dict[str, Any]) -> None:
    """In ms over the caps; the best is a diamond in its own colour with a label."""
    drawing = sweep_table.steps(content)
    dots = {dot.x: dot for dot in of(drawing, Dot)}

    assert {x: round(dot.y) for x, dot in dots.items()} == {0.5: 200, 1: 190, 2: 180, 4: 160, 8: 170}
    assert [x for x, dot in dots.items() if dot.shape == "diamond"] == [4.0]
    assert "best: 4 MiB" in [label.text for label in of(drawing, Label)]
    assert drawing.x.log


def test_the_lines_choice_and_what_it_says_are_drawn(content: dict[str, Any]) -> None:
    """A ring for each cap at what the line predicts, an upright line at the one that it would have chosen."""
    drawing = sweep_table.exposed(content)
    rings = {dot.x: dot.y for dot in of(drawing, Dot) if dot.hollow}
    chosen = content["chosen"][0]["tried_mb"]

    assert rings == {float(p["x"]): 1e3 * p["predicted_exposed_s"] for p in content["points"]}
    assert any({x for x, _ in line.points} == {chosen} for line in of(drawing, Line))
    assert f"the fit's choice: {chosen:g} MiB" in [label.text for label in of(drawing, Label)]


def test_other_options_are_curves_and_words_are_places(tmp_path: Path) -> None:
    """A curve for each batch; compressions have no order, so no line joins them."""
    steps = {f"{cap},{batch}": result(0.1, batch_size=batch) for cap in (1, 4) for batch in (64, 128)}
    two = make_sweep(tmp_path / "a", {BUCKET_CAP: ("1", "4"), "batch-size": ("64", "128")}, steps).result.content
    words = {"none": result(0.2), "fp16": result(0.1)}
    compressed = make_sweep(tmp_path / "b", {"compress": ("none", "fp16")}, words).result.content

    assert {"batch 64", "batch 128"} <= {entry.name for entry in sweep_table.steps(two).legend}
    assert "a sample" in sweep_table.steps(two).y.title
    drawing = sweep_table.steps(compressed)
    assert drawing.x.ticks == ((0.0, "none"), (1.0, "fp16"))
    assert all(len({x for x, _ in line.points}) == 1 for line in of(drawing, Line))


def test_without_any_result_the_page_says_so(tmp_path: Path) -> None:
    """No chart and no script; the reasons are in the notes, as text."""
    steps = {"1": {"failed": "<script>alert(1)</script>"}, "4": {"failed": "x"}}
    content = make_sweep(tmp_path / "a", {BUCKET_CAP: ("1", "4")}, steps).result.content
    page = pages.sweep_document(content)

    assert "No run of this sweep succeeded." in page
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_the_svg_holds_the_chart(content: dict[str, Any]) -> None:
    """Its title, the axis' title and the best point."""
    text = svg(sweep_table.exposed(content))

    assert "Exposed communication" in text
    assert "bucket cap, MiB" in text
    assert "best: 4 MiB" in text

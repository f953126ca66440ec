"""The pages of benchmarks, links and sweeps, and the charts of links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dptrace.bench.sweep_points import BUCKET_CAP
from dptrace.bench.table import BenchResult, Row
from dptrace.model.link_report import link_report
from dptrace.viewers.base.marks import Dot, Line
from dptrace.viewers.benchmarks import pages
from dptrace.viewers.benchmarks.bench_table import draw_charts
from dptrace.viewers.benchmarks.pages import algorithms_chart
from tests.support.bench_tables import WORKSHOP, bench, with_losses
from tests.support.browser import browser_test, open_page
from tests.support.links_samples import ALPHA_S, BETA_S, measured, with_algorithms
from tests.support.sweeps import make_sweep, result

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.mark.heavy
def test_points_are_measured_and_lines_predicted() -> None:
    """A dot for each size of each algorithm and of the library, a dashed line for each that is predicted, none without
    a fit."""
    drawing = algorithms_chart(link_report(with_algorithms(measured(kinds=("all_reduce", "send_recv")))))
    bare = algorithms_chart(link_report(with_algorithms(measured(kinds=("broadcast",)))))
    dots = [mark for mark in drawing.marks if isinstance(mark, Dot)]
    lines = [mark for mark in drawing.marks if isinstance(mark, Line)]

    assert (17 * 6, 5) == (len(dots), len(lines))
    assert ["ring", "tree", "halving-doubling", "hierarchical", "naive", "library"] == [e.name for e in drawing.legend]
    assert pytest.approx(1e9 * (6 * ALPHA_S + 1.5 * 1024 * BETA_S), rel=0.05) == lines[0].points[0][1]
    assert any("ring, 1 KiB" in dot.tip and "predicted" in dot.tip for dot in dots)
    assert [Dot] * 17 * 5 == [type(mark) for mark in bare.marks]


# The page of a benchmark.


def page(rows: list[Row], title: str = "Benchmark", notes: tuple[str, ...] = ()) -> str:
    result = BenchResult(rows, title, list(notes))
    return pages.bench_document(result, draw_charts(result))


@pytest.mark.heavy
def test_the_page_says_what_the_charts_show() -> None:
    """The answer first; six charts, also where one is only a sentence; the table; SVG for paper."""
    text = page(WORKSHOP, notes=("ranks share cores",))

    assert 7 == text.count('<section class="part"')
    assert '<p class="answer">On this machine, DDP pays off from 8.4 M parameters up' in text
    assert "these figures have no losses" in text
    assert "ranks share cores" in text
    assert 5 == text.count('<div class="wide"><svg')
    assert 28 == len(re.findall(r"<tr>(?=<td)", text))


@pytest.mark.slow
def test_names_are_no_markup() -> None:
    """A model of a user's script and a machine can have any name; nothing is fetched or run but the page's own."""
    for name in ("<script>alert(1)</script>", "</script><b>", "\u202eevil", "$$x$$"):
        rows = with_losses([bench(name, "single", 1, 1.0), bench(name, "naive", 2, 0.6)])
        rows.append(Row(name, "ddp", 2, failed=name))
        links = link_report(measured())
        links["machines"][0]["host"] = name
        for text in (page(rows, title=name, notes=(name,)), pages.links_document(links | {"notes": [name]})):
            policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)

            assert "<script>alert" not in text, name
            assert "</script><b>" not in text, name
            assert "\u202e" not in text, name
            assert policy is not None, name
            assert "default-src &#39;none&#39;" in policy[1], name
            assert "unsafe-eval" not in policy[1], name


@pytest.mark.slow
@browser_test
def test_the_pages_open_without_an_error(browser: Browser, tmp_path: Path) -> None:
    """Of a benchmark, links and a sweep, whole and with next to nothing: from the disk, with all charts."""
    raw = measured()
    bare = raw | {"samples": [sample for sample in raw["samples"] if sample["bytes"] == 1024]}
    steps = {"1": result(0.2), "4": result(0.1)}
    content = make_sweep(tmp_path / "sweep", {BUCKET_CAP: tuple(steps)}, steps).result.content
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
            assert charts == shown.locator(".wide svg").count()
            assert shown.locator("table").first.is_visible()
        assert [] == errors


# The page of measured links.


def test_points_are_the_measured_rows() -> None:
    """A dot in bytes and ns, and in bytes and GB/s, for each size; the tip has the middle half around the median. A
    ring lies at n*, where the time is twice alpha."""
    content = link_report(measured(kinds=("send_recv",)))
    rows, fit = (content["collectives"]["send_recv"][name] for name in ("measured", "fit"))
    dots = [mark for mark in pages.time_chart(content).marks if isinstance(mark, Dot)]
    (ring,) = [dot for dot in dots if dot.hollow]
    rates = [mark for mark in pages.rate_chart(content).marks if isinstance(mark, Dot)]

    assert [(row["bytes"], 1e9 * row["median_s"]) for row in rows] == [(dot.x, dot.y) for dot in dots if not dot.hollow]
    assert "1 KiB" in next(dot.tip for dot in dots if not dot.hollow)
    assert [row["busbw_gbps"] for row in rows] == [dot.y for dot in rates]
    assert (ring.x, ring.y) == pytest.approx((fit["crossover_bytes"], 2e9 * fit["alpha_s"]))

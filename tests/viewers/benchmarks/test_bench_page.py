"""The page of a benchmark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dptrace.bench.conclusions import conclusions
from dptrace.bench.table import Row, usable
from dptrace.viewers.base.screenshot import svg_page
from dptrace.viewers.benchmarks.bench_charts import draw
from dptrace.viewers.benchmarks.bench_page import Content, document
from tests.support.bench_tables import WORKSHOP, bench, with_losses
from tests.support.browser import browser_test, chromium, emulate, open_page


def page(rows: list[Row], title: str = "Benchmark", notes: tuple[str, ...] = ()) -> str:
    charts = [(chart, draw(chart, usable(rows))) for chart in conclusions(rows)]
    return document(Content(title, ["28 rows"], notes, rows, charts))


@pytest.mark.heavy
def test_the_page_says_what_the_charts_show() -> None:
    """The answer first; six charts, also where one is only a sentence; the table; SVG for paper."""
    text = page(WORKSHOP, notes=("ranks share cores",))

    assert 7 == text.count('<section class="part"')
    assert '<p class="answer">On this machine, DDP pays off from 8.4 M parameters up' in text
    assert "these figures have no losses" in text
    assert "ranks share cores" in text
    assert 5 == text.count('<div class="still"><svg')
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
def test_the_page_opens_without_an_error(tmp_path: Path) -> None:
    """Whole and with next to nothing, from the disk, in light and dark; on paper SVG takes the figures' place."""
    with chromium() as browser:
        for name, rows, figures in (("whole", with_losses(WORKSHOP), 6), ("bare", [bench("a", "ddp", 2, 1.0)], 2)):
            path = tmp_path / f"{name}.html"
            path.write_text(page(rows), encoding="utf-8")
            with open_page(browser, path) as (shown, errors):
                assert figures == shown.locator(".bk-Figure").count()
                emulate(shown, color_scheme="dark")
                shown.locator("html[data-look=dark]").wait_for(state="attached")
                assert figures == shown.locator(".bk-Figure").count()
                emulate(shown, media="print")
                assert shown.locator(".still svg").first.is_visible()
                assert not shown.locator(".live").first.is_visible()
            assert [] == errors


@browser_test
def test_a_narrow_page_shows_fewer_labels(tmp_path: Path) -> None:
    """At 600 pixels fewer values stand on the bars than at 1200; models' names stay."""
    path = tmp_path / "page.html"
    path.write_text(page(WORKSHOP), encoding="utf-8")
    told = (
        "() => views[0].roots[0].model.renderers.flatMap(r => r.glyph.type === 'Text' ? r.data_source.data.text : [])"
    )
    with chromium() as browser, open_page(browser, path) as (shown, errors):
        texts = {}
        for width in (1200, 600):
            shown.set_viewport_size({"width": width, "height": 800})
            shown.locator(f"html[data-thinned='{width}']").wait_for(state="attached")
            texts[width] = {text for text in shown.evaluate(told) if text}
        assert [] == errors
    assert texts[600] < texts[1200]
    assert {"small (1.5 M)", "xlarge (52.0 M)"} <= texts[600]

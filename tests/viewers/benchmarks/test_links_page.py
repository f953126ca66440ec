"""The page of measured links."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.model.link_report import link_report
from dptrace.viewers.base.marks import Dot
from dptrace.viewers.benchmarks import links_page
from tests.support.browser import browser_test, chromium, open_page
from tests.support.links_samples import measured


def test_points_are_the_measured_rows() -> None:
    """A dot in bytes and ns, and in bytes and GB/s, for each size; the tip has the middle half around the median."""
    content = link_report(measured(kinds=("send_recv",)))
    rows = content["collectives"]["send_recv"]["measured"]
    dots = [mark for mark in links_page.time_chart(content).marks if isinstance(mark, Dot) and not mark.hollow]
    rates = [mark for mark in links_page.rate_chart(content).marks if isinstance(mark, Dot)]

    assert 17 == len(dots) == len(rates) == len(rows)
    assert 1024 == dots[0].x
    assert dots[0].y == pytest.approx(30_256)
    assert "1 KiB" in dots[0].tip
    assert [row["busbw_gbps"] for row in rows] == [dot.y for dot in rates]


def test_the_crossover_lies_on_the_line() -> None:
    """A ring at n*, where the time is twice alpha."""
    content = link_report(measured(kinds=("send_recv",)))
    fit = content["collectives"]["send_recv"]["fit"]

    (ring,) = [mark for mark in links_page.time_chart(content).marks if isinstance(mark, Dot) and mark.hollow]
    assert ring.x == fit["crossover_bytes"]
    assert ring.y == pytest.approx(2e9 * fit["alpha_s"])


@pytest.mark.slow
@pytest.mark.parametrize("host", ["<script>alert(1)</script>", "</script><b>"])
def test_names_are_no_markup(host: str) -> None:
    """A machine's name enters the page as text."""
    content = link_report(measured())
    content["machines"][0]["host"] = host
    page = links_page.document(content | {"notes": [host]})

    assert host not in page.replace("</script>\n<script", "")
    assert page.count("&lt;") >= 2


@browser_test
def test_the_page_opens_without_an_error(tmp_path: Path) -> None:
    """Under its policy, from the disk, with both charts drawn, also where there is no fit at all."""
    raw = measured()
    bare = raw | {"samples": [sample for sample in raw["samples"] if sample["bytes"] == 1024]}
    with chromium() as browser:
        for name, content in (("whole", link_report(raw)), ("bare", link_report(bare))):
            path = tmp_path / f"{name}.html"
            path.write_text(links_page.document(content), encoding="utf-8")
            with open_page(browser, path) as (page, errors):
                assert 2 == page.locator(".bk-Figure").count()
                assert 9 == page.locator("table").first.locator("tbody tr").count()
            assert [] == errors

"""The page of measured links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.model.link_report import link_report
from dptrace.viewers.benchmarks import links_page
from tests.support.browser import browser_test, chromium, open_page
from tests.support.links_samples import measured


def test_columns_are_the_measured_rows() -> None:
    """In bytes, µs and GB/s, as many as there are sizes."""
    found = link_report(measured(kinds=("send_recv",)))["collectives"]["send_recv"]
    columns = links_page.columns(found)

    assert {17} == {len(column) for column in columns.values()}
    assert columns["us"][0] == pytest.approx(30.256)
    assert ("1 KiB", 1024) == (columns["size"][0], columns["bytes"][0])
    assert all(
        low <= middle <= high for low, middle, high in zip(columns["low"], columns["us"], columns["high"], strict=True)
    )


def test_the_crossover_lies_on_the_line() -> None:
    """A ring at n*, where the time is twice alpha."""
    content = link_report(measured(kinds=("send_recv",)))
    time, _ = links_page.figures(content)
    fit = content["collectives"]["send_recv"]["fit"]

    drawn: list[Any] = list(time.renderers)

    (ring,) = [r for r in drawn if "x" in r.data_source.data]
    assert ring.data_source.data["x"] == [fit["crossover_bytes"]]
    assert ring.data_source.data["y"][0] == pytest.approx(2e6 * fit["alpha_s"])


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
                assert 6 == page.locator("table").first.locator("tbody tr").count()
            assert [] == errors

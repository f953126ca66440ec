"""The page of a recording's prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.commands.recorded_plan import predict_recording
from dptrace.load.open import open_run
from dptrace.viewers.planning.recorded_page import document
from tests.support.browser import browser_test, chromium, open_page


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return predict_recording(open_run(["traces/interleaved_cpu_2ranks"]), "<b>run</b>")


@pytest.mark.heavy
@browser_test
def test_steps_lie_on_the_roofline(tmp_path: Path, content: dict[str, Any]) -> None:
    """The figure is drawn, above the links and a row for each number of ranks. Names are text."""
    path = tmp_path / "roofline.html"
    path.write_text(document(content), encoding="utf-8")
    with chromium() as browser, open_page(browser, path) as (page, errors):
        assert 1 == page.locator(".bk-Figure").count()
        assert 11 == page.locator("table").last.locator("tbody tr").count()
        assert "<b>run</b>" in page.locator("body").inner_text()
    assert [] == errors


def test_without_flops_a_sentence_says_why(content: dict[str, Any]) -> None:
    """The numbers of ranks stay."""
    page = document(content | {"roofline": None})

    assert "are not known" in page
    assert "On other numbers of ranks" in page

"""The page of a recording's prediction."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.commands.planning.recorded_step import predict_recording
from dptrace.load.open import open_run
from dptrace.viewers.planning.recorded_page import document
from tests.support.browser import browser_test, chromium, open_page


@pytest.mark.heavy
@browser_test
def test_steps_lie_on_the_roofline_and_without_flops_a_sentence_says_why(tmp_path: Path) -> None:
    """The figure is drawn; without it, the tables stay. Names are text."""
    content = predict_recording(open_run(["traces/interleaved_cpu_2ranks"]), "<b>run</b>")
    with chromium() as browser:
        for name, shown, figures in (("whole", content, 1), ("bare", content | {"roofline": None}, 0)):
            path = tmp_path / f"{name}.html"
            path.write_text(document(shown), encoding="utf-8")
            with open_page(browser, path) as (page, errors):
                assert figures == page.locator(".bk-Figure").count()
                assert 11 == page.locator("table").last.locator("tbody tr").count()
                assert "<b>run</b>" in page.locator("body").inner_text()
            assert [] == errors

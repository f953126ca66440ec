"""The page with another Bokeh release, to find incompatibilities of a pre-release early.

The test may fail; adapt bokeh_adapter.js when it does. Run ``pip install --pre --no-deps --target FOLDER bokeh``, then
``DPTRACE_OTHER_BOKEH=FOLDER pytest tests/viewers/gantt/page/test_bokeh_adapter.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import browser_test, open_page
from tests.support.gantt_page import expected_figures, row_box, settle, shown_figures, visible_range
from tests.support.synthetic import training_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

OTHER = os.environ.get("DPTRACE_OTHER_BOKEH", "")

_DRAW = """
import sys
sys.path.insert(0, sys.argv[1])
from dptrace.viewers.gantt.page import document as gantt
from tests.support.synthetic import training_run
open(sys.argv[2], "w", encoding="utf-8").write(gantt.document(training_run(3_000, ranks=2)))
import bokeh
print(bokeh.__version__)
"""


@browser_test
@pytest.mark.skipif(not OTHER, reason="DPTRACE_OTHER_BOKEH does not name the folder of another Bokeh")
@pytest.mark.xfail(strict=False, reason="another Bokeh may be incompatible with the adapter")
def test_the_page_works_with_another_bokeh(browser: Browser, tmp_path: Path) -> None:
    """Figures, canvas place, zoom by wheel and keys, and no errors."""
    path = tmp_path / "other.html"
    drawn = subprocess.run(
        [sys.executable, "-c", _DRAW, OTHER, str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[4],
    )
    with open_page(browser, path) as (page, errors):
        settle(page)
        assert drawn.stdout.strip() == page.evaluate("Bokeh.version").replace("-dev.", ".dev")
        assert expected_figures(training_run(3_000, ranks=2)) == shown_figures(page)
        before = visible_range(page)
        box = row_box(page, "compute")
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.wheel(0, -200)
        settle(page)
        near = visible_range(page)
        assert near[1] - near[0] < before[1] - before[0]
        page.keyboard.press("w")
        settle(page)
        assert visible_range(page)[1] - visible_range(page)[0] < near[1] - near[0]
        page.keyboard.press("f")
        settle(page)
        assert before == visible_range(page)
        assert page.evaluate("dptrace.exact()")
        assert [] == errors

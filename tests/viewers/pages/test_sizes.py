"""Every kind of page on a phone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dptrace
from dptrace import Run
from dptrace.comparison.compare import compare
from dptrace.model.link_report import link_report
from dptrace.replay.whatif import Sweep
from dptrace.viewers.benchmarks import pages as benchmarks
from dptrace.viewers.gantt.page import document as gantt
from dptrace.viewers.gantt.page import pair
from dptrace.viewers.pages import comparison, explain, report, whatif_sweep
from dptrace.viewers.pages.view import document
from dptrace.viewers.planning import pages as planning
from dptrace.viewers.views.registry import VIEWS
from tests.support.bench_tables import WORKSHOP, with_losses
from tests.support.browser import browser_test, open_page
from tests.support.explanations import explained
from tests.support.links_samples import measured, with_algorithms
from tests.support.paths import ROOT
from tests.support.view_cases import many_ranks
from tests.viewers.benchmarks.test_pages import page as bench_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PHONE = (390, 844)
_FITS = """() => {
    const { scrollWidth, clientWidth } = document.documentElement, skip = document.querySelector("a.skip");
    const texts = [...document.querySelectorAll(".picture svg text")].map((node) => {
        const { left, right, top, bottom } = node.getBoundingClientRect();
        return { text: node.textContent, left, right, top, bottom };
    });
    const common = (a, b, low, high) => Math.min(a[high], b[high]) - Math.max(a[low], b[low]);
    const crosses = (a, b) => common(a, b, "left", "right") > 2 && common(a, b, "top", "bottom") > 5;
    const over = (one, i) => texts.slice(i + 1).filter((other) => crosses(one, other)).map((other) => [one, other]);
    return {
        overprinted: texts.flatMap(over).map((pair) => pair.map(({ text }) => text)),
        cut: texts.filter(({ left, right }) => right > innerWidth + 1 || left < 0).map(({ text }) => text),
        sideways: Math.max(0, scrollWidth - clientWidth),
        landmarks: document.querySelectorAll("main").length,
        above: (document.querySelector("#heat:not([hidden]), #figure")?.getBoundingClientRect().top ?? 0) / innerHeight,
        skips: Boolean(document.querySelector(skip?.getAttribute("href"))),
    };
}"""


@pytest.fixture(scope="module")
def run() -> Run:
    return dptrace.open(ROOT / "traces" / "ddp_4mb_cpu_2ranks")


def _sweep(run: Run) -> str:
    caps = [1, 100]
    return whatif_sweep.document(Sweep.of("bucket-cap-mb", caps, [run.whatif(bucket_cap_mb=cap) for cap in caps]))


PAGES: dict[str, Callable[[Run], str]] = {
    **{
        name: lambda run, view=VIEWS[name]: document(view, run)  # type: ignore[misc]
        for name in ("breakdown", "heatmap", "kernels", "roofline", "findings")
    },
    "gantt": gantt.document,
    "many ranks": lambda _: gantt.document(many_ranks(32)),
    "critical path": lambda run: gantt.step_document(run, run.critical_path()),
    "report": report.document,
    "pair": lambda run: pair.document(run, run),
    "diff": lambda run: comparison.document(compare(run, run)),
    "what-if": _sweep,
    "explain": lambda _: explain.document(explained("1f1b", 4)),
    "bench": lambda _: bench_page(with_losses(WORKSHOP)),
    "links": lambda _: benchmarks.links_document(link_report(with_algorithms(measured()))),
    "predict": lambda _: planning.document(dptrace.predict(params=7e9, gpus=16)),
    "advise": lambda _: planning.document(dptrace.advise(params=7e9, gpus=16)),
}
DRAWN = ("gantt", "many ranks", "critical path", "report", "pair", "diff", "explain")
"""Pages that scripts draw, which say when they are ready."""


@pytest.mark.slow
@browser_test
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_phone(browser: Browser, tmp_path: Path, run: Run, name: str) -> None:
    """It does not scroll sideways, has one main landmark and a link to it for a keyboard, and complains of nothing; no
    text of a picture is cut or printed over another; a chart begins in the upper half of the screen, with the names of
    its rows beside it, and a report's overview is filled."""
    path = tmp_path / "page.html"
    path.write_text(PAGES[name](run), encoding="utf-8")
    with open_page(browser, path, PHONE, ready=name in DRAWN and name != "explain") as (page, errors):
        found = page.evaluate(_FITS)
        page.keyboard.press("Tab")

        assert (0, 1, True) == (found["sideways"], found["landmarks"], found["skips"])
        assert "skip" == page.evaluate("document.activeElement.className")
        assert ([], []) == (found["overprinted"], found["cut"])
        assert name in ("report", "pair", "diff") or found["above"] < 0.5
        if name == "gantt":
            assert {"compute", "communication"} <= {*page.locator("#names .row:visible").all_text_contents()}
        if name == "report":
            filled = "dptrace.minimap.raster && dptrace.mini.canvas.getContext('2d').getImageData(0, 0, 200, 20).data"
            assert len(set(page.evaluate(f"[...{filled}]"))) > 20
        assert [] == errors

"""The report: everything about a run on one small page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from markupsafe import escape

import dptrace
from dptrace.replay.findings import findings_of
from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import Chart, chart
from dptrace.viewers.gantt.page import document as gantt
from dptrace.viewers.pages import report
from dptrace.viewers.pages.report import document
from dptrace.viewers.terminal.summary import sentence
from dptrace.viewers.views.registry import VIEWS
from tests.support.browser import browser_test, emulate, open_page, rest, until
from tests.support.jobs import late_run
from tests.support.synthetic import training_run
from tests.support.view_cases import CASES
from tests.viewers.base.test_page import Scripts

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def recorded() -> Run:
    return dptrace.open(str(ROOT / "traces" / "ddp_cpu_2ranks"))


@pytest.mark.heavy
def test_everything_is_on_the_page(recorded: Run) -> None:
    """Sentence, findings with the most expensive first, chart, views, recording facts, and definitions."""
    page = document(recorded)

    assert sentence(recorded).plain in page
    texts = [str(escape(finding.text)) for finding in findings_of(recorded)]
    assert texts
    assert sorted(texts, key=page.index) == texts
    for name in ("breakdown", "heatmap", "communication", "bandwidth", "buckets", "idle"):
        assert f"<h2>{VIEWS[name].title}</h2>" in page
    assert "dptrace record --mode ddp --gpus 2 --steps 4" in page
    assert "torch 2.13.0+cpu" in page
    for term, text in report.DEFINITIONS:
        assert f"<dt>{term}</dt><dd>{text}</dd>" in page


@pytest.mark.slow
def test_every_run_can_be_reported() -> None:
    """Without a step, without communication, on CPUs, by 64 ranks: a page that says so, below 10 MB."""
    for case in CASES:
        page = document(CASES[case]())

        assert page.startswith("<!DOCTYPE html>"), case
        assert len(page.encode()) < 10_000_000, case
        if case == "empty":
            assert "There is no step in this run." in page, case
        if case == "no communication":
            assert 2 <= page.count("This run has no communication."), case


@pytest.mark.heavy
def test_a_report_has_the_host_s_rows_where_they_fit(recorded: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are left out of one that they would make too large."""
    page = document(recorded)
    monkeypatch.setattr(report, "MAX_CHARACTERS", len(page) - 1)
    smaller = document(recorded)

    assert '"launches"' in page
    assert '"launches"' not in smaller
    assert "<h2>Definitions</h2>" in smaller


@pytest.mark.heavy
@pytest.mark.parametrize("limit", ["MAX_REPORT_INTERVALS", "MAX_CHARACTERS"])
def test_a_run_that_is_too_large_is_shown_by_a_step(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """A static picture of the step of median length, said in words, and no script at all."""
    monkeypatch.setattr(report, limit, 10)
    page = document(training_run(600, ranks=2, steps=3))

    assert "this is its step of median length, ProfilerStep#" in page
    assert [] == Scripts(page).scripts
    assert "<svg" in page


@pytest.mark.heavy
def test_of_many_ranks_the_picture_has_the_notable_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a page in one file holds, in rows that can be read."""
    monkeypatch.setattr(report, "MAX_REPORT_INTERVALS", 10)
    monkeypatch.setattr(gantt, "MAX_INTERVALS", 10)
    run = training_run(240, ranks=40, steps=2)
    section = document(run).partition('id="view-gantt"')[2].partition("</section>")[0]

    assert "32 of 40 ranks" in section
    assert 32 == sum(f">rank {rank} · GPU" in section for rank in run.ranks)


@pytest.mark.slow
def test_of_a_hundred_ranks_the_picture_has_the_notable_ones_however_short_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of rows are no picture, and their chart is not made; with as many as there are bars, all are drawn."""
    charts, runs = list[int](), [late_run(*[30] * ranks) for ranks in (97, 96)]
    monkeypatch.setattr(report, "MAX_REPORT_INTERVALS", sum(map(len, runs[0].timelines)))

    def counted(run: Run) -> Chart:
        charts.append(len(run.timelines))
        return chart(run)

    monkeypatch.setattr(report, "chart", counted)
    many, few = (document(run).partition('id="view-gantt"')[2] for run in runs)

    assert "32 of 97 ranks" in many
    assert "96 ranks" not in few
    assert [32, 96] == charts


@pytest.mark.slow
@browser_test
def test_the_wheel_scrolls_the_page(browser: Browser, tmp_path: Path) -> None:
    """All rows stand, however low the window; with Ctrl the wheel zooms the chart."""
    path = tmp_path / "report.html"
    path.write_text(document(training_run(1_200, ranks=6)), encoding="utf-8")
    with open_page(browser, path, size=(1200, 700)) as (page, errors):
        box = page.locator("#figure").bounding_box()
        assert box
        assert page.evaluate("dptrace.stage.frame === dptrace.stage.height")
        page.mouse.move(box["x"] + box["width"] / 2, (max(box["y"], 0) + 700) / 2)
        before = page.evaluate("dptrace.main.range.to")
        page.mouse.wheel(0, 120)
        until(page, "scrollY", 120)
        rest(page)
        assert before == page.evaluate("dptrace.main.range.to")
        page.keyboard.down("Control")
        page.mouse.wheel(0, -120)
        until(page, f"dptrace.main.range.to < {before}", True)
        rest(page)

        assert page.evaluate("dptrace.main.range.to") < before
        assert [] == [error for error in errors if "setting log level" not in error]


@pytest.mark.slow
@browser_test
def test_charts_are_dark_on_a_dark_page_and_light_on_paper(browser: Browser, tmp_path: Path, recorded: Run) -> None:
    """Grounds, texts and data; on paper, long tables are open, and the first page holds the words' meanings."""
    path = tmp_path / "report.html"
    path.write_text(document(recorded), encoding="utf-8")
    ground = "getComputedStyle(document.querySelector('#view-breakdown svg > rect')).fill"
    with open_page(browser, path) as (page, _):
        assert "rgb(255, 255, 255)" == page.evaluate(ground)
        emulate(page, color_scheme="dark")
        rest(page)
        assert "dark" == page.evaluate("document.documentElement.dataset.theme")
        assert "rgb(18, 22, 28)" == page.evaluate(ground)
        assert not page.locator(".cover").is_visible()
        emulate(page, media="print", color_scheme="light")
        assert page.locator(".cover").is_visible()
        assert not page.locator("#definitions").is_visible()

"""The Gantt page in a browser: its figures and pixels are the split's, and hostile names are harmless."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import dptrace
from dptrace.errors import DptraceError
from dptrace.run.run import Run
from dptrace.timeline.model import Kind
from dptrace.viewers.gantt.chart import Role, chart
from dptrace.viewers.gantt.page import document as gantt
from dptrace.viewers.gantt.page.document import step_document
from tests.support.browser import browser_test, open_page
from tests.support.builders import TimelineBuilder
from tests.support.gantt_page import (
    SHARE_FIGURES,
    at,
    expected_figures,
    settle,
    show,
    shown_figures,
    tip,
    written,
)
from tests.support.rank_cases import rank, reduce, shifted
from tests.support.replay_files import write_job
from tests.support.synthetic import training_run
from tests.viewers.gantt.page.test_truth import check, only_raster

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def run() -> Run:
    return training_run(3_000, ranks=2)


@pytest.fixture(scope="module")
def file(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "gantt.html"
    path.write_text(gantt.document(run), encoding="utf-8")
    return path


def picture(page: Page) -> str:
    drawn: str = page.evaluate("dptrace.main.canvas.toDataURL()")
    return drawn


@pytest.mark.slow
@browser_test
def test_the_page_opens_with_the_figures_of_the_split(browser: Browser, file: Path, run: Run) -> None:
    """From disk: no exception, no console message, no request; figures to the nanosecond, over all ranks and steps; in
    every column of the phases row, each part's height is its share of the time."""
    drawn = chart(run)
    with open_page(browser, file) as (page, errors):
        settle(page)

        assert "runs/synthetic" == page.locator("h1").get_attribute("title")
        assert "synthetic" == page.locator("h1").inner_text()
        assert "Made by hand." in (page.locator("#notes").text_content() or "")
        assert "interleaved" in page.locator(".facts").inner_text()
        assert expected_figures(run) == shown_figures(page)
        assert "All steps" in page.locator("#summary").inner_text()
        # Without a critical path, there is no button for it and no row, nor does the key do anything.
        before = picture(page)
        page.keyboard.press("k")
        settle(page)
        assert before == picture(page)
        assert page.locator("#path").is_hidden()
        assert not page.evaluate("dptrace.rows.some(({ path }) => path)")
        assert [] == errors
        only_raster(page)
        show(page, drawn.end_ns * 0.3, drawn.end_ns * 0.8)
        assert check(page, drawn, Role.PHASES, 0) > 0.4


WATCH = """new MutationObserver(() => {
    const figure = document.querySelector("#figure.still");
    for (const child of figure?.children ?? [])
        (globalThis.seen ??= new Set()).add(`${child.className === "layer"} ${getComputedStyle(child).visibility}`);
}).observe(document, { childList: true, subtree: true });"""


@pytest.mark.slow
@browser_test
def test_the_first_picture_and_the_chart_are_never_both_in_sight(browser: Browser, file: Path) -> None:
    """Bokeh's figures stay hidden until the picture joins them, also that of another window."""
    address = f"{file.as_uri()}#t=1,2"
    with open_page(browser, address, before=WATCH) as (page, errors):
        seen = page.evaluate("[...seen]")

        assert "true visible" in seen
        assert "false visible" not in seen
        assert 0 == page.locator("#figure.still").count()
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_figures_of_a_window_are_the_split_s_of_that_step(browser: Browser, tmp_path: Path) -> None:
    """With one step in view, the figures are exactly that step's, and labelled as the window's."""
    run = training_run(1_500, ranks=1)
    path = tmp_path / "one.html"
    path.write_text(gantt.document(run), encoding="utf-8")
    bounds = chart(run).tracks[0].bounds_ns
    step = {figure: int(values[1]) for figure, values in run.splits[0].figures.items()}
    with open_page(browser, path) as (page, errors):
        show(page, int(bounds[1]), int(bounds[2]))
        shown = shown_figures(page)

        assert {figure: step[figure] for figure in SHARE_FIGURES.values() if figure in shown} == {
            figure: shown[figure] for figure in SHARE_FIGURES.values() if figure in shown
        }
        assert (step["wall_ns"], step["overlapped_comm_ns"]) == (shown["step"], shown["overlapped"])
        assert "In this window" in page.locator("#summary").inner_text()
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_ranks_leave_a_collective_at_the_same_pixel(browser: Browser, tmp_path: Path) -> None:
    """Rows of ranks whose clocks are ahead by up to half a step, and drift, end each collective within a pixel."""
    clocks = ((0, 0), (31_000_000, 0), (-22_000_000, 0), (9_000_000, 40))
    calls = [
        [reduce(step, 100_000_000 * (step + 1), length=(2 + who) * 10**7) for step in range(12)] for who in range(4)
    ]
    names = tuple(f"ProfilerStep#{step}" for step in range(12))
    devices = [shifted(rank(who, own, names), *clocks[who]) for who, own in enumerate(calls)]
    run = Run("runs/clocks", tuple(one.timeline for one in devices), world_size=4)

    with open_page(browser, written(run, tmp_path / "page.html")) as (page, _):
        rows = page.evaluate(
            """() => dptrace.rows.filter(({ role }) => role === "exposure").map(({ y, h }) => {
                const { canvas } = dptrace.main, context = canvas.getContext("2d");
                return [...context.getImageData(0, Math.round(y + h / 2), canvas.width, 1).data];
            })"""
        )

    red, green, *_ = np.moveaxis(np.array(rows).reshape(4, -1, 4), 2, 0)
    transfers = [np.flatnonzero((r > 60) & (r > 1.5 * g)) for r, g in zip(red, green, strict=True)]
    # The letters of a label are narrower than the time between two collectives.
    edges = [np.append(columns[:-1][np.diff(columns) > 12], columns[-1]) for columns in transfers]
    assert [12] * 4 == [len(row) for row in edges]
    assert np.ptp(np.stack(edges), axis=0).max() <= 1


@pytest.mark.slow
@browser_test
def test_an_incompatible_bokeh_is_reported(browser: Browser, file: Path) -> None:
    """If the canvas cannot be placed, the page reports it and an alternative."""
    changed = """
        const model = { document: { get_model_by_name: () => ({}) } };
        const views = { roots: [{ model }], find_one: () => ({}) };
        const other = { version: "9.9", embed: { embed_item: async () => views }, set_log_level() {} };
        Object.defineProperty(window, "Bokeh", { get: () => other, set() {} });
    """
    with open_page(browser, file, before=changed, ready=False) as (page, _):
        problem = page.locator("#problem")
        problem.wait_for(state="visible")

        assert "Bokeh 9.9 has no canvas view" in problem.inner_text()
        assert "--text" in problem.inner_text()


def test_a_run_without_intervals_is_refused() -> None:
    """The error names the run."""
    with pytest.raises(DptraceError, match=r"nothing: there is no step"):
        gantt.document(Run("nothing", ()))


def test_too_many_collectives_say_how_to_see_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not merged; the error has the number, the limit, and the options to use."""
    monkeypatch.setattr(gantt, "MAX_INTERVALS", 50)
    with pytest.raises(DptraceError, match=r"intervals to draw \(2 ranks, 3 steps\).* 50\. .*--ranks 0,1 or --steps"):
        gantt.document(training_run(600))


@pytest.mark.heavy
def test_a_small_run_has_a_small_page(run: Run) -> None:
    """Most of it is Bokeh's script: 1.27 MB in 3.9, 1.4 MB in 3.10."""
    assert 1_300_000 < len(gantt.document(run)) < 1_800_000


@pytest.mark.heavy
def test_a_run_on_cpu_has_a_page() -> None:
    """Its labels name the CPU."""
    build = TimelineBuilder(0, device=-1).compute(0, 50, name="aten::mm").all_reduce(50, 80)
    page = gantt.document(Run("cpu", (build.build(),)))

    assert "rank 0 · CPU" in page or "rank 0 \\u00b7 CPU" in page
    assert "gloo on CPU" in page
    assert Kind.MEMORY not in build.build().kind


# The Gantt page of a step with its critical path, in a browser.


@pytest.fixture(scope="module")
def run_critical_path(tmp_path_factory: pytest.TempPathFactory) -> dptrace.Run:
    return dptrace.open(write_job(tmp_path_factory.mktemp("path_page_job")), cache=False)


def click(page: Page, role: str, time: float, track: int) -> str:
    """Click on a time in a row of a GPU; return what the panel of the kernel there then says of it."""
    page.mouse.click(*at(page, role, time, track))
    page.locator("#card", has_text=f"rank {track}").filter(has=page.locator("h2", has_text="forward")).wait_for()
    settle(page)
    return page.locator("#card").inner_text()


@pytest.mark.slow
@browser_test
def test_the_path_is_drawn_and_the_rest_dimmed(
    browser: Browser, run_critical_path: dptrace.Run, tmp_path: Path
) -> None:
    """Rows on both GPUs that it passes, K for the rest, a panel for a piece, and slack for a kernel beside it."""
    path = run_critical_path.critical_path("ProfilerStep#1")
    (tmp_path / "page.html").write_text(step_document(run_critical_path, path), encoding="utf-8")
    with open_page(browser, tmp_path / "page.html") as (page, errors):
        settle(page)
        first = picture(page)
        page.keyboard.press("k")
        settle(page)
        dimmed = picture(page)
        page.get_by_role("button", name="Critical path").click()
        settle(page)
        lit = picture(page)
        page.mouse.move(*at(page, "path", 200_000, 1))
        settle(page)
        hovered = tip(page)
        piece = click(page, "path", 200_000, 1)
        page.keyboard.press("Shift+K")
        settle(page)
        opened = page.locator("#card").inner_text()
        page.keyboard.press("Enter")
        settle(page)
        followed = page.locator("#card").inner_text()
        on_it, beside_it = click(page, "compute", 200_000, 1), click(page, "compute", 200_000, 0)

        assert [0, 1] == page.evaluate("dptrace.rows.filter(({ role }) => role === 'path').map(({ track }) => track)")
        assert first == lit != dimmed
        assert "forward" in hovered
        assert "400 µs, 50 % of step 1" in hovered
        assert all(text in piece for text in ("rank 1 · GPU 0", "400 µs", "40.0 µs shorter"))
        assert "piece\t1 of" in opened
        assert "piece\t2 of" in followed
        assert "critical path" in on_it
        assert "100 µs" in beside_it.partition("slack")[2]
        assert page.locator("#keys dt", has_text="K").count()
        assert not errors

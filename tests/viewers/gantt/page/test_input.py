"""The Gantt page under real input: wheel, keys, pointer and legend."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from dptrace.analysis.per_gpu.split import Part
from dptrace.run.run import Run
from dptrace.timeline.model import Windows
from dptrace.viewers.base import theme
from dptrace.viewers.gantt.chart import chart
from dptrace.viewers.gantt.page import document as gantt
from tests.support.browser import browser_test, open_page
from tests.support.builders import two_rank_timelines
from tests.support.gantt_page import at, expected_figures, row_box, settle, shown_figures, tip, visible_range
from tests.support.jobs import MS, late_run
from tests.support.synthetic import training_run

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


@pytest.mark.slow
@browser_test
def test_wheel_keys_and_clicks_move_through_time(browser: Browser, file: Path, run: Run) -> None:
    """Real input: wheel, w a s d, f, brackets, a click on a step, a double click on a kernel, a drag, a resize.

    What wheel and keys do, their opposites take back exactly, also at the ends of the run.
    """
    with open_page(browser, file) as (page, errors):
        settle(page)
        whole = visible_range(page)
        box = row_box(page, "compute")
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        for _ in range(25):
            page.mouse.wheel(0, -60)
        settle(page)
        near = visible_range(page)
        assert (near[1] - near[0]) * 5 < whole[1] - whole[0]

        for _ in range(25):
            page.mouse.wheel(0, 60)
        settle(page)
        assert pytest.approx(whole, abs=1e-3) == visible_range(page)
        page.mouse.move(box["x"] + box["width"] / 10, box["y"] + box["height"] / 2)
        _assert_keys_move_and_take_back(page, near)

        page.keyboard.press("f")
        settle(page)
        assert pytest.approx(whole, abs=1e-3) == visible_range(page)

        bounds = [track.bounds_ns for track in chart(run).tracks]
        _assert_brackets_go_from_step_to_step(page, bounds)

        page.keyboard.press("f")
        settle(page)
        page.mouse.click(box["x"] + box["width"] / 2, page.evaluate(_STRIP))
        settle(page)
        assert visible_range(page)[0] <= min(b[1] for b in bounds) < visible_range(page)[0] + 0.05 * whole[1]

        # A drag begins where the view is, also right after another move.
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + box["height"] / 2)
        page.evaluate("(by) => dptrace.navigation.show(by, 2 * by)", whole[1] / 4)
        before = visible_range(page)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + box["height"] / 2, steps=4)
        page.mouse.up()
        settle(page)
        after = visible_range(page)
        assert after[0] > before[0]
        assert after[1] - after[0] == pytest.approx(before[1] - before[0])
        page.keyboard.press("a")
        settle(page)
        start, end = page.evaluate(
            "(({ start, end }) => [start, end])(Bokeh.documents[0].get_model_by_name('main').x_range)"
        )
        assert visible_range(page) == (start, end) != after

        page.set_viewport_size({"width": 1000, "height": 700})
        settle(page)
        assert page.evaluate("dptrace.main.aligned()")
        assert [] == errors


def _assert_brackets_go_from_step_to_step(page: Page, bounds: Sequence[Any]) -> None:
    """Each press shows one step of all tracks, and little more."""
    for key, step in (("]", 0), ("]", 1), ("[", 0)):
        page.keyboard.press(key)
        settle(page)
        first, last = min(b[step] for b in bounds), max(b[step + 1] for b in bounds)
        start, end = visible_range(page)
        assert start <= first < last <= end
        assert end - start < 1.1 * (last - first)


def _assert_keys_move_and_take_back(page: Page, near: Sequence[float]) -> None:
    """Zoom in and out, and move left and right: from the whole run, and within a range."""
    whole = visible_range(page)
    # A busy machine may hear of a key's end so late that the key counts as held; without motion, each is one step.
    page.emulate_media(reduced_motion="reduce")
    for keys in ("wwwsss", "wwwaaddsss", "wdddddaaaaas"):
        for key in keys:
            page.keyboard.press(key)
        settle(page)
        assert pytest.approx(whole, abs=1e-3) == visible_range(page), keys
    page.emulate_media(reduced_motion="no-preference")
    page.evaluate("([from, to]) => dptrace.main.show(from, to)", near)
    settle(page)
    for key, moved in (("w", "in"), ("s", "out"), ("a", "left"), ("d", "right")):
        before = visible_range(page)
        page.keyboard.press(key)
        settle(page)
        after = visible_range(page)
        wider, shifted = (after[1] - after[0]) - (before[1] - before[0]), after[0] - before[0]
        assert {"in": wider < 0, "out": wider > 0, "left": shifted < 0, "right": shifted > 0}[moved], key


_STRIP = "dptrace.main.canvas.getBoundingClientRect().top + dptrace.stage.strips[0].y + 1"
"""The vertical position of the step names on the screen."""


@pytest.mark.slow
@browser_test
def test_the_tooltip_describes_what_is_under_the_pointer(browser: Browser, tmp_path: Path) -> None:
    """Name, duration, phase and step of a kernel; kind, bytes and exposed part of a collective; idle; steps."""
    path = tmp_path / "two.html"
    path.write_text(gantt.document(Run("two", two_rank_timelines())), encoding="utf-8")
    with open_page(browser, path) as (page, errors):
        settle(page)

        def tip_at(role: str, time: float, track: int = 0) -> str:
            page.mouse.move(*at(page, role, time, track))
            return tip(page)

        kernel = tip_at("compute", 20_000)
        assert all(text in kernel for text in ("gemm", "28.0 µs", "Forward", "ProfilerStep#0", "rank 0 · GPU 0"))
        collective = tip_at("exposure", 75_000, track=1)
        for text in ("all_reduce", "4.1 kB", "31.0 µs", "exposed 11.0 µs (35 %)", "rank 1", "stream 20"):
            assert text in collective
        assert "Exposed transfer" in tip_at("phases", 75_000)
        assert "ProfilerStep#0: 10.0 µs, 10 % of its 100 µs" in tip_at("phases", 75_000)
        assert tip_at("phases", 95_000).startswith("Idle\nProfilerStep#0: 12.0 µs")
        assert "Memcpy HtoD" in tip_at("memory", 1_000)

        page.mouse.dblclick(*at(page, "compute", 50_000))
        settle(page)
        start, end = visible_range(page)
        assert 40_000 < end - start < 60_000
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_waiting_is_drawn_apart_and_names_the_rank(browser: Browser, tmp_path: Path) -> None:
    """In the rows of phases and of communication, in the summary, and in both tooltips."""
    run, path = late_run(30, 70), tmp_path / "late.html"
    path.write_text(gantt.document(run), encoding="utf-8")
    with open_page(browser, path) as (page, errors):
        settle(page)
        assert expected_figures(run) == shown_figures(page)
        assert 40 * MS == shown_figures(page)["waiting"]

        page.mouse.move(*at(page, "phases", 50 * MS))
        assert tip(page).startswith("Waiting for rank 1\nProfilerStep#0: 40.0 ms")
        page.mouse.move(*at(page, "phases", 75 * MS))
        assert tip(page).startswith("Exposed transfer\nProfilerStep#0: 10.0 ms")
        page.mouse.move(*at(page, "exposure", 50 * MS))
        assert "waiting for rank 1: 40.0 ms" in tip(page)
        page.mouse.move(*at(page, "exposure", 75 * MS, track=1))
        assert "waiting" not in tip(page)
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_a_chip_hides_its_category(browser: Browser, file: Path) -> None:
    """Backward's pixels disappear, the button is not pressed, and the figures do not change."""
    with open_page(browser, file) as (page, errors):
        settle(page)
        box = row_box(page, "phases")
        clip: Any = {"x": box["x"] + 1, "y": box["y"] + box["height"] - 2, "width": box["width"] - 2, "height": 1}

        def backward() -> int:
            image = np.array(Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB"))
            color = [int(theme.PART_COLORS[Part.BACKWARD][i : i + 2], 16) for i in (1, 3, 5)]
            return int((image == color).all(axis=2).sum())

        before, figures = backward(), shown_figures(page)
        chip = page.get_by_role("button", name="Backward", exact=True)
        chip.click()
        settle(page)

        assert before > 200
        assert 0 == backward()
        assert "false" == chip.get_attribute("aria-pressed")
        assert figures == shown_figures(page)
        chip.press("Enter")
        settle(page)
        assert before == backward()
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_ranks_with_clocks_apart_are_drawn_as_recorded(browser: Browser, tmp_path: Path) -> None:
    """One row names the steps of both, and the brackets go through them; a note explains it; figures are the same."""
    one, two = two_rank_timelines()
    hour = 3_600_000_000_000
    windows = Windows(two.windows.names, two.windows.bounds + hour)
    later = replace(two, start_ns=two.start_ns + hour, end_ns=two.end_ns + hour, windows=windows)
    run = Run("apart", (one, later), align=False)
    path = tmp_path / "apart.html"
    path.write_text(gantt.document(run), encoding="utf-8")
    with open_page(browser, path) as (page, errors):
        settle(page)
        assert "far apart" in (page.locator("#notes").text_content() or "")
        assert expected_figures(run) == shown_figures(page)
        assert 1 == page.locator("#names .strip").count()
        for start in (0, 100_000, hour, hour + 100_000, hour + 100_000):
            page.keyboard.press("]")
            settle(page)
            assert start - 2_000 == round(visible_range(page)[0])
        page.keyboard.press("[")
        page.keyboard.press("[")
        settle(page)
        assert 98_000 == round(visible_range(page)[0])
        assert [] == errors

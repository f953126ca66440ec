"""Compares the drawn pixel columns with the analysis: zoomed, scrolled, collapsed, at high resolution, at extremes."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.split import Part
from dptrace.core.intervals import Int64, covered, union
from dptrace.run.run import Run
from dptrace.timeline.model import Phase
from dptrace.viewers.base import theme
from dptrace.viewers.gantt.chart import OVERLAPPED, WAITING, Chart, Lane, Role, chart
from dptrace.viewers.gantt.page import document as gantt
from tests.support.browser import browser_test, open_page
from tests.support.builders import TimelineBuilder
from tests.support.gantt_page import at, expected_figures, settle, show, shown_figures, tip, visible_range
from tests.support.synthetic import training_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WHOLE_TRACE = 3
"""Minimum width of an interval that is drawn whole, rounded to the pixel grid."""


@pytest.fixture(scope="module")
def run() -> Run:
    return training_run(24_000, ranks=3)


@pytest.fixture(scope="module")
def file(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(run, tmp_path_factory.mktemp("pages"))


def page_of(run: Run, folder: Path) -> Path:
    path = folder / "page.html"
    path.write_text(gantt.document(run), encoding="utf-8")
    return path


def only_raster(page: Page) -> None:
    """Draw the intervals only, without labels and backgrounds."""
    page.evaluate("() => { dptrace.picture.over = () => {}; dptrace.picture.bands = () => []; }")


def row_pixels(page: Page, role: Role, track: int) -> NDArray[np.uint32]:
    """Return a row's device pixels on the canvas, top to bottom."""
    width, height, pixels = page.evaluate(
        """([role, track]) => {
            const { picture, main, stage } = dptrace, { y, h } = stage.boxOf(track, role);
            picture.draw(true);
            const scale = main.canvas.width / main.frame().width;
            const top = Math.round(y * scale), bottom = Math.round((y + h) * scale);
            const { data } = main.canvas.getContext("2d").getImageData(0, top, main.canvas.width, bottom - top);
            let text = "";
            for (let i = 0; i < data.length; i += 4096) text += String.fromCharCode(...data.subarray(i, i + 4096));
            return [main.canvas.width, bottom - top, btoa(text)];
        }""",
        [role.value, track],
    )
    return np.frombuffer(base64.b64decode(pixels), np.uint32).reshape(height, width)


def pixel(color: str, factor: float = 1) -> int:
    red, green, blue = (round(int(color[i : i + 2], 16) * factor) for i in (1, 3, 5))
    return 0xFF000000 | blue << 16 | green << 8 | red


def colors(category: int) -> list[int]:
    others = {OVERLAPPED: theme.OVERLAPPED, WAITING: theme.WAITING}
    color = others[category] if category in others else theme.PART_COLORS[Part(category)]
    # The darker lines of the hatch of exposed communication count, too.
    return [pixel(color), pixel(color, 0.72)]


def lane_of(drawn: Chart, role: Role, track: int) -> Lane:
    return next(lane for lane in drawn.lanes if lane.role is role and lane.track == track)


def shares(
    lane: Lane, edges: NDArray[np.float64], chosen: NDArray[np.bool_] | None = None
) -> dict[int, NDArray[np.float64]]:
    """Return each category's share of the time between two edges, from the lane's intervals or the chosen ones."""
    found = {}
    for category in map(int, np.unique(lane.category)):
        mine = (lane.category == category) & (True if chosen is None else chosen)
        busy = union(lane.start_ns[mine], (lane.start_ns + lane.duration_ns)[mine])
        times: Any = edges
        found[category] = np.diff(covered(busy, times)) / np.diff(edges)
    return found


def edge_columns(lane: Lane, edges: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the columns where an interval drawn whole differs from its share.

    These are its first and last columns, since it is rounded to the pixel grid, and columns where it covers other
    categories.
    """
    step = edges[1] - edges[0]
    long = lane.duration_ns >= WHOLE_TRACE * step
    whole = shares(lane, edges, long).values()
    several = sum((share > 0).astype(int) for share in whole) > 1
    several |= (sum(whole) > 0) & (sum(shares(lane, edges).values()) > 1.001)
    ends: Int64 = np.concatenate((lane.start_ns[long], (lane.start_ns + lane.duration_ns)[long]))
    column = np.floor((ends - edges[0]) / step).astype(np.int64)
    marked = np.zeros(len(edges) + 1, np.bool_)
    for offset in (-1, 0, 1):
        marked[np.clip(column + offset, -1, len(edges) - 1)] = True
    mixed: NDArray[np.bool_] = marked[: len(edges) - 1] | several
    return mixed


def check(page: Page, drawn: Chart, role: Role, track: int, most: float = 1.01) -> float:
    """Compare every column of a row with the shares; return the fraction of the columns that could be compared."""
    image = row_pixels(page, role, track)
    height, width = image.shape
    edges = np.linspace(*visible_range(page), width + 1)
    lane, bounds = lane_of(drawn, role, track), drawn.tracks[track].bounds_ns
    truth = shares(lane, edges)
    total = np.maximum(1, sum(truth.values()))
    pale = (edges[:-1] < bounds[0]) | (edges[1:] > bounds[-1])
    parted = (image == 0xFFFFFFFF).all(axis=0)
    comparable = ~(edge_columns(lane, edges) | pale | parted)
    for category, share in truth.items():
        seen = np.isin(image, colors(category)).sum(axis=0)
        off = np.abs(seen - share / total * height)[comparable]

        assert off.max(initial=0) <= most, f"{role.value} of track {track}, category {category}: {off.max()} px off"
    return float(comparable.mean())


@pytest.mark.slow
@browser_test
def test_columns_are_shares_at_every_zoom(browser: Browser, file: Path, run: Run) -> None:
    """Phases, compute with overlapping kernels, and communication: within a pixel of the row's height."""
    drawn = chart(run)
    with open_page(browser, file, scale=2) as (page, errors):
        only_raster(page)
        for low, high, least in ((0, 1, 0.7), (0.3, 0.8, 0.7), (0.5, 0.52, 0.1)):
            show(page, low * drawn.end_ns, high * drawn.end_ns)
            for role in (Role.PHASES, Role.COMPUTE, Role.EXPOSURE):
                for track in (0, 2):
                    compared = check(page, drawn, role, track)
                    assert compared > least, f"{role.value}: only {compared:.0%} of the columns could be compared"
        # Only the test reads pixels back.
        assert [] == [error for error in errors if "willReadFrequently" not in error]


@pytest.mark.slow
@browser_test
def test_columns_are_shares_where_rows_are_scrolled_and_collapsed(browser: Browser, tmp_path: Path) -> None:
    """Forty GPUs: collapsed at first, some expanded, scrolled to the middle and to the end."""
    run = training_run(20_000, ranks=40)
    drawn = chart(run)
    with open_page(browser, page_of(run, tmp_path)) as (page, errors):
        only_raster(page)
        for track in (0, 17, 39):
            page.evaluate("track => dptrace.stage.reveal(track)", track)
            settle(page)
            check(page, drawn, Role.PHASES, track)
        for track in (20, 21, 38):
            page.evaluate("track => dptrace.stage.reveal(track, 'compute')", track)
            settle(page)
            for role in (Role.PHASES, Role.COMPUTE, Role.EXPOSURE):
                check(page, drawn, role, track)
        assert page.evaluate("dptrace.stage.scroll") > 0
        assert page.evaluate("dptrace.main.canvas.height") < 900
        assert [] == [error for error in errors if "willReadFrequently" not in error]


@pytest.mark.slow
@browser_test
def test_a_row_that_is_cut_by_the_frame_shows_its_part(browser: Browser, tmp_path: Path) -> None:
    """The visible part has the same pixels as in the whole row."""
    run = training_run(20_000, ranks=40)
    with open_page(browser, page_of(run, tmp_path)) as (page, _):
        only_raster(page)
        page.evaluate("() => { dptrace.stage.collapseAll(false); dptrace.stage.scrollTo(2000); }")
        settle(page)
        shots = page.evaluate(
            """() => {
                const { stage, main, picture } = dptrace, context = main.canvas.getContext("2d");
                const row = stage.visible.find(({ role, y }) => role === "phases" && y > 40);
                const read = (y, h) => {
                    picture.draw(true);
                    return [...new Uint32Array(context.getImageData(0, y, main.canvas.width, h).data.buffer)];
                };
                const whole = read(row.y, row.h), width = main.canvas.width;
                stage.scrollBy(row.y + 5);
                const top = read(0, row.h - 5);
                stage.scrollBy(-stage.frame);
                const bottom = read(stage.frame - 5 , 5);
                return [whole.slice(5 * width), top, whole.slice(0, 5 * width), bottom];
            }"""
        )
        # The hatch of exposed communication is fixed to the screen.
        dark, plain_color = colors(Part.EXPOSED_COMM)[::-1]
        plain = [[plain_color if color == dark else color for color in shot] for shot in shots]

        assert plain[0] == plain[1]
        assert plain[2] == plain[3]


@pytest.mark.slow
@browser_test
def test_more_than_four_seconds_and_more_names_than_fit_16_bits(browser: Browser, tmp_path: Path) -> None:
    """Gaps and durations beyond 32 bits of ns are exact, and the tooltip shows the last of 70,000 names."""
    second = 1_000_000_000
    build = TimelineBuilder(0, bounds=(0, 30 * second))
    for i in range(70_000):
        build.compute(100 * i, 100 * i + 90, name=f"kernel_{i}")
    build.compute(10 * second, 17 * second, Phase.BACKWARD, "long_kernel")
    build.compute(17 * second + 5, 18 * second, Phase.BACKWARD, "last_kernel")
    run = Run("long", (build.build(),))
    with open_page(browser, page_of(run, tmp_path)) as (page, errors):
        settle(page)
        assert expected_figures(run) == shown_figures(page)
        assert 0 == page.evaluate("dptrace.lod.busy(dptrace.rows[1].lane, 0, 17e9, 17e9 + 5)")
        only_raster(page)
        check(page, chart(run), Role.COMPUTE, 0)
        for time, name, lasts in ((12.0, "long_kernel", "7.00 s"), (17.5, "last_kernel", "1.00 s")):
            page.mouse.move(*at(page, "compute", time * second))
            text = tip(page)
            assert name in text
            assert lasts in text
        show(page, 69_999 * 100 - 400, 69_999 * 100 + 400)
        page.mouse.move(*at(page, "compute", 69_999 * 100 + 45))
        assert "kernel_69999" in tip(page)
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_kernels_of_several_streams_at_once_count_once(browser: Browser, tmp_path: Path) -> None:
    """Three concurrent kernels fill the lane once; the figures are the split's."""
    build = TimelineBuilder(0, bounds=(0, 100_000))
    build.compute(10_000, 60_000, lane=7).compute(20_000, 50_000, lane=8).compute(30_000, 40_000, lane=9)
    build.compute(70_000, 90_000, Phase.BACKWARD, lane=7).compute(75_000, 95_000, Phase.OPTIMIZER, lane=8)
    run = Run("streams", (replace(build.build(), device_name="NVIDIA H100"),))
    with open_page(browser, page_of(run, tmp_path)) as (page, _):
        only_raster(page)
        settle(page)
        check(page, chart(run), Role.COMPUTE, 0)
        check(page, chart(run), Role.PHASES, 0)

        assert expected_figures(run) == shown_figures(page)


@pytest.mark.slow
@browser_test
def test_a_thousand_gpus_open_in_seconds(browser: Browser, tmp_path: Path) -> None:
    """Only rows in the frame are drawn and named; the heatmap leads to any GPU."""
    run = training_run(20_000, ranks=1_000)
    with open_page(browser, page_of(run, tmp_path)) as (page, errors):
        settle(page)
        # Processor time: unlike wall time, it does not grow on a busy machine.
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable")
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        assert next(one["value"] for one in metrics if one["name"] == "ProcessTime") < 5, metrics
        assert page.locator("#names .track").count() < 60
        heat = page.locator("#heat canvas")
        width, height = heat.evaluate("one => [one.clientWidth, one.clientHeight]")
        heat.click(position={"x": 0.75 * width, "y": height / 2})
        settle(page)
        shown = page.evaluate("dptrace.stage.visible.map(({ track }) => track)")

        assert 500 < min(shown) <= 750 <= max(shown)
        assert "compute" in page.evaluate("dptrace.stage.visible.map(({ role }) => role)")
        assert [] == errors

"""A page in one file of a run that is too large for one: fewer intervals, the same times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dptrace.core.intervals import covered, union
from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import Chart, Lane, Role, Track, chart
from dptrace.viewers.gantt.page import document as gantt
from dptrace.viewers.gantt.tiles.merged import merge_intervals
from tests.support.browser import browser_test, open_page
from tests.support.gantt_page import at, expected_figures, row_box, settle, shown_figures, tip
from tests.support.jobs import late_run
from tests.support.synthetic import training_run
from tests.viewers.gantt.page.test_truth import check, only_raster

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BOUNDS = np.array([21, 333, 1000], np.int64)


def one_lane(role: Role, intervals: list[tuple[int, int, int, int]]) -> Chart:
    start, length, category, group = np.array(sorted(intervals), np.int64).reshape(-1, 4).T
    none = np.zeros(0, np.int64)
    lane = Lane(0, role, start, length, category.astype(np.uint8), group, group, none)
    return Chart(0, 1000, (Track(0, 0, "GPU", ("a", "b"), BOUNDS, {}),), (), (lane,), ("kernel",) * 4, ())


def cover(lane: Lane, category: int, times: np.ndarray) -> list[int]:
    mine = lane.category == category
    ends = lane.start_ns + lane.duration_ns
    return [int(ns) for ns in covered(union(lane.start_ns[mine], ends[mine]), times)]


@pytest.mark.heavy
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(21, 950), st.integers(0, 60), st.integers(0, 2), st.integers(0, 3)), min_size=12),
    st.sampled_from([Role.COMPUTE, Role.PHASES, Role.EXPOSURE, Role.IDLE]),
    st.integers(2, 8),
)
def test_sums_between_multiples_of_the_resolution_and_bounds_do_not_change(
    intervals: list[tuple[int, int, int, int]], role: Role, share: int
) -> None:
    """For overlapping intervals of several streams, merged once or more often."""
    drawn = one_lane(role, intervals)
    fewer = merge_intervals(drawn, len(drawn) // share)
    (before,), (after,) = drawn.lanes, fewer.chart.lanes
    times = np.union1d(np.arange(0, 2000, max(fewer.resolution_ns, 1)), BOUNDS)

    for category in range(3):
        assert cover(before, category, times) == cover(after, category, times)
    assert (np.diff(after.start_ns) >= 0).all()


def test_long_intervals_stay_and_short_ones_are_merged_by_stream() -> None:
    """By hand: cells of 16 ns; the streams 1 and 2 cover 3 and 4 ns of one, 5 ns together, which lie in its middle."""
    short = [(48, 3, 0, 1), (49, 4, 0, 2)]
    drawn = one_lane(Role.COMPUTE, [*short, *((64 + 4 * i, 1, 0, 1) for i in range(8)), (100, 50, 0, 1)])
    fewer = merge_intervals(drawn, 7)
    (lane,) = fewer.chart.lanes
    found = list(zip(lane.start_ns, lane.duration_ns, lane.stream, lane.name, strict=True))

    assert 16 == fewer.resolution_ns
    assert 10 == fewer.left_out
    assert [(53, 3, 1, 4), (54, 4, 2, 4), (70, 4, 1, 4), (86, 4, 1, 4), (100, 50, 1, 1)] == found
    assert "16 ns" in fewer.chart.names[4]


def test_a_chart_that_fits_stays_as_it_is() -> None:
    """Nothing is merged, and nothing is left out."""
    drawn = one_lane(Role.COMPUTE, [(1, 2, 0, 0)])

    assert merge_intervals(drawn, 1).chart is drawn
    assert (0, 0) == (merge_intervals(drawn, 1).resolution_ns, merge_intervals(drawn, 1).left_out)


@pytest.mark.slow
@browser_test
def test_a_file_of_too_many_ranks_holds_the_notable_ones(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, merges nothing, and opens with the slow rank expanded on top, its node's name on the others."""
    run = late_run(*(70 if rank == 32 else 30 for rank in range(64)))
    timelines = tuple(replace(one, path=f"node-{one.rank // 8}_{one.rank}.json") for one in run.timelines)
    monkeypatch.setattr(gantt, "MAX_INTERVALS", 350)
    path = tmp_path / "page.html"
    path.write_text(gantt.document(Run("runs/many", timelines, world_size=64)), encoding="utf-8")

    with open_page(browser, path) as (page, errors):
        tracks = page.evaluate("dptrace.stage.order.map((track) => dptrace.scene.tracks[track].label.split(' · ')[0])")
        assert "32 of 64 ranks" in str(page.locator("#notes").text_content())
        assert 0 == page.evaluate("dptrace.scene.merged")
        assert "rank 32" == tracks[0]
        assert 32 == len(tracks)
        assert page.evaluate("dptrace.stage.boxOf(dptrace.stage.order[0], 'compute')")
        headings = page.evaluate("dptrace.stage.allHeadings.map(({ label }) => label)")
        assert ["notable ranks", "node-0"] == headings[:2]
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_a_large_run_in_one_file_is_exact_to_its_resolution(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures are the split's, columns the shares; the page says what it leaves out, and no tooltip names a kernel."""
    run = training_run(60_000, ranks=1)
    drawn = chart(run)
    monkeypatch.setattr(gantt, "MAX_INTERVALS", 90_000)
    path = tmp_path / "page.html"
    path.write_text(gantt.document(run), encoding="utf-8")
    with open_page(browser, path, (800, 900)) as (page, errors):
        settle(page)
        assert expected_figures(run) == shown_figures(page)
        resolution = page.evaluate("dptrace.scene.merged")
        assert page.evaluate("dptrace.columns.start.length") <= 30_000
        assert "--serve" in str(page.locator("#notes").text_content())
        page.mouse.move(*at(page, "compute", 0.4 * drawn.end_ns))
        assert "several" in tip(page)
        assert "kernel" not in page.locator("#view").inner_text()
        page.mouse.move(5, 5)
        only_raster(page)
        pixel = (drawn.end_ns / 250 * 2 + drawn.end_ns) / page.evaluate("dptrace.main.canvas.width")
        assert 8 * resolution < pixel
        for role in (Role.PHASES, Role.COMPUTE, Role.EXPOSURE):
            height = row_box(page, role.value)["height"]
            check(page, drawn, role, 0, most=1 + height * resolution / pixel * 2 / 3)
        assert [] == [error for error in errors if "willReadFrequently" not in error]

"""The data of the memory lanes of a Gantt page, and the lanes in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import dptrace
from dptrace.core.intervals import Int64
from dptrace.run.memory import device_reports
from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import chart
from dptrace.viewers.gantt.column_packing import unpack
from dptrace.viewers.gantt.memory import lane_data
from dptrace.viewers.gantt.memory.lane_data import memory_lanes, with_memory
from dptrace.viewers.gantt.page import document as gantt
from tests.support.browser import browser_test, chromium, open_page
from tests.support.gantt_page import settle
from tests.support.memory_files import GOLDEN, memory_run, training_file
from tests.support.paths import TRACES

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def lanes(run: Run) -> dict[str, dict[str, Any]]:
    return memory_lanes(run, chart(run))


def unfolded(column: dict[str, Any]) -> Int64:
    folded = unpack(column)
    levels: Int64 = np.cumsum(np.where(folded % 2, -(folded + 1) // 2, folded // 2))
    return levels


def test_a_lane_has_every_event_of_its_device(tmp_path: Path) -> None:
    """Times from the chart's origin, and the file's own totals; first the level that the chart begins with."""
    run = dptrace.open(memory_run(tmp_path))
    found = lanes(run)
    lane = found["1"]

    assert ["0", "1"] == list(found)
    assert [0, 13_000, 14_000, 16_000, 40_000] == np.cumsum(unpack(lane["delta"])).tolist()[:5]
    assert [1000, 1040, 1048, 1040, 1140] == unfolded(lane["bytes"]).tolist()[:5]
    assert {4096} == set(unfolded(lane["reserved"]).tolist())
    assert (0, 4096, [113_000 + 27_000, 1340], [82_000], True, False) == tuple(
        lane[key] for key in ("least", "most", "peak", "calls", "exact", "fromStart")
    )


def test_a_selected_step_has_its_own_peak(tmp_path: Path) -> None:
    """The lane begins with the level that the step finds."""
    lane = lanes(dptrace.open(memory_run(tmp_path)).select(ranks=[0], steps=(0, 0)))["0"]

    assert 1300 == lane["peak"][1] == int(unfolded(lane["bytes"]).max())


def test_a_long_recording_is_reduced_without_losing_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer points than events, each with the highest level of its stretch."""
    monkeypatch.setattr(lane_data, "MOST_POINTS", 50)
    run = dptrace.open(GOLDEN)
    [lane], [report] = lanes(run).values(), device_reports(run)

    assert (50, False, True) == (len(unpack(lane["delta"])), lane["exact"], lane["fromStart"])
    assert report.peak.bytes == int(unfolded(lane["bytes"]).max()) == lane["peak"][1]


def test_a_page_without_memory_events_has_nothing_of_them() -> None:
    """Its scene is as before."""
    run = dptrace.open(TRACES / "single_cpu")

    assert {} == with_memory(run, chart(run))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@browser_test
def test_the_lane_is_drawn_folds_and_shows_its_levels(browser: Browser, tmp_path: Path) -> None:
    """The peak fills a row up to its mark, a click on the row's name makes it taller, the tooltip has the bytes."""
    file = training_file().memory(99, -1, 99, allocated=1299, reserved=4096, device=0)
    run = dptrace.open(file.write(tmp_path / "a.json"))
    (tmp_path / "page.html").write_text(gantt.document(run), encoding="utf-8")
    with open_page(browser, tmp_path / "page.html") as (page, errors):
        settle(page)
        row = "dptrace.rows.find((row) => row.memory)"
        low = page.evaluate(f"{row}.base")
        page.get_by_role("button", name="memory 1.3 kB").click()
        settle(page)
        below = page.evaluate("dptrace.stage.blockOf.get(0).rows.map((row) => row.role)")
        at = "{ time: 41000, pixel: 100, width: 800 }"
        tip = page.evaluate(f"{row}.memory.tip({row}, {at}).map((line) => line.textContent)")
        inked = page.evaluate(
            f"""(() => {{
                const {{ y, h }} = {row}, {{ canvas }} = dptrace.main, scale = canvas.width / canvas.clientWidth;
                const x = Math.round(canvas.width * 0.75), context = canvas.getContext("2d");
                const pixels = context.getImageData(x, Math.round(y * scale), 1, Math.round(h * scale)).data;
                const opaque = pixels.filter((alpha, i) => i % 4 === 3 && alpha > 200);
                return opaque.length / (h * scale);
            }})()"""
        )

        assert page.evaluate(f"{row}.base") > 2 * low
        assert below.index("memory_use") < below.index("host")
        assert ["1.1 kB allocated", "4.1 kB reserved by the allocator"] == tip[:2]
        # At 3/4 of the time some 1,300 of 4,096 bytes are allocated.
        assert 0.2 < inked < 0.5
        assert not errors

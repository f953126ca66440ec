"""Read range, rows and figures of an open Gantt page, and compute the expected figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dptrace.analysis.cross_rank.transfers import sum_of_waits
from dptrace.analysis.per_gpu.split import FIGURES, Part
from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import WAITING
from dptrace.viewers.gantt.page import document as gantt
from tests.support.browser import rest
from tests.support.totals import totals

if TYPE_CHECKING:
    from playwright.sync_api import Page

SHARE_FIGURES = {
    Part.FORWARD: "forward_ns",
    Part.BACKWARD: "backward_ns",
    Part.OPTIMIZER: "optimizer_ns",
    Part.OTHER: "other_ns",
    Part.EXPOSED_COMM: "exposed_comm_ns",
    Part.EXPOSED_MEMORY: "exposed_memory_ns",
    Part.IDLE: "idle_ns",
}


def written(run: Run, path: Path) -> Path:
    """Write the page of a run to a file, and return the file."""
    path.write_text(gantt.document(run), encoding="utf-8")
    return path


def visible_range(page: Page) -> tuple[float, float]:
    start, end = page.evaluate("[dptrace.main.range.from, dptrace.main.range.to]")
    return start, end


def settle(page: Page) -> None:
    """Wait until the canvas shows the current range and the figures are updated."""
    rest(page)


def show(page: Page, start: float, end: float) -> None:
    page.evaluate("([from, to]) => dptrace.main.show(from, to)", [start, end])
    settle(page)


def row_box(page: Page, role: str, track: int = 0) -> dict[str, float]:
    """Return a row's rectangle on the screen."""
    box: dict[str, float] = page.evaluate(
        """([role, track]) => {
            const row = dptrace.rows.find((one) => one.role === role && one.track === track);
            const box = dptrace.main.canvas.getBoundingClientRect();
            return { x: box.left, y: box.top + row.y, width: box.width, height: row.h };
        }""",
        [role, track],
    )
    return box


def at(page: Page, role: str, time: float, track: int = 0) -> tuple[float, float]:
    """Return the point on the screen that shows a time in a row."""
    start, end = visible_range(page)
    box = row_box(page, role, track)
    return box["x"] + (time - start) / (end - start) * box["width"], box["y"] + box["height"] / 2


def spot(page: Page, role: str, track: int = 0) -> tuple[float, float, int]:
    """Return a point on the screen where a row shows an interval that nothing covers, and the interval's index.

    Raises:
        AssertionError: there is no such point.
    """
    found = page.evaluate(_SPOT, [role, track])
    assert found, f"no interval of the row {role} is visible"
    x, y, index = found
    return x, y, index


_SPOT = """([role, track]) => {
    const { main, rows, lod: all } = dptrace, { from, to } = main.range;
    const row = rows.find((one) => one.role === role && one.track === track);
    const box = main.canvas.getBoundingClientRect(), lod = row.lod ?? all, pixel = (to - from) / box.width;
    const y = box.top + row.y + row.h / 2;
    for (let i = lod.offsets[row.found]; i < lod.offsets[row.found + 1]; i++) {
        const time = lod.start[i] + lod.duration[i] / 2, x = box.left + (time - from) / pixel;
        if (x <= box.left || x >= box.right || lod.near(row.found, time, pixel) !== i) continue;
        if (document.elementFromPoint(x, y)?.closest("#figure")) return [x, y, row.source ? row.source[i] : i];
    }
    return null;
}"""


def tip(page: Page) -> str:
    """Return the tooltip's text, or an empty text if no tooltip is shown."""
    settle(page)
    shown = page.locator(".tip")
    return shown.inner_text() if shown.is_visible() else ""


def shown_figures(page: Page) -> dict[str, float]:
    """Read the summary in ns: parts by the names of their figures, and the indicators."""
    parts = page.eval_on_selector_all(".segment", "all => all.map((one) => [one.dataset.category, one.dataset.ns])")
    keys = page.eval_on_selector_all(
        ".indicator[data-ns]", "all => all.map((one) => [one.dataset.key, one.dataset.ns])"
    )
    names = {int(part): name for part, name in SHARE_FIGURES.items()} | {WAITING: "exposed_wait_ns"}
    figures = {names[int(part)]: float(ns) for part, ns in parts}
    return figures | {key: float(ns) for key, ns in keys}


def expected_figures(run: Run) -> dict[str, float]:
    """Sum the split over the ranks, with the keys of shown_figures; waiting is apart from exposed communication."""
    sums = [*map(totals, run.splits)]
    total = {figure: sum(rank[figure] for rank in sums) for figure in FIGURES}
    wait = sum_of_waits(run.cross_rank.exposed_waits)["exposed_wait_ns"] or 0
    total["exposed_comm_ns"] -= wait
    figures = {figure: total[figure] for figure in SHARE_FIGURES.values() if total[figure] >= 0.0005 * total["wall_ns"]}
    walls = np.concatenate([split.figures["wall_ns"] for split in run.splits])
    if wait:
        figures |= {"exposed_wait_ns": wait, "waiting": wait}
    return figures | {
        "step": float(np.mean(walls)),
        "exposed": total["exposed_comm_ns"],
        "overlapped": total["overlapped_comm_ns"],
        "idle": total["idle_ns"],
    }

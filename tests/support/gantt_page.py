"""Read range, rows and figures of an open Gantt page, and compute the expected figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dptrace.analysis.per_gpu.split import FIGURES, Part
from dptrace.run.run import Run

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["SHARE_FIGURES", "expected_figures", "row_box", "settle", "show", "shown_figures", "visible_range"]

SHARE_FIGURES = {
    Part.FORWARD: "forward_ns",
    Part.BACKWARD: "backward_ns",
    Part.OPTIMIZER: "optimizer_ns",
    Part.OTHER: "other_ns",
    Part.EXPOSED_COMM: "exposed_comm_ns",
    Part.EXPOSED_MEMORY: "exposed_memory_ns",
    Part.IDLE: "idle_ns",
}


def visible_range(page: Page) -> tuple[float, float]:
    start, end = page.evaluate("[dptrace.main.range.from, dptrace.main.range.to]")
    return start, end


def settle(page: Page) -> None:
    """Wait until the canvas shows the current range and the figures are updated."""
    page.wait_for_timeout(40)
    # Not wait_for_function, which uses eval; the page's security policy forbids that.
    for _ in range(100):
        if page.evaluate("dptrace.exact()"):
            break
        page.wait_for_timeout(20)
    else:
        raise AssertionError("the canvas does not show the frame's range")
    page.wait_for_timeout(100)


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


def shown_figures(page: Page) -> dict[str, float]:
    """Read the summary in ns: parts by the names of their figures, and the indicators."""
    parts = page.eval_on_selector_all(".segment", "all => all.map((one) => [one.dataset.category, one.dataset.ns])")
    keys = page.eval_on_selector_all(".indicator", "all => all.map((one) => [one.dataset.key, one.dataset.ns])")
    figures = {SHARE_FIGURES[Part(int(part))]: float(ns) for part, ns in parts}
    return figures | {key: float(ns) for key, ns in keys}


def expected_figures(run: Run) -> dict[str, float]:
    """Sum the split over the ranks, with the keys of shown_figures."""
    totals = [split.total() for split in run.splits]
    total = {figure: sum(rank[figure] for rank in totals) for figure in FIGURES}
    figures = {figure: total[figure] for figure in SHARE_FIGURES.values() if total[figure] >= 0.0005 * total["wall_ns"]}
    walls = np.concatenate([split.figures["wall_ns"] for split in run.splits])
    return figures | {
        "step": float(np.median(walls)),
        "exposed": total["exposed_comm_ns"],
        "overlapped": total["overlapped_comm_ns"],
        "idle": total["idle_ns"],
    }

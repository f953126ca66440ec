"""The pages in Firefox: they open from disk, draw, and zoom without errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dptrace.analysis.per_gpu.split import Part
from dptrace.viewers.base.theme import PART_COLORS
from dptrace.viewers.gantt.page import document as gantt
from dptrace.viewers.gantt.page import pair as pair_page
from tests.support.firefox import FirefoxPage, firefox, firefox_test
from tests.support.jobs import job


@pytest.fixture(scope="module")
def page() -> Iterator[FirefoxPage]:
    with firefox() as started:
        yield started


def written(folder: Path, text: str) -> Path:
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return path


def visible(page: FirefoxPage) -> tuple[float, float]:
    page.wait("dptrace.exact()")
    start, end = page.evaluate("[dptrace.main.range.from, dptrace.main.range.to]")
    return start, end


def middle(page: FirefoxPage) -> tuple[float, float]:
    box = page.evaluate(
        "(({ x, y, width, height }) => [x + width / 2, y + height / 2])(dptrace.main.canvas.getBoundingClientRect())"
    )
    return box[0], box[1]


@pytest.mark.slow
@firefox_test
def test_the_page_works_in_firefox(page: FirefoxPage, tmp_path: Path) -> None:
    """It opens from disk, the wheel zooms, F shows the whole run, without errors or requests."""
    page.open(written(tmp_path, gantt.document(job())))
    whole = visible(page)
    page.wheel(*middle(page), ticks=12)
    page.wait("dptrace.main.range.to - dptrace.main.range.from < " + str((whole[1] - whole[0]) / 4))
    near = visible(page)
    page.press("f")
    page.wait(f"dptrace.main.range.to === {whole[1]}")

    assert whole == visible(page)
    assert whole[0] <= near[0] < near[1] <= whole[1]
    assert [] == page.errors


@pytest.mark.slow
@firefox_test
def test_kernels_are_on_the_canvas(page: FirefoxPage, tmp_path: Path) -> None:
    """The raster has painted forward's and backward's colours, and the pointer finds a kernel."""
    page.open(written(tmp_path, gantt.document(job())))
    wanted = [int(PART_COLORS[part][1:], 16) for part in (Part.FORWARD, Part.BACKWARD)]
    colors = page.evaluate(
        "(() => { const { canvas } = dptrace.main; const { data } = canvas.getContext('2d')"
        ".getImageData(0, 0, canvas.width, canvas.height); const seen = new Set();"
        " for (let i = 0; i < data.length; i += 4) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);"
        f" return {wanted}.map((color) => seen.has(color)); }})()"
    )
    x, y = page.evaluate(
        "(() => { const box = dptrace.main.canvas.getBoundingClientRect();"
        " const row = dptrace.rows.find((one) => one.role === 'compute');"
        " return [box.x + 60, box.y + row.y + row.h / 2]; })()"
    )
    page.move(x, y)
    page.wait("document.querySelector('.tip').textContent.includes('gemm')")

    assert [True, True] == colors
    assert [] == page.errors


@pytest.mark.slow
@firefox_test
def test_two_runs_work_in_firefox(page: FirefoxPage, tmp_path: Path) -> None:
    """The page of two runs draws, and its keys go from step to step of both."""
    drawn = pair_page.document(job(path="runs/a"), job(seed=1, factors={"exposed": 0.3}, path="runs/b"))
    page.open(written(tmp_path, drawn))
    page.press("]")
    slots = page.evaluate("dptrace.scene.slots")
    page.wait(f"dptrace.main.range.to < {slots[2]}")
    start, end = visible(page)

    assert start <= slots[0]
    assert slots[1] <= end < slots[2]
    assert [] == page.errors

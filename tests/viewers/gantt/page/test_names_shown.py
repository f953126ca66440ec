"""Names on the Gantt page: of collectives, of waits and the rank that they are for, of ranks in their mesh."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dptrace.run.run import Run
from dptrace.timeline.model import Collective
from dptrace.viewers.gantt.page import document as gantt
from tests.support.browser import browser_test, chromium, open_page
from tests.support.builders import TimelineBuilder
from tests.support.gantt_page import at, settle, tip
from tests.support.jobs import MS, late_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def written(run: Run, path: Path) -> Path:
    path.write_text(gantt.document(run), encoding="utf-8")
    return path


def drawn_texts(page: Page) -> list[str]:
    """Return the texts on the chart's canvas."""
    texts: list[str] = page.evaluate(
        """() => {
            const { prototype } = CanvasRenderingContext2D, { fillText } = prototype, texts = [];
            prototype.fillText = (text) => texts.push(text);
            dptrace.picture.draw(true);
            prototype.fillText = fillText;
            return texts;
        }"""
    )
    return texts


@browser_test
def test_a_wait_names_the_rank_and_its_time(browser: Browser, tmp_path: Path) -> None:
    """In both rows, with the pointer, and in the times of a measured range; the transfer has the collective's name."""
    with open_page(browser, written(late_run(20, 70), tmp_path / "late.html")) as (page, errors):
        settle(page)
        texts = drawn_texts(page)
        assert "Waiting for rank 1 · 50.0 ms" in texts
        assert "waiting for rank 1 · 50.0 ms" in texts
        assert 2 == sum(text.startswith("all_reduce · 4.1 kB") for text in texts)
        page.mouse.move(*at(page, "exposure", 40 * MS))
        assert "waiting for rank 1: 50.0 ms" in tip(page)
        waits = page.evaluate("dptrace.interactions.kinds.figures(0, 1e9)")
        assert [("all_reduce", 70 * MS, 50 * MS)] == [(one["kind"], one["exposed"], one["waiting"]) for one in waits]
        assert [] == errors


@browser_test
def test_where_a_rank_is_missing_the_page_says_so(browser: Browser, tmp_path: Path) -> None:
    """How much of the exposed time is waiting is unknown: no figure, no grey, but the reason."""
    with open_page(browser, written(late_run(30, size=2), tmp_path / "lacking.html")) as (page, errors):
        settle(page)
        indicator = page.locator(".indicator[data-key=waiting]")
        assert "?" in indicator.inner_text()
        assert "1 of 2 ranks" in (indicator.get_attribute("title") or "")
        page.mouse.move(*at(page, "exposure", 40 * MS))
        assert "1 of 2 ranks" in tip(page)
        assert not any("waiting" in text.lower() for text in drawn_texts(page))
        assert [] == errors


@browser_test
def test_collectives_and_ranks_have_the_names_of_their_job(browser: Browser, tmp_path: Path) -> None:
    """A layer, and the rank's place in the mesh; the search finds the name, and it is text, whatever it holds."""
    builds = []
    for rank in range(2):
        group = {"group": "1", "group_size": 2, "ranks": (0, 1), "description": "mesh_tp"}
        comm = Collective("all_gather", 2_000_000, "float", label="FSDP::all_gather (<b>layers.3)", **group)  # type: ignore[arg-type]
        builds.append(TimelineBuilder(rank, bounds=(0, 100 * MS)).compute(0, 9 * MS).collective(10 * MS, 90 * MS, comm))
    run = Run("mesh", tuple(build.build() for build in builds), world_size=2)
    with open_page(browser, written(run, tmp_path / "mesh.html")) as (page, errors):
        settle(page)
        assert "AG <b>layers.3 · 2.0 MB" in drawn_texts(page)
        assert ["tp 0", "tp 1"] == page.locator("#names .place").all_inner_texts()
        page.mouse.move(*at(page, "exposure", 40 * MS))
        assert {"AG <b>layers.3", "all_gather"} <= {
            part for line in tip(page).splitlines() for part in line.split(" · ")
        }
        page.keyboard.press("/")
        page.keyboard.type("AG <b>layers")
        settle(page)
        assert "2 found" == page.locator("#found").inner_text()
        assert [] == errors

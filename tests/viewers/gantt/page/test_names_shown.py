"""Names on the Gantt page: of kernels, collectives, waits and the rank that they are for, and ranks in their mesh."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

import dptrace
from dptrace import Run
from dptrace.timeline.model import Collective
from dptrace.viewers.gantt.chart import chart
from dptrace.viewers.gantt.page.data import collective_entries, scene
from dptrace.viewers.gantt.tiles.service import TileService
from dptrace.viewers.gantt.tiles.store import build
from dptrace.viewers.terminal.replay import print_critical_path
from tests.support.browser import browser_test, open_page
from tests.support.builders import TimelineBuilder
from tests.support.gantt_page import at, settle, tip, written
from tests.support.jobs import MS, late_run
from tests.support.kineto_files import KinetoFile

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


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


@pytest.fixture(scope="module")
def fills(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run whose kernels have long names, two of them alike."""
    file = KinetoFile().label("ProfilerStep#1", 0, 1000).event("cuda_runtime", "cudaDeviceSynchronize", 15, 981)
    for number in range(4):
        at, width = 20 + 240 * number, 4 if number % 2 else 8
        name = f"void at::native::vectorized_elementwise_kernel<{width}, at::native::FillFunctor<float>, A>(int, B)"
        file.kernel(name, at, at + 240, 5 + 2 * number)
    return dptrace.open(file.write(tmp_path_factory.mktemp("fills") / "rank0.json"), cache=False)


def test_a_kernel_has_one_name_everywhere(fills: Run) -> None:
    """That of the table of kernels: on the page, on a served one, which finds it, and on the critical path."""
    names = fills.kernel_summary().set_index("name")["kernel"].to_dict()
    drawn = chart(fills)
    page = scene(drawn)
    service = TileService(build(drawn, collective_entries(drawn)))
    text = StringIO()
    print_critical_path(fills.critical_path(), Console(file=text, width=200))

    assert {f"vectorized_elementwise_kernel(FillFunctor<float>) [{n}]" for n in (4, 8)} == set(names.values())
    assert names == {page["names"][number]: short for number, short in page["shorts"].items()}
    assert [] == [name for name in names.values() if name not in text.getvalue()], text.getvalue()
    for name in names.values():
        asked = {"text": name, "start": 0, "end": drawn.end_ns, "width": 9, "lanes": []}
        assert 2 == json.loads(service.answer("find", json.dumps(asked).encode())[1])["count"]


@pytest.mark.slow
@browser_test
def test_a_kernel_is_labeled_with_its_short_name(browser: Browser, fills: Run, tmp_path: Path) -> None:
    """Or with what is special in it where there is little room; the tooltip has the whole name, too."""
    with open_page(browser, written(fills, tmp_path / "fills.html")) as (page, errors):
        settle(page)
        assert any("FillFunctor<float>" in text for text in drawn_texts(page))
        page.mouse.move(*at(page, "compute", 100_000))
        assert {"vectorized_elementwise_kernel(FillFunctor<float>) [8]"} <= set(tip(page).splitlines())
        assert "void at::native::vectorized_elementwise_kernel<8," in tip(page)
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_a_wait_names_the_rank_and_its_time(browser: Browser, tmp_path: Path) -> None:
    """In both rows, with the pointer, and in the times of a measured range; the transfer has the collective's name, and
    the rank that held the others up says so."""
    with open_page(browser, written(late_run(20, 70), tmp_path / "late.html")) as (page, errors):
        settle(page)
        texts = drawn_texts(page)
        assert "Waiting for rank 1 · 50.0 ms" in texts
        assert "waiting for rank 1 · 50.0 ms" in texts
        assert 2 == sum(text.startswith("all_reduce · 4.1 kB") for text in texts)
        page.mouse.move(*at(page, "exposure", 40 * MS))
        assert "waiting for rank 1: 50.0 ms" in tip(page)
        assert "held others up" == page.locator("#names .track[data-track='1'] ~ .place").inner_text()
        page.evaluate("dptrace.interactions.range.show({ tab: 'collectives' })")
        settle(page)
        waits = page.locator("#card tbody tr").first
        assert ["all_reduce", "70.0 ms", "50.0 ms", "0 ns"] == waits.locator("th, td").all_inner_texts()
        assert [] == errors


@pytest.mark.slow
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


@pytest.mark.slow
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

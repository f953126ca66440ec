"""The orders of the GPUs on the Gantt page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dptrace
from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import Chart, chart
from dptrace.viewers.gantt.page import document as gantt
from dptrace.viewers.gantt.row_order import few_ranks, row_orders
from tests.support.browser import browser_test, chromium, open_page, rest, until
from tests.support.gantt_page import settle
from tests.support.real_traces import needs_real_traces, real
from tests.support.synthetic import training_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = "[...document.querySelectorAll('#names .track')].map((one) => one.textContent)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


def charted(run: Run) -> tuple[Run, Chart]:
    return run, chart(run)


def orders_of(run: Run) -> dict[str, list[int]]:
    return {one["label"]: one["tracks"] for one in row_orders(run, chart(run))}


@needs_real_traces
def test_the_culprit_comes_first() -> None:
    """Rank 2 holds the others up; those who wait come before it where waiting is what the order is about."""
    orders = orders_of(dptrace.open(real("straggler_v100_4ranks")))

    assert [0, 1, 2, 3] == orders["by rank"]
    assert 2 == orders["notable ranks first"][0]
    assert 2 == orders["waiting for other ranks, most first"][-1]
    assert all([0, 1, 2, 3] == sorted(tracks) for tracks in orders.values())


def test_ranks_are_ordered_by_their_node() -> None:
    """Where run.json says on which one they were, and they were on several."""
    ranks = [{"rank": rank, "node": rank % 2} for rank in range(4)]
    run = training_run(100, ranks=4)
    several = Run(run.path, run.timelines, metadata={"ranks": ranks}, world_size=4)
    one = Run(run.path, run.timelines, metadata={"ranks": [entry | {"node": 0} for entry in ranks]}, world_size=4)

    assert [0, 2, 1, 3] == orders_of(several)["by node"]
    assert "by node" not in orders_of(one)


def test_gpus_are_grouped_by_their_place() -> None:
    """Each GPU has the name of its group; one without a place has a group of its own; by rank there are no groups."""
    ranks = [{"rank": rank, "node": rank // 2} for rank in range(3)]
    run = training_run(100, ranks=4)
    orders = row_orders(*charted(Run(run.path, run.timelines, metadata={"ranks": ranks}, world_size=4)))
    groups = {one["label"]: one.get("groups") for one in orders}

    assert ["node 0", "node 0", "node 1", "no node known"] == groups["by node"]
    assert groups["by rank"] is None


@needs_real_traces
def test_the_few_to_look_at_are_named_with_their_reasons() -> None:
    """The straggler of four is listed, if there are more ranks than it is about."""
    run = training_run(600, ranks=12)
    few = few_ranks(*charted(run))

    assert few is not None
    assert "typical" in few["why"]
    assert "slowest" in few["label"]
    assert sorted(few["tracks"]) == few["tracks"]
    assert 11 in few["tracks"]
    assert few_ranks(*charted(dptrace.open(real("straggler_v100_4ranks")))) is None


def test_few_ranks_have_no_orders() -> None:
    """Two are compared at a glance."""
    run = training_run(100, ranks=2)

    assert [] == row_orders(run, chart(run))


@browser_test
@needs_real_traces
def test_the_rows_follow_the_chosen_order(browser: Browser, tmp_path: Path) -> None:
    """Names, rows and the arrow keys; the strip goes on showing the steps of the same rank."""
    run, path = dptrace.open(real("straggler_v100_4ranks")), tmp_path / "run.html"
    path.write_text(gantt.document(run), encoding="utf-8")
    with open_page(browser, path) as (page, errors):
        settle(page)
        steps = page.locator("#names .strip").first.inner_text()
        page.get_by_role("combobox", name="Order of the ranks").select_option("notable ranks first")
        settle(page)
        until(page, f"{NAMES}[0].split(' · ')[0]", "rank 2")
        tops = page.evaluate("dptrace.rows.filter(({ role }) => role === 'phases').map(({ track, y }) => [y, track])")

        assert 2 == min(tops)[1]
        assert steps == page.locator("#names .strip").first.inner_text()
        page.locator("#names .track").first.focus()
        page.keyboard.press("ArrowDown")
        second = page.evaluate(f"{NAMES}[1]")
        until(page, "document.activeElement.textContent", second)
        assert [] == errors


@browser_test
def test_of_many_ranks_only_those_that_an_order_is_about_stay_open(browser: Browser, tmp_path: Path) -> None:
    """The others are one row each."""
    run, path = training_run(400, ranks=10), tmp_path / "run.html"
    drawn = gantt.document(run)
    path.write_text(drawn, encoding="utf-8")
    with open_page(browser, path) as (page, _):
        settle(page)
        page.evaluate("(tracks) => (dptrace.scene.orders[0] = { tracks, open: 3 })", [*range(9, -1, -1)])
        page.evaluate("dptrace.order.choose(0)")
        settle(page)

        open_tracks = page.evaluate("[...dptrace.stage.collapsed].flatMap((folded, track) => (folded ? [] : [track]))")
        assert [7, 8, 9] == open_tracks
        assert page.evaluate(f"{NAMES}[0]").startswith("rank 9")


@browser_test
def test_groups_pins_and_the_chosen_few_are_kept_in_the_address(browser: Browser, tmp_path: Path) -> None:
    """Chosen by mouse and keyboard; a page that is opened by that address shows the same."""
    run, path = training_run(1_200, ranks=12), tmp_path / "run.html"
    ranks = [{"rank": rank, "node": rank % 2} for rank in range(12)]
    path.write_text(gantt.document(Run(run.path, run.timelines, {"ranks": ranks}, (), 12)), encoding="utf-8")
    with open_page(browser, path) as (page, errors):
        settle(page)
        page.get_by_role("combobox", name="Order of the ranks").select_option("by node")
        assert ["node 0", "node 1"] == page.evaluate("dptrace.stage.allHeadings.map(({ label }) => label)")
        page.locator("#names .track", has_text="rank 4").press("p")
        page.locator("#names .list").hover()
        page.locator("#names [aria-label^='Pin rank 2 ']").click()
        settle(page)
        assert ["rank 4", "rank 2", "rank 0"] == [name.split(" · ")[0] for name in page.evaluate(NAMES)][:3]
        page.evaluate("dptrace.stage.scrollTo(1e6)")
        settle(page)
        assert ["rank 4", "rank 2"] == [name.split(" · ")[0] for name in page.evaluate(NAMES)][:2]
        page.get_by_role("combobox", name="Ranks that are shown").select_option(index=1)
        settle(page)
        shown = page.evaluate("dptrace.stage.order")
        assert len(shown) < 8
        rest(page, within_ms=1_000)
        address = page.evaluate("location.hash")
        assert all(part in address for part in ("order=by%20node", "few=1", "pin=4%2C2"))
        assert [] == errors
    with open_page(browser, path.as_uri() + address) as (page, errors):
        settle(page)
        assert shown == page.evaluate("dptrace.stage.order")
        assert [] == [error for error in errors if "file:" not in error]

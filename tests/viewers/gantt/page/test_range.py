"""The panel of a range: its figures are those of dptrace's analysis of the run cut to it, in one file and served."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from dptrace.analysis.cross_rank.transfers import beside_waiting, sum_of_waits
from dptrace.analysis.kernels.names import short_names
from dptrace.analysis.per_gpu.causes import IDLE_CAUSES
from dptrace.analysis.per_gpu.split import PART_LABELS
from dptrace.core.units import duration
from dptrace.run.run import Run
from dptrace.timeline.model import Kind, Timeline, Windows
from dptrace.viewers.gantt.chart import chart
from tests.support.browser import browser_test, open_page
from tests.support.gantt_page import at, settle, show, written
from tests.support.synthetic import training_run
from tests.support.totals import totals
from tests.viewers.gantt.tiles.test_served_page import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

RUN = training_run(3_000, ranks=3)
Table = dict[str, dict[str, float]]


@pytest.fixture(scope="module", params=["one file", "served"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the run's page."""
    if request.param == "served":
        with served(RUN) as url:
            yield url
    else:
        yield written(RUN, tmp_path_factory.mktemp("pages") / "page.html").as_uri()


def cut(start: int, end: int) -> Run:
    """Return the run with one window: a range, in ns since the chart's origin, as far as it is in each rank's steps."""
    origin = chart(RUN).origin_ns

    def one(timeline: Timeline) -> Timeline:
        bounds = np.clip(timeline.windows.bounds[[0, -1]], origin + start, origin + end)
        return replace(timeline, windows=Windows(("range",), bounds), step=np.minimum(timeline.step, 0))

    return Run("cut", tuple(map(one, RUN.timelines)))


def tables(page: Page, tab: str) -> list[Table]:
    """Return the tables that a tab's button copies, by row and column; times in ms."""
    page.locator("#card .tabs button", has_text=tab).click()
    settle(page)
    page.locator("#card .tabs button", has_text="Copy").click()
    page.locator("#card .tabs button", has_text="Copied").wait_for()
    _, *found = page.evaluate("navigator.clipboard.readText()").split("\n\n")
    made = []
    for text in found:
        head, *rows = (line.split("\t") for line in text.split("\n"))
        columns = [label.removesuffix(" (ms)") for label in head]
        made.append({row[0]: dict(zip(columns[1:], map(_number, row[1:]), strict=True)) for row in rows})
    return made


def _number(text: str) -> float:
    return float(text) if text.replace(".", "").replace("-", "").replace("e", "").isdigit() else np.nan


def close(ns: float | None) -> object:
    """Expect a time in ms, to the last digit that is copied; no number where it is unknown."""
    return pytest.approx(np.nan if ns is None else ns / 1e6, abs=2e-6, nan_ok=True)


def check_split(page: Page, run: Run) -> None:
    """Per rank: compute, exposed, waiting, overlapped and idle time, each part of the partition, and their total."""
    parts, ranks = tables(page, "Split")
    sums = [*map(totals, run.splits)]
    for timeline, total, wait in zip(run.timelines, sums, run.cross_rank.exposed_waits, strict=True):
        mine = ranks[timeline.label]
        compute = sum(total[name] for name in ("forward_ns", "backward_ns", "optimizer_ns", "other_ns"))
        assert close(compute) == mine["compute"]
        for column, name in (("exposed comm.", "exposed_comm_ns"), ("overlapped", "overlapped_comm_ns")):
            assert close(total[name]) == mine[column]
        assert close(total["idle_ns"]) == mine["idle"]
        assert close(wait.total()["exposed_wait_ns"]) == mine["of it waiting"]
        assert close(total["wall_ns"]) == mine["total"]
    known = [wait.total()["exposed_wait_ns"] for wait in run.cross_rank.exposed_waits]
    waits = None if None in known else sum(wait or 0 for wait in known)
    for part, label in PART_LABELS.items():
        ns: float = sum(total[f"{part.name.lower()}_ns"] for total in sums)
        ns -= (waits or 0) if label == "Exposed communication" else 0
        shown = (
            beside_waiting(sum_of_waits(run.cross_rank.exposed_waits)) if label == "Exposed communication" else label
        )
        assert close(ns) == parts.get(shown, {"time": 0.0})["time"], label
    assert close(waits) == parts.get("Waiting for other ranks", {"time": 0.0})["time"]


def check_collectives(page: Page, run: Run) -> None:
    """By kind, counted once; by collective, counted each."""
    kinds, entries = tables(page, "Collectives")
    for found in (kinds, entries):
        exposed = [row["exposed comm."] for row in found.values()]
        assert sorted(exposed, reverse=True) == exposed
    for kind in {kind for split in run.splits for kind in split.comm}:
        figures = [split.comm[kind] for split in run.splits]
        shown = kinds.get(kind, {"exposed comm.": 0, "overlapped": 0})
        assert close(sum(one.exposed_ns.sum() for one in figures)) == shown["exposed comm."]
        assert close(sum(one.overlapped_ns.sum() for one in figures)) == shown["overlapped"]
    busy = 0
    for timeline in run.timelines:
        start, stop = np.clip([timeline.start_ns, timeline.end_ns], *timeline.windows.bounds)
        busy += int((stop - start)[timeline.kind == Kind.COMMUNICATION].sum())
    assert close(busy) == sum(one["exposed comm."] + one["overlapped"] for one in entries.values())


def check_kernels(page: Page, run: Run) -> None:
    """Number and time of each kernel and copy in the range."""
    (found,) = tables(page, "Kernels")
    expected: dict[str, tuple[int, int]] = {}
    for timeline in run.timelines:
        begin, end = timeline.windows.bounds
        start, stop = timeline.start_ns, timeline.end_ns
        inside = (start < end) & (stop > begin) & (timeline.kind != Kind.COMMUNICATION)
        ns = np.minimum(stop, end) - np.maximum(start, begin)
        for number in set(timeline.name[inside].tolist()):
            mine, name = inside & (timeline.name == number), timeline.names[number]
            count, time = expected.get(name, (0, 0))
            expected[name] = count + int(mine.sum()), time + int(ns[mine].sum())
    shorts = short_names(list(expected))
    assert {shorts.get(name, name) for name in expected} | {"total"} == found.keys()
    for name, (count, time) in expected.items():
        row = found[shorts.get(name, name)]
        assert count == row["count"], name
        assert close(time) == row["time"], name


def check_idle(page: Page, run: Run) -> None:
    """Idle time by cause, and of each rank."""
    causes, ranks = tables(page, "Idle causes")
    for cause in IDLE_CAUSES:
        ns = sum(int(device.idle_causes[cause.name].sum()) for device in run.devices)
        assert close(ns) == causes.get(f"Idle: {cause.label}", {"time": 0.0})["time"], cause.label
    for timeline, split in zip(run.timelines, run.splits, strict=True):
        assert close(totals(split)["idle_ns"]) == ranks[timeline.label]["idle"]


@pytest.mark.slow
@browser_test
def test_the_panel_has_the_figures_of_the_range(browser: Browser, address: str) -> None:
    """For random ranges on the screen, what each tab copies is what dptrace says of the run cut to the range."""
    draw, end = np.random.default_rng(4), chart(RUN).end_ns
    with open_page(browser, address) as (page, errors):
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        settle(page)
        page.keyboard.press("t")
        for low, high in [(0, end), *np.sort(draw.integers(0, end, (2, 2))).tolist()]:
            show(page, low, high)
            run = cut(low, high)
            check_split(page, run)
            check_collectives(page, run)
            check_kernels(page, run)
            check_idle(page, run)
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_a_kernels_longest_call_is_three_clicks_away(browser: Browser, address: str) -> None:
    """The table sorts by its columns; a kernel's longest call opens, and its number leads to the list of its calls."""
    longest, name = max(
        (int((timeline.end_ns - timeline.start_ns)[i]), timeline.names[timeline.name[i]])
        for timeline in RUN.timelines
        for i in np.flatnonzero(timeline.kind == Kind.COMPUTE)
    )
    lengths = [
        int(ns)
        for one in RUN.timelines
        for ns, number in zip(one.end_ns - one.start_ns, one.name.tolist(), strict=True)
        if one.names[number] == name
    ]
    count = len(lengths)
    with open_page(browser, address) as (page, errors):
        page.locator("#tables").click()
        page.locator("#card .tabs button", has_text="Kernels").click()
        settle(page)
        page.locator("#card .sort", has_text="max").click()
        first = page.locator("#card tbody tr").first.locator(".link")
        assert short_names([name]).get(name, name) == first.first.text_content()
        first.last.click()
        facts = page.locator("#card .facts-table", has_text="duration")
        facts.wait_for()
        assert duration(longest) in (facts.text_content() or "")

        page.locator("#tables").click()
        show(page, 0, chart(RUN).end_ns)
        page.locator("#card tbody tr").first.locator(".link").nth(1).click()
        page.locator("#card .histogram").wait_for()
        settle(page)
        assert f"{count:,} intervals" in (page.locator("#card").text_content() or "")
        ends = page.locator("#card .ends span").all_text_contents()
        assert [duration(min(lengths)), duration(longest)] == [ends[0], ends[-1]]
        assert duration(longest) == page.locator("#card tbody td").nth(2).text_content()
        page.locator("#card input").fill("no such name")
        page.locator("#card .histogram").wait_for(state="detached")
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_no_figures_of_another_range_are_shown_as_those_of_this_one(browser: Browser) -> None:
    """Where the server of a page does not answer; they follow when it does."""
    with served(RUN) as url, open_page(browser, url) as (page, _):
        settle(page)
        page.locator("#tables").click()
        settle(page)
        assert page.locator("#card table").count()
        page.route("**/split", lambda route: route.abort())
        show(page, 0, 9_000_000)
        page.locator("#card h2", has_text="does not answer").wait_for()
        assert 0 == page.locator("#card table").count()
        page.unroute("**/split")
        show(page, 0, 8_000_000)
        page.locator("#card table").first.wait_for()


def colorful(page: Page, times: list[float]) -> list[bool]:
    """Return whether the first GPU's row of compute has a color at some times, rather than a shade of grey."""
    settle(page)
    points = [at(page, "compute", time) for time in times]
    image = np.array(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)
    return [bool(np.ptp(image[int(y), int(x)]) > 20) for x, y in points]


@pytest.mark.slow
@browser_test
def test_a_row_and_a_range_are_selected(browser: Browser, address: str) -> None:
    """A kernel's intervals keep their color and all others are grey, until it is clicked again; a range is measured."""
    timeline, origin = RUN.timelines[0], chart(RUN).origin_ns
    middles = (timeline.start_ns + timeline.end_ns) // 2
    running = (timeline.start_ns <= middles[:, None]) & (middles[:, None] < timeline.end_ns)
    alone = (running & (timeline.kind == Kind.COMPUTE)).sum(axis=1) == 1
    length = np.where(alone & (timeline.kind == Kind.COMPUTE), timeline.end_ns - timeline.start_ns, 0)
    shown = [float(middles[(length * (timeline.name == name)).argmax()] - origin) for name in (0, 1)]
    names = [timeline.names[name] for name in (0, 1)]
    rows = [f"0:{short_names(names).get(name, name)}" for name in names]
    with open_page(browser, address) as (page, errors):
        settle(page)
        colors = []
        for row in (None, *rows):
            for middle in shown:
                show(page, middle - 200_000, middle + 200_000)
                page.evaluate("(row) => dptrace.interactions.range.show({ tab: 'kernels', row })", row)
                colors += colorful(page, [middle])
                assert row == page.evaluate("dptrace.interactions.range.row")
        assert [True, True, True, False, False, True] == colors
        page.locator("#card .link[aria-pressed=true]").click()
        assert [True] == colorful(page, [middle])

        # A measured range takes the place of the view, and Escape gives it back.
        title = page.locator("#card h2")
        show(page, 0, 20_000_000)
        whole = title.inner_text()
        page.keyboard.down("Shift")
        page.mouse.move(*at(page, "compute", 5_000_000))
        page.mouse.down()
        page.mouse.move(*at(page, "compute", 9_000_000), steps=3)
        page.mouse.up()
        page.keyboard.up("Shift")
        settle(page)
        assert title.inner_text().startswith("Selected: ")
        page.keyboard.press("Escape")
        settle(page)
        assert whole == title.inner_text()
        page.keyboard.press("Escape")
        assert page.locator("#card").is_hidden()
        assert [] == errors

"""Interactions with the Gantt page, with real input: search, measure, select, link, rows on demand, light and dark."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from dptrace.core.units import sanitize
from dptrace.load.open import open_run
from dptrace.run.run import Run
from dptrace.timeline.model import Collective, Kind, Windows
from dptrace.viewers.base import theme
from tests.support.browser import PATIENCE_S, browser_test, emulate, open_page, rest, until
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.gantt_page import at, row_box, settle, shown_figures, spot, tip, visible_range, written
from tests.support.paths import ROOT
from tests.support.synthetic import training_run
from tests.viewers.gantt.tiles.test_served_page import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PAYLOAD = (
    "</script><script>PWN(1)</script><img src=x onerror=PWN(2)>\"'`${PWN(3)} "
    "$$\\href{javascript:PWN(4)}{x}$$ {{7*7}} @name{safe} \u2028 \u202e"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(Run("two", two_rank_timelines()), tmp_path_factory.mktemp("pages") / "two.html")


def picture(page: Page) -> str:
    """Return the canvas as text, for comparison."""
    drawn: str = page.evaluate("dptrace.main.canvas.toDataURL()")
    return drawn


def card(page: Page) -> str:
    return page.locator("#card").inner_text()


@pytest.mark.slow
@browser_test
def test_search_counts_marks_and_goes_from_hit_to_hit(browser: Browser, tmp_path: Path) -> None:
    """Slash, a text, Enter and Shift-Enter; the time of the hits in view on each GPU; Escape ends it."""
    run = training_run(1_200, ranks=2)
    with open_page(browser, written(run, tmp_path / "search.html")) as (page, errors):
        settle(page)
        whole = visible_range(page)
        before = picture(page)
        page.keyboard.press("/")
        page.keyboard.type("GEMM")
        settle(page)
        gemm = [(t.kind == Kind.COMPUTE) & (t.name == 1) for t in run.timelines]
        count = sum(int(mask.sum()) for mask in gemm)

        assert f"{count} found" == page.locator("#found").inner_text()
        for timeline, mask in zip(run.timelines, gemm, strict=True):
            row = next(line for line in card(page).splitlines() if line.startswith(timeline.label))
            assert str(int(mask.sum())) in row
        assert before != picture(page)

        page.keyboard.press("Enter")
        settle(page)
        assert f"1 of {count}" == page.locator("#found").inner_text()
        assert visible_range(page) != whole
        page.keyboard.press("Enter")
        page.keyboard.press("Shift+Enter")
        page.keyboard.press("Shift+Enter")
        assert f"{count} of {count}" == page.locator("#found").inner_text()
        page.keyboard.type("x")
        settle(page)
        assert "nothing found" == page.locator("#found").inner_text()
        page.keyboard.press("Escape")
        page.keyboard.press("f")
        settle(page)
        assert "" == page.locator("#found").inner_text()
        # The chart gets the panel's room back.
        until(page, "dptrace.main.canvas.toDataURL()", before)
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_a_drag_measures_exactly_and_a_click_joins_a_collective(browser: Browser, file: Path) -> None:
    """With Shift or in the mode: the range snaps to intervals and has the split's figures; the view does not move. A
    click on a collective shows a row per rank with the analysis's figures and connects the ranks; Escape closes it."""
    run = Run("two", two_rank_timelines())
    rows = run.matched_collectives()
    row = rows[(rows["rank"] == 1) & (rows["exposed_ns"] > 0)].iloc[0]
    members = rows[rows["collective"] == row["collective"]]
    origin = int(run.timelines[0].windows.bounds[0])
    with open_page(browser, file) as (page, errors):
        settle(page)
        whole = visible_range(page)
        for how in ("shift", "mode"):
            page.keyboard.down("Shift") if how == "shift" else page.keyboard.press("m")
            assert str(how == "mode").lower() == page.locator("#measure").get_attribute("aria-pressed")
            page.mouse.move(*at(page, "phases", 300))
            page.mouse.down()
            page.mouse.move(*at(page, "phases", 60_000), steps=3)
            page.mouse.move(page.evaluate("innerWidth - 1"), at(page, "phases", 0)[1], steps=3)
            page.mouse.up()
            page.keyboard.up("Shift")
            settle(page)
            span = page.evaluate("dptrace.interactions.measure.span")

            assert whole == visible_range(page)
            assert 0 <= span["from"] <= 1_000
            assert span["to"] == round(whole[1])
            for text in ("Forward", "Exposed transfer", "Idle", "total", "rank 1 · GPU 1", "all 2 GPUs"):
                assert text in card(page)
            page.locator("h1").hover()
            page.keyboard.press("Escape")
            assert page.evaluate("dptrace.interactions.measure.span") is None
            assert page.locator("#card").is_hidden()
            settle(page)

        page.keyboard.press("m")
        assert "false" == page.locator("#measure").get_attribute("aria-pressed")
        before = picture(page)
        page.mouse.click(*at(page, "exposure", (row["start_ns"] + row["end_ns"]) / 2 - origin, track=1))
        page.locator("#card").wait_for(state="visible")
        settle(page)
        shown = page.evaluate("dptrace.interactions.selection.chosen.memberDetails")

        assert members["wait_ns"].tolist() == [one["wait"] for one in shown["members"]]
        assert members["exposed_ns"].tolist() == [one["exposed"] for one in shown["members"]]
        assert row["transfer_ns"] == shown["transfer"]
        for text in ("all_reduce · 4.1 kB", "rank 0 · GPU 0", "rank 1 · GPU 1", "wait", "busbw", "overlapped"):
            assert text in card(page)
        assert before != picture(page)
        page.locator("h1").hover()
        page.keyboard.press("Escape")
        assert page.locator("#card").is_hidden()
        # The chart gets the panel's room back.
        until(page, "dptrace.main.canvas.toDataURL()", before)
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_a_wait_in_the_phases_opens_the_call_that_waits(browser: Browser, tmp_path: Path) -> None:
    """Of two calls at once, the one that waits, not the shorter one; beside the wait, the one that is there."""
    gather = Collective("all_gather", 4096, "float", "other", 2)
    ranks = [
        TimelineBuilder(rank, bounds=(0, 100_000))
        .compute(0, 10_000)
        .collective(20_000, 40_000, gather, lane=21)
        .all_reduce(start, 80_000)
        .build()
        for rank, start in enumerate((10_000, 50_000))
    ]
    with open_page(browser, written(Run("two", tuple(ranks)), tmp_path / "waits.html")) as (page, errors):
        settle(page)
        for time, kind in ((30_000, "all_reduce"), (70_000, "all_reduce"), (15_000, "all_reduce")):
            page.mouse.click(*at(page, "phases", time))
            page.locator("#card").wait_for(state="visible")
            assert kind in page.locator("#card h2").inner_text()
            page.locator("h1").hover()
            page.keyboard.press("Escape")
            settle(page)
        page.mouse.click(*at(page, "phases", 30_000, track=1))
        page.locator("#card").wait_for(state="visible")
        assert "all_gather" in page.locator("#card h2").inner_text()
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_a_click_on_a_kernel_shows_its_details(browser: Browser, tmp_path: Path) -> None:
    """Name, phase, step, start, duration and launch delay."""
    build = TimelineBuilder(0, bounds=(0, 1_000_000))
    timeline = build.compute(100_000, 350_000, name="sm80_xmma_gemm_f16_64x64").build()
    timeline.launch_ns[0] = 93_000
    with open_page(browser, written(Run("one", (timeline,)), tmp_path / "one.html")) as (page, errors):
        settle(page)
        page.mouse.click(*at(page, "compute", 200_000))
        page.locator("#card").wait_for(state="visible")

        shown = ("sm80_xmma_gemm_f16_64x64", "ProfilerStep#0", "250 µs", "7.00 µs")
        for text in (*shown, "rank 0 · GPU 0", "0.100 ms"):
            assert text in card(page), card(page)
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_links_lead_to_a_view_and_back(browser: Browser, file: Path) -> None:
    """The address sets the view on load and on change, and follows the view; invalid settings are ignored."""
    with open_page(browser, file) as (page, errors):
        settle(page)
        whole = visible_range(page)
        page.evaluate("location.hash = 't=20000,60000&find=gemm&theme=dark&rank=1'")
        settle(page)
        assert (20_000, 60_000) == visible_range(page)
        assert "dark" == page.locator("html").get_attribute("data-theme")
        assert "found" in page.locator("#found").inner_text()

        page.evaluate("location.hash = 'step=1'")
        settle(page)
        start, end = visible_range(page)
        assert start <= 100_000 < 200_000 <= end < 210_000

        page.keyboard.press("d")
        rest(page, within_ms=1_000)
        start, end = visible_range(page)
        assert f"t={round(start)},{round(end)}" in page.evaluate("location.hash")
        page.reload()
        page.locator("html[data-ready='1']").wait_for(state="attached", timeout=1000 * PATIENCE_S)
        settle(page)
        assert (round(start), round(end)) == tuple(map(round, visible_range(page)))

        page.evaluate("location.hash = ''")
        page.keyboard.press("f")
        settle(page)
        times = ("t=2,1", "t=a,b", "t=1e99,2e99", "step=nope", "rank=99", f"find={quote(PAYLOAD)}", "%", "t=,")
        panels = (
            "compute,9,0,0",
            "collectives,0,99,-1",
            "gap,0,-5",
            "host,0,9,9,9,9",
            "path,0",
            "measure,2,1",
            "toString,1",
        )
        others = (
            "open=9-",
            "off=<img>",
            "streams=99",
            "host=fold:9;open:",
            "finding=99",
            "top=0,-999999",
            "memory=0",
            "path=1",
        )
        for hostile in (*times, *(f"panel={panel}" for panel in panels), *others):
            page.evaluate("(hash) => (location.hash = hash)", hostile)
            settle(page)
            assert whole == visible_range(page), hostile
        assert [] == errors


def seen(page: Page) -> dict[str, Any]:
    """Return what a view keeps, as it is on the screen."""
    pressed = "all => all.map((one) => [one.textContent, one.getAttribute('aria-pressed') ?? one.ariaExpanded])"
    return {
        "range": tuple(map(round, visible_range(page))),
        "card": card(page) if page.locator("#card").is_visible() else "",
        "names": page.locator("#names").inner_text(),
        "pressed": page.eval_on_selector_all(".chip, .tools button, #findings button, #names .track", pressed),
        "marked": page.evaluate("dptrace.stage.marked"),
        "found": page.locator("#found").inner_text(),
    }


def same(page: Page, expected: dict[str, Any]) -> None:
    """Wait until the page shows what another one has shown; rows of a served page follow."""
    end = time.monotonic() + PATIENCE_S
    while expected != (found := seen(page)):
        assert time.monotonic() < end, (expected, found)
        settle(page)


@pytest.mark.slow
@browser_test
def test_a_click_before_the_columns_are_there_is_kept(browser: Browser, tmp_path: Path) -> None:
    """The panel opens as soon as there is something to show in it."""
    late = """globalThis.held = []; globalThis.read = Response.prototype.arrayBuffer;
    Response.prototype.arrayBuffer = async function () {
      await new Promise((go) => globalThis.held?.push(go) ?? go());
      return read.call(this);
    };"""
    path = written(training_run(3_000, ranks=1), tmp_path / "run.html")
    with open_page(browser, path, before=late, ready=False) as (page, errors):
        until(page, "document.body?.style.cursor", "progress")
        page.locator("#tables").click()
        assert page.locator("#card").is_hidden()
        page.evaluate("() => { const { held } = globalThis; globalThis.held = null; for (const go of held) go(); }")
        page.locator("#card table").first.wait_for()
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_a_view_opens_as_it_was_sent(browser: Browser) -> None:
    """Zoom, finding, hidden category, rows on demand, folded GPU; then each kind of panel, by its address."""
    run = open_run([str(ROOT / "traces" / "ddp_cpu_2ranks")])
    views: dict[str, dict[str, Any]] = {}
    with served(run) as address:
        with open_page(browser, address) as (page, _):

            def keep() -> None:
                rest(page, within_ms=1_000)
                views[page.evaluate("location.hash")] = seen(page)

            page.locator("#findings button:enabled").first.click()
            until(page, "dptrace.interactions.card.setting !== ''", True)
            page.locator(".chip", has_text="Backward").click()
            page.locator("#names .track").last.click()
            page.locator("#idle").click()
            page.mouse.move(*at(page, "phases", sum(visible_range(page)) / 2))
            for key in "rcw":
                page.keyboard.press(key)
                settle(page)
            keep()
            for panel in ("compute,0,1", "collectives,1,2", "gap,0,1", "host", "range,1000000,2000000"):
                page.evaluate(_OPEN, panel)
                until(page, "dptrace.interactions.card.setting.split(',')[0]", panel.split(",", maxsplit=1)[0])
                keep()
        assert 6 == len(views)
        sent, *others = views
        with open_page(browser, address + sent) as (page, _):
            same(page, views[sent])
            for view in others:
                page.evaluate("(view) => (location.hash = view)", view)
                same(page, views[view])
            page.evaluate("(view) => (location.hash = view)", sent)
            same(page, views[sent])


_OPEN = """async (panel) => {
    const { interactions, lod, scene, rows } = dptrace, { host, measure, range, selection } = interactions;
    const [kind, first, second] = panel.split(",").map((one, i) => (i ? Number(one) : one));
    if (kind === "range") {
        measure.show({ from: first, to: second });
        return range.show({ tab: "kernels", row: "0:total" });
    }
    if (kind === "host") {
        const { data, calls, lanes } = rows.find((one) => one.host && one.track === 0).host;
        return host.panel.choose(0, data, calls.lod.offsets[lanes[0]] + 1);
    }
    const lane = scene.lanes.findIndex(({ role, track }) => role === kind.replace("gap", "idle") && track === first);
    const [index] = await lod.hold([{ lane, position: second }]);
    await (kind === "gap" ? host.panel.chooseGap(0, lod.start[index]) : selection.choose(index, first));
}"""


@pytest.mark.slow
@browser_test
def test_back_and_undo_walk_through_views(browser: Browser, file: Path) -> None:
    """An entry for each view that has settled: a zoom by many notches and keys is one, a hidden category is none."""
    with open_page(browser, file) as (page, errors):
        rest(page, within_ms=1_000)
        views, length = [seen(page)], page.evaluate("history.length")
        page.mouse.move(*at(page, "compute", 50_000))
        for _ in range(5):
            page.mouse.wheel(0, -100)
        rest(page, within_ms=1_000)
        page.locator(".chip", has_text="Forward").first.click()
        rest(page, within_ms=1_000)
        views.append(seen(page))
        page.mouse.click(*spot(page, "compute")[:2])
        page.locator("#card").wait_for(state="visible")
        page.locator("h1").hover()
        rest(page, within_ms=1_000)
        views.append(seen(page))
        assert length + 2 == page.evaluate("history.length")
        back, forward = "history.back()", "history.forward()"
        for walk, view in ((back, 1), (back, 0), (forward, 1), (forward, 2)):
            page.evaluate(walk)
            same(page, views[view])
        for keys, view in (("z", 1), ("z", 0), ("z", 0), ("Shift+Z", 1), ("Shift+Z", 2), ("Shift+Z", 2)):
            page.keyboard.press(f"Control+{keys}")
            rest(page, within_ms=1_000)
            same(page, views[view])
        # At once, before the view has settled.
        page.keyboard.press("d")
        page.keyboard.press("Control+z")
        same(page, views[2])
        assert length + 3 == page.evaluate("history.length")
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_light_and_dark(browser: Browser, file: Path) -> None:
    """The system's theme applies until the user switches; all colors are the theme's; printing is light."""
    with open_page(browser, file) as (page, errors):
        settle(page)
        paper = "getComputedStyle(document.body).backgroundColor"
        assert "rgb(255, 255, 255)" == page.evaluate(paper)
        emulate(page, color_scheme="dark")
        settle(page)
        assert "rgb(18, 22, 28)" == page.evaluate(paper)

        def pixels(color: str) -> int:
            """Count the pixels of a color in a row of phases."""
            box = row_box(page, "phases")
            clip: Any = {"x": box["x"] + 1, "y": box["y"] + 1, "width": box["width"] - 2, "height": 2}
            image = np.array(Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB"))
            return int((image == [int(color[i : i + 2], 16) for i in (1, 3, 5)]).all(axis=2).sum())

        light, dark = theme.IDLE, theme.DARK[theme.IDLE][0]
        assert pixels(dark) > 20
        assert pixels(light) == 0
        page.locator("#theme").click()
        settle(page)
        assert pixels(light) > 20
        assert pixels(dark) == 0
        page.locator("#theme").click()
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert "light" == page.locator("html").get_attribute("data-theme")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert "dark" == page.locator("html").get_attribute("data-theme")
        emulate(page, media="print")
        assert page.locator(".tools").is_hidden()
        assert page.locator("#summary").is_visible()
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_rows_on_demand_and_help(browser: Browser, file: Path) -> None:
    """Idle causes, streams and help; the figures do not change."""
    with open_page(browser, file) as (page, errors):
        settle(page)
        figures = shown_figures(page)
        page.mouse.move(*at(page, "phases", 95_000))
        assert "Here: " in tip(page)

        page.keyboard.press("i")
        settle(page)
        page.mouse.move(*at(page, "idle", 95_000, track=1))
        assert tip(page).startswith("Idle: ")
        assert page.locator(".chip.cause").first.is_visible()

        page.mouse.move(*at(page, "compute", 20_000, track=1))
        page.keyboard.press("r")
        settle(page)
        names = page.locator("#names").inner_text()
        assert "stream 7" in names
        assert "stream 20" in names
        page.mouse.move(*at(page, "stream", 20_000, track=1))
        assert "gemm" in tip(page)
        assert figures == shown_figures(page)
        page.keyboard.press("r")
        page.keyboard.press("i")
        settle(page)
        assert "stream" not in page.locator("#names").inner_text()

        page.keyboard.press("?")
        assert page.get_by_role("dialog").is_visible()
        page.keyboard.press("Escape")
        assert page.get_by_role("dialog").is_hidden()
        assert [] == errors


def hostile_run() -> Run:
    """Return a run in which every recorded name is a payload."""
    names = tuple(PAYLOAD + name for name in ("gemm", "other", "ncclDevKernel", "Memcpy"))
    plain = training_run(400, ranks=2, names=names)
    timelines = tuple(
        replace(
            one,
            device_name=PAYLOAD,
            windows=Windows(tuple(f"{PAYLOAD}{k}" for k in range(len(one.windows.names))), one.windows.bounds),
            collectives=tuple(
                replace(c, kind=PAYLOAD, dtype=PAYLOAD, group=PAYLOAD, description=PAYLOAD, label=PAYLOAD, seq=k)
                for k, c in enumerate(one.collectives)
            ),
        )
        for one in plain.timelines
    )
    return Run(PAYLOAD, timelines, {"mode": PAYLOAD}, (PAYLOAD,), 2)


def close_card(page: Page, width: float) -> None:
    """Close the panel, and wait until the chart has the *width* that it had before."""
    page.keyboard.press("Escape")
    assert page.locator("#card").is_hidden()
    # The chart takes the room of the panel in a later frame.
    until(page, "dptrace.main.frame().width", width)
    settle(page)


@pytest.mark.slow
@browser_test
def test_hostile_names_stay_text_whatever_is_done(browser: Browser, tmp_path: Path) -> None:
    """Selected, searched, measured, linked and shown in rows on demand: nothing is executed or fetched."""
    path = written(hostile_run(), tmp_path / "hostile.html")
    with open_page(browser, path, before="window.fired = []; window.PWN = (how) => fired.push(how);") as (page, errors):
        settle(page)
        assert sanitize(PAYLOAD) == page.locator("h1").get_attribute("title")
        for key in ("i", "r", "]"):
            page.keyboard.press(key)
            settle(page)
        page.keyboard.press("/")
        page.keyboard.insert_text("</script><img src=x onerror=PWN(9)>")
        settle(page)
        assert "nothing found" == page.locator("#found").inner_text()
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type("<script>")
        page.keyboard.press("Enter")
        settle(page)
        assert "<script>" in card(page)
        page.keyboard.press("Escape")
        page.keyboard.press("f")
        settle(page)
        width = page.evaluate("dptrace.main.frame().width")
        page.mouse.move(*spot(page, "phases")[:2])
        assert "onerror" in tip(page)
        for role in ("compute", "exposure", "memory", "stream"):
            x, y, index = spot(page, role)
            page.mouse.move(x, y)
            assert "onerror" in tip(page), role
            page.mouse.down()
            page.mouse.up()
            page.locator("#card").wait_for(state="visible")
            assert "onerror" in card(page), role
            assert index == page.evaluate("dptrace.interactions.selection.chosen.index"), role
            close_card(page, width)
        page.mouse.move(*spot(page, "idle")[:2])
        assert tip(page).startswith("Idle: ")
        page.keyboard.down("Shift")
        box = row_box(page, "compute")
        page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 4)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 4)
        page.mouse.up()
        page.keyboard.up("Shift")
        assert page.evaluate("dptrace.interactions.measure.span") is not None
        for tab in ("Kernels", "Collectives"):
            page.locator("#card .tabs button", has_text=tab).click()
            settle(page)
            page.locator("#card .range .link").first.click()
            assert "PWN" in card(page), tab
        for key in ("step", "find", "rank", "theme", "t"):
            page.evaluate("(hash) => (location.hash = hash)", f"{key}={quote(PAYLOAD)}")
            settle(page)
        assert [] == page.evaluate("fired")
        assert 0 == page.locator("img").count()
        assert [] == errors

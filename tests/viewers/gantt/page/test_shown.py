"""Display of the Gantt page: labels, tooltips, printing, heatmap, narrow and large windows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dptrace.analysis.per_gpu.split import Part
from dptrace.run.run import Run
from dptrace.timeline.model import Phase
from dptrace.viewers.base import theme
from dptrace.viewers.gantt.page import document as gantt
from tests.support.browser import PATIENCE_S, browser_test, emulate, open_page, rest, until
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.gantt_page import row_box, settle, tip, written
from tests.support.synthetic import training_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(Run("two", two_rank_timelines()), tmp_path_factory.mktemp("pages") / "two.html")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(training_run(4_000, ranks=40), tmp_path_factory.mktemp("pages") / "many.html")


def pixel(color: str) -> str:
    """Return a color as canvases hold it."""
    return f"0xff{color[5:7]}{color[3:5]}{color[1:3]}"


@pytest.mark.slow
@browser_test
def test_a_phase_is_timed_only_where_it_fills_its_place(browser: Browser, tmp_path: Path) -> None:
    """The time next to its name is that of the block; over idle time between short kernels there is no label."""
    build = TimelineBuilder(0, bounds=(0, 10_000_000))
    build.compute(0, 4_000_000, Phase.FORWARD, "gemm")
    for i in range(40):
        build.compute(4_100_000 + 140_000 * i, 4_200_000 + 140_000 * i, Phase.BACKWARD, "gemm")
    path = written(Run("sparse", (build.build(),)), tmp_path / "sparse.html")
    texts = """([from, to]) => {
        const { main, labels } = dptrace, drawn = [], view = main.canvas.getContext("2d");
        view.fillText = (text) => drawn.push(text);
        main.show(from, to);
        labels.draw(view, { from, to, width: main.canvas.width, hidden: [] });
        return drawn.filter((text) => /Forward|Backward/.test(text));
    }"""
    with open_page(browser, path, (1280, 720)) as (page, _):
        settle(page)
        assert ["Forward 4.00 ms"] == page.evaluate(texts, [0, 10_000_000])
        assert [] == page.evaluate(texts, [4_201_000, 4_239_000])


@pytest.mark.slow
@browser_test
def test_paper_has_every_gpu_and_is_light(browser: Browser, many: Path) -> None:
    """Forty GPUs are printed below an axis in the light theme, and the page is restored afterwards."""
    with open_page(browser, many, (1280, 500)) as (page, errors):
        emulate(page, color_scheme="dark")
        settle(page)
        before = page.evaluate("[dptrace.stage.scroll, dptrace.stage.frame]")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        tracks = page.eval_on_selector_all(".sheet", "all => all.flatMap((one) => one.dataset.tracks.split(','))")
        dark = page.evaluate(
            """() => {
                const canvas = document.querySelector(".sheet canvas"), { width, height } = canvas;
                const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
                return new Uint32Array(data.buffer).filter((one) => one === DARK).length;
            }""".replace("DARK", pixel(theme.DARK[theme.IDLE][0]))
        )
        assert list(range(40)) == sorted(map(int, tracks))
        assert 1 == page.locator("#sheets thead img[src^=data]").count()
        assert 0 == dark
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        settle(page)
        assert 0 == page.locator(".sheet").count()
        assert before == page.evaluate("[dptrace.stage.scroll, dptrace.stage.frame]")
        assert "dark" == page.locator("html").get_attribute("data-theme")
        pages = page.pdf(prefer_css_page_size=True, print_background=True).count(b"/Type /Page\n")
        assert 2 <= pages <= 4
        assert [] == [error for error in errors if "willReadFrequently" not in error]


@pytest.mark.slow
@browser_test
def test_keys_and_chips_leave_the_chart_in_its_place(browser: Browser, two: Path) -> None:
    """The tooltip of a resting pointer follows the view or goes; a hidden part is dim in the bar, where it counts; the
    legend of idle causes is below the chart."""
    with open_page(browser, two) as (page, _):
        settle(page)
        box = row_box(page, "phases")
        page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + box["height"] / 2)
        assert "ProfilerStep#0" in tip(page)
        page.keyboard.press("]")
        page.keyboard.press("]")
        settle(page)
        until(page, "document.querySelector('.tip').innerText.includes('ProfilerStep#1')", True)
        page.keyboard.press("m")
        page.mouse.down()
        assert "" == tip(page)
        page.mouse.up()
        page.keyboard.press("Escape")

        page.locator(".chip", has_text="Forward").click()
        dim = "[...document.querySelectorAll('.segment.off')].map((one) => one.dataset.category)"
        assert [str(int(Part.FORWARD))] == page.evaluate(dim)
        page.keyboard.press("[")
        settle(page)
        assert [str(int(Part.FORWARD))] == page.evaluate(dim)

        before = row_box(page, "compute")
        page.keyboard.press("i")
        settle(page)
        assert page.locator(".chip.cause").first.is_visible()
        assert before == row_box(page, "compute")


@pytest.mark.slow
@browser_test
def test_a_cell_leads_to_its_gpu_in_the_middle(browser: Browser, many: Path) -> None:
    """The GPU is framed for a moment, with its own steps in the strip; the color scale and the steps are labelled, and
    a collapsed GPU says why it is notable."""
    # The test ends that moment itself, so that it is not over too early on a slow machine.
    held = "const real = setTimeout; window.later = [];"
    held += "setTimeout = (act, ms, ...rest) => (ms > 1e3 && ms < 5e3 ? later.push(act) : real(act, ms, ...rest));"
    with open_page(browser, many, before=held) as (page, errors):
        settle(page)
        assert page.locator("#heat .scale span").all_inner_texts()[0].endswith("s")
        assert "ProfilerStep#" in page.locator("#heat .sides").inner_text()
        assert "1" == page.locator("#heat .chip").nth(1).evaluate("one => getComputedStyle(one).opacity")
        page.evaluate("dptrace.stage.reveal(20)")
        assert "typical" in page.locator("#names").inner_text()
        width = page.evaluate("document.querySelector('#heat canvas').clientWidth")
        page.locator("#heat canvas").click(position={"x": 25.5 / 40 * width, "y": 4})
        settle(page)
        track, middle, frame, lead = page.evaluate(
            """() => {
                const { stage, scene } = dptrace, block = stage.blockOf.get(stage.marked);
                const { tracks, lead } = scene.strips.find(({ tracks }) => tracks.includes(stage.marked));
                return [stage.marked, block.y + block.h / 2, stage.frame, tracks.length > 1 ? lead : tracks[0]];
            }"""
        )
        assert (25, 25) == (track, lead)
        assert abs(middle - frame / 2) < 40
        page.evaluate("later.forEach((act) => act())")
        assert -1 == page.evaluate("dptrace.stage.marked")
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_rows_keep_the_name_of_their_gpu_while_it_leaves_the_frame(browser: Browser, many: Path) -> None:
    """Also below a pinned GPU, whose rows they would be taken for: the first whole row has the name."""
    named = """([pinned, scroll]) => {
        const { stage, order } = dptrace, whole = ({ y, h }) => h && y >= stage.above - 8;
        if (stage.pins.length !== pinned) order.pin(5);
        stage.scrollTo(scroll);
        const { track } = stage.blocks.find(({ held, rows }) => !held && rows.some(whole));
        const { top } = document.querySelector(`#names [data-track="${track}"]`).style;
        return [whole({ y: parseFloat(top), h: 1 }), track];
    }"""
    with open_page(browser, many, (1280, 700)) as (page, errors):
        settle(page)
        page.evaluate("dptrace.stage.collapseAll(false)")
        for pinned in (0, 1):
            found = [page.evaluate(named, [pinned, scroll]) for scroll in range(0, 250, 7)]
            assert {True} == {clear for clear, _ in found}
            assert len({track for _, track in found}) > 2
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_a_link_keeps_what_the_heatmap_shows(browser: Browser, many: Path) -> None:
    """Another measure is part of the address; without one it shows step times again."""
    pressed = "[...document.querySelectorAll('#heat .measures [aria-pressed=true]')].map((one) => one.textContent)"
    with open_page(browser, many) as (page, errors):
        settle(page)
        page.locator("#heat .measures button", has_text="exposed").click()
        until(page, "location.hash.includes('heat=exposed')", True)
        page.reload()
        until(page, "document.documentElement.dataset.ready ?? ''", "1")
        assert ["exposed share"] == page.evaluate(pressed)
        page.evaluate("location.hash = ''")
        until(page, pressed, ["step time"])
        assert [] == errors


def check_narrow(page: Page) -> None:
    """At a width of 390 pixels, most of which the chart takes, nothing runs off the page; the tools wrap."""
    settle(page)
    assert 390 == page.evaluate("Math.max(innerWidth, document.documentElement.scrollWidth)")
    assert page.evaluate("dptrace.main.frame().width") > 220
    off = "all => all.filter((one) => one.getBoundingClientRect().right > innerWidth).map((one) => one.className)"
    assert [] == page.eval_on_selector_all("header *, #summary *, #chips *, #notes, #heat canvas", off)


@pytest.mark.slow
@browser_test
def test_many_ranks_fit_a_narrow_page(browser: Browser, many: Path) -> None:
    """With their heatmap."""
    with open_page(browser, many, (390, 800)) as (page, errors):
        check_narrow(page)
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_rows_grow_with_the_window(browser: Browser, two: Path) -> None:
    """A large window also has a larger font: labels, names, legend and facts; a narrow one cuts none."""
    heights, letters = [], []
    texts = "all => all.map((one) => parseFloat(getComputedStyle(one).fontSize))"
    with open_page(browser, two, (1280, 600)) as (page, _):
        for width, height in ((1280, 600), (3840, 2160)):
            page.set_viewport_size({"width": width, "height": height})
            until(page, "[innerWidth, innerHeight]", [width, height])
            settle(page)
            heights.append(row_box(page, "compute")["height"])
            sizes = page.eval_on_selector_all(".facts, .chip:first-of-type, .indicator > *, #names .track", texts)
            letters.append([page.evaluate("dptrace.labels.pixels"), *sizes])
            assert page.evaluate("dptrace.stage.height") <= page.evaluate("Math.max(dptrace.stage.frame, innerHeight)")
        page.set_viewport_size({"width": 390, "height": 800})
        until(page, "innerWidth", 390)
        check_narrow(page)
    assert 1.5 * heights[0] <= heights[1] <= 5 * heights[0]
    assert all(1.4 * before < after for before, after in zip(*letters, strict=True))


@pytest.mark.slow
@browser_test
def test_a_long_name_does_not_fill_the_card_nor_a_card_hide_hits(browser: Browser, tmp_path: Path) -> None:
    """A name of 20,000 letters takes a few lines; slash and Enter show the hits over an open card."""
    build = TimelineBuilder(0, bounds=(0, 1_000_000)).compute(100_000, 900_000, name="k" * 20_000)
    with open_page(browser, written(Run("long", (build.build(),)), tmp_path / "long.html")) as (page, _):
        settle(page)
        box = row_box(page, "compute")
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.locator("#card").wait_for(state="visible")
        assert page.evaluate("document.querySelector('#card h2').offsetHeight") < 100
        assert 20_000 == len(page.locator("#card .full").inner_text())
        page.keyboard.press("/")
        page.keyboard.type("kk")
        page.keyboard.press("Enter")
        settle(page)
        assert "in view" in page.locator("#card").inner_text()


@pytest.mark.heavy
def test_only_what_touches_the_figures_is_loud() -> None:
    """A note is below the figures, highlighted if they leave out part of the recording."""
    for note, grave in (("Made by hand.", False), ("a.json: cut off after 3 events; the rest is lost.", True)):
        page = gantt.document(Run("noted", two_rank_timelines(), {}, (note,)))

        assert grave == ('<details id="notes" class="grave">' in page), (note, grave)
        assert page.index('id="summary"') < page.index('<details id="notes"'), (note, grave)


@pytest.mark.slow
@browser_test
@pytest.mark.parametrize("grave", [False, True])
def test_notes_are_folded_behind_their_count(browser: Browser, tmp_path: Path, grave: bool) -> None:
    """Enter and a click unfold them, and they take their room from the rows; one that says that figures lack something
    can be read before."""
    notes = ("Made by hand.", "a.json: cut off after 3 events; the rest is lost." if grave else "Drawn twice.")
    run = Run("noted", two_rank_timelines(), {}, notes)
    bottom, frame = "dptrace.main.canvas.getBoundingClientRect().bottom <= innerHeight", "dptrace.stage.frame"
    with open_page(browser, written(run, tmp_path / "noted.html")) as (page, errors):
        settle(page)
        summary, before = page.locator("#notes summary"), page.evaluate(frame)
        shown = page.locator("#notes").inner_text()
        assert "2 notes" in summary.inner_text()
        assert (False, grave) == (notes[0] in shown, notes[1] in shown)
        assert page.evaluate(bottom)
        summary.press("Enter")
        settle(page)
        assert all(note in page.locator("#notes").inner_text() for note in notes)
        assert page.evaluate(bottom)
        assert before > page.evaluate(frame)
        summary.click()
        settle(page)
        assert notes[0] not in page.locator("#notes").inner_text()
        assert abs(before - page.evaluate(frame)) < 10
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_an_address_keeps_its_step(browser: Browser, two: Path) -> None:
    """Also with a time range, as in the addresses that the page writes, and after reloading."""
    with open_page(browser, f"{two.as_uri()}#t=120000,160000&step=1") as (page, errors):
        for _ in range(2):
            rest(page, within_ms=1_000)
            assert "#t=120000,160000&step=" in page.evaluate("location.hash")
            page.reload()
            page.locator("html[data-ready='1']").wait_for(state="attached", timeout=1000 * PATIENCE_S)
        assert [] == [error for error in errors if "file:" not in error]

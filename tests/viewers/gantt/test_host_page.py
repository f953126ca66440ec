"""The host's rows and the panel in a browser: values as in the analysis, keyboard, arrows, gaps, places."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dptrace.core.intervals import union
from dptrace.core.units import duration
from dptrace.load.open import open_run
from dptrace.run.run import Run
from dptrace.timeline.host_calls import HOST_CALLS, CallKind, HostCalls
from dptrace.timeline.model import UNKNOWN, Kind
from dptrace.viewers.gantt import host
from dptrace.viewers.gantt.chart import axes_of, chart
from dptrace.viewers.gantt.host import kind_looks
from tests.support.browser import browser_test, open_page, until
from tests.support.gantt_page import at, settle, show, written
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real
from tests.support.synthetic import training_run
from tests.viewers.gantt.tiles.test_served_page import served as served_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


GLOO = str(ROOT / "traces" / "ddp_cpu_2ranks")
PAYLOAD = "</script><img src=x onerror=PWN(1)>\u202e"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps of one GPU; the host allocates for 30 µs in each, and reads shapes and grids from the file."""
    folder = tmp_path_factory.mktemp("small")
    file = KinetoFile()
    for step in range(3):
        begin = 200.0 * step
        training_step(file, step, begin)
        shapes: dict[str, Any] = {"Input Dims": [[64, 64]], "Input type": ["float"]}
        file.op("aten::empty", begin + 100, begin + 140, **shapes)
        file.event("cuda_runtime", "cudaMalloc", begin + 105, begin + 135)
        file.kernel("fill", begin + 150, begin + 160, begin + 141, grid=[4, 1, 1], block=[32, 1, 1])
    file.write(folder / "rank0.json")
    return open_run([str(folder)])


@pytest.fixture(scope="module")
def page_file(small: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(small, tmp_path_factory.mktemp("pages") / "small.html")


def facts(page: Page) -> dict[str, str]:
    """Return the facts of the panel by name."""
    rows = page.evaluate(
        "[...document.querySelectorAll('#card .facts-table tr')].map((row) => [...row.cells].map((c) => c.textContent))"
    )
    return dict(rows)


def host_at(page: Page, label: str, time: float) -> tuple[float, float]:
    """Return the point that shows a time on the outermost level of a host's row of the first GPU."""
    top = page.evaluate(
        """(label) => {
            const row = dptrace.stage.rows.find((one) => one.host && one.track === 0 && one.label === label);
            return dptrace.main.canvas.getBoundingClientRect().top + row.y + 4;
        }""",
        label,
    )
    return at(page, "host", time)[0], top


def title(page: Page) -> str:
    return page.locator("#card h2").inner_text()


def calls_of(run: Run, track: int = 0) -> HostCalls:
    calls = run.read_again(run.timelines[track], HOST_CALLS)
    assert calls is not None
    return calls


def expected_facts(run: Run, index: int) -> dict[str, str]:
    """Return what the panel must tell of an interval of the first GPU."""
    timeline, calls = run.timelines[0], calls_of(run)
    device = int(calls.device_index(timeline)[index])
    call, own = int(calls.device_call[device]), calls.details[calls.device_detail[device]]
    found = {"grid": own.grid or "not recorded", "block": own.block or "not recorded"}
    if timeline.launch_ns[index] == UNKNOWN:
        return found | {"operator": "not recorded", "queue delay": "not recorded"}
    operator = call
    while operator >= 0 and calls.names[calls.name[operator]].startswith(("cuda", "cu", "hip")):
        operator = int(calls.parent[operator])
    delay = int(timeline.start_ns[index] - calls.end_ns[call])
    shown = duration(abs(delay))
    late, early = "{} from the end of the launch to the start", "none: it started {} before the launch returned"
    inputs = calls.details[calls.detail[operator]] if operator >= 0 else None
    return found | {
        "operator": calls.names[calls.name[operator]] if operator >= 0 else "not recorded",
        "shapes": (inputs.shapes if inputs else "") or "not recorded",
        "dtype": (inputs.dtypes if inputs else "") or "not recorded",
        "launched by": calls.names[calls.name[call]],
        "queue delay": (early if delay < 0 else late).format(shown),
        "correlation": str(calls.device_correlation[device]),
    }


def choose(page: Page, role: str, position: int) -> None:
    """Select an interval of the first GPU by its position in a lane."""
    page.evaluate(
        """async ([role, position]) => {
            const lane = dptrace.scene.lanes.findIndex((one) => one.role === role && one.track === 0);
            const [index] = await dptrace.lod.hold([{ lane, position }]);
            await dptrace.interactions.selection.choose(index, 0);
        }""",
        [role, position],
    )


STRAGGLER = real("straggler_v100_4ranks")


@pytest.mark.slow
@needs_real_traces
@browser_test
def test_the_panel_shows_what_the_trace_does(browser: Browser, tmp_path: Path) -> None:
    """Operator, shapes, grid, queue delay and id of kernels and collectives of a real recording."""
    run = open_run([STRAGGLER])
    timeline, drawn = run.timelines[0], chart(run)
    inside = (timeline.start_ns < drawn.origin_ns + drawn.end_ns) & (timeline.end_ns > drawn.origin_ns)
    random = np.random.default_rng(3)
    with open_page(browser, written(run, tmp_path / "real.html")) as (page, errors):
        for role, kind in (("compute", Kind.COMPUTE), ("collectives", Kind.COMMUNICATION)):
            shown = np.flatnonzero(inside & (timeline.kind == kind))
            for position in random.choice(len(shown), 8, replace=False).tolist():
                choose(page, role, position)
                read, expected = facts(page), expected_facts(run, int(shown[position]))
                assert expected == {name: read.get(name) for name in expected}, (role, position)
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_the_keyboard_leads_from_a_kernel_to_its_operator(browser: Browser, page_file: Path, small: Run) -> None:
    """Arrow keys move along a row and between rows, Enter opens the panel, Escape closes it; the focus stays."""
    with open_page(browser, page_file) as (page, errors):
        page.keyboard.press("Tab")
        page.locator("#figure").focus()
        assert "2px" in page.locator("#figure").evaluate("(one) => getComputedStyle(one).outline")
        show(page, 0, 190_000)
        names = []
        for _ in range(3):
            page.keyboard.press("ArrowRight")
            settle(page)
            names.append(page.locator("#cursor").inner_text().split(" · ")[0])
        page.keyboard.press("ArrowLeft")
        settle(page)
        assert names[1] == page.locator("#cursor").inner_text().split(" · ")[0]
        assert 3 == len(set(names))
        page.keyboard.press("Enter")
        page.locator("#card").wait_for(state="visible")
        assert names[1] == title(page)
        until(page, "dptrace.interactions.host.panel.launch?.arrows.length", 1)
        for _ in range(12):
            page.keyboard.press("ArrowDown")
            settle(page)
            if " · host · main · " in page.locator("#cursor").inner_text():
                break
        operator = page.locator("#cursor").inner_text().split(" · ")[0]
        assert operator in calls_of(small).names
        page.keyboard.press("Enter")
        until(page, "document.querySelector('#card h2').textContent", operator)
        assert facts(page)["kind"] in ("operator", "runtime call")
        assert "figure" == page.evaluate("document.activeElement.id")
        page.keyboard.press("Escape")
        assert page.locator("#card").is_hidden()
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_a_click_shows_a_kernel_and_a_host_call(browser: Browser, page_file: Path, small: Run) -> None:
    """From a kernel an arrow key leads to the next one, and Enter shows it; an operator has the shapes and types that
    were recorded, and an arrow to its kernel. C and a click on a row's name show all levels of the host, and again the
    outermost ones; the button hides the rows."""
    timeline, calls = small.timelines[0], calls_of(small)
    of_main = (calls.kind < CallKind.ANNOTATION) & (calls.thread == calls.threads.index("main"))
    depth = int(calls.depth[of_main].max()) + 1
    levels = "dptrace.stage.rows.filter((r) => r.label === 'host · main').map((r) => r.host.lanes.length)"
    labels = "dptrace.stage.rows.filter((r) => r.host).map((r) => r.label)"
    kernels = np.flatnonzero(timeline.kind == Kind.COMPUTE)
    first, second = (timeline.names[timeline.name[i]] for i in kernels[:2])
    middle = (timeline.start_ns[kernels[0]] + timeline.end_ns[kernels[0]]) / 2 - chart(small).origin_ns
    heading = "document.querySelector('#card h2')?.textContent"
    with open_page(browser, page_file) as (page, errors):
        page.mouse.click(*host_at(page, "host · main", 7_000))
        until(page, heading, "aten::linear")
        assert "gemm" == facts(page)["launched"]
        assert 1 == page.evaluate("dptrace.interactions.host.panel.chosen.arrows.length")
        page.mouse.click(*host_at(page, "host · main", 120_000))
        until(page, heading, "aten::empty")
        assert ("[64, 64]", "float") == (facts(page)["shapes"], facts(page)["dtype"])
        page.mouse.click(*at(page, "compute", middle))
        until(page, heading, first)
        settle(page)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        until(page, heading, second)
        page.keyboard.press("Escape")

        folded = page.evaluate(levels)
        assert ["annotations", "host · main", "host · autograd"] == page.evaluate(labels)
        page.keyboard.press("c")
        until(page, levels, [depth])
        page.get_by_role("button", name="host · main").click()
        until(page, levels, folded)
        page.get_by_role("button", name="Host", exact=True).click()
        until(page, labels, [])
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_a_run_without_calls_offers_no_rows(browser: Browser, tmp_path: Path) -> None:
    """Built in memory: there is no button for them, nothing to read a launch from, and an idle gap has its causes."""
    run = training_run(300, ranks=1)
    with open_page(browser, written(run, tmp_path / "memory.html")) as (page, errors):
        assert page.locator("#host").is_hidden()
        choose(page, "compute", 3)
        assert facts(page)["launch"].startswith("left out")
        page.evaluate("dptrace.interactions.host.panel.chooseGap(0, dptrace.lod.start[dptrace.lod.offsets[6]])")
        until(page, "document.querySelector('#card h2').textContent.startsWith('Idle')", True)
        assert [] == errors


@pytest.mark.slow
@browser_test
@pytest.mark.parametrize("path", [GLOO, pytest.param(STRAGGLER, marks=needs_real_traces)])
def test_the_largest_gap_shows_what_the_host_did(browser: Browser, path: str, tmp_path: Path) -> None:
    """A click on it lists the analysis' labels with their times, which add up to the gap."""
    run = open_run([path])
    timeline, drawn = run.timelines[0], chart(run)
    start, end = union(timeline.start_ns, timeline.end_ns)
    inside = (end[:-1] >= drawn.origin_ns) & (start[1:] <= drawn.origin_ns + int(drawn.tracks[0].bounds_ns[-1]))
    longest = int(np.argmax(np.where(inside, start[1:] - end[:-1], 0)))
    begin, stop = int(end[longest]), int(start[longest + 1])
    spent = sorted(timeline.host.spent(begin, stop).items(), key=lambda item: -item[1])
    with open_page(browser, written(run, tmp_path / "gap.html")) as (page, errors):
        margin = (stop - begin) // 2
        show(page, begin - drawn.origin_ns - margin, stop - drawn.origin_ns + margin)
        page.mouse.click(*at(page, "phases", (begin + stop) / 2 - drawn.origin_ns))
        page.locator("#card").wait_for(state="visible")
        assert title(page).startswith(f"Idle {duration(stop - begin)} ")
        listed = "[...document.querySelector('#card .texts').tBodies[0].rows]"
        cells = page.evaluate(f"{listed}.map((row) => [...row.cells].map((one) => one.textContent))")
        assert [duration(ns) for _, ns in spent[: len(cells)]] == [cell[1] for cell in cells]
        for (label, _), cell in zip(spent, cells, strict=False):
            assert label.what in cell[0]
            assert label.where in cell[0]
        assert [] == errors


@pytest.mark.slow
@browser_test
@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_the_panel_never_covers_the_chart(browser: Browser, page_file: Path, size: tuple[int, int]) -> None:
    """It stands beside the chart, on a narrow page below it; the window shows both."""
    with open_page(browser, page_file, size=size) as (page, errors):
        choose(page, "compute", 1)
        settle(page)
        card, rows = (page.locator(one).bounding_box() for one in ("#card", "#gantt"))
        assert card
        assert rows
        beside = card["x"] >= rows["x"] + rows["width"] - 8
        below = card["y"] >= rows["y"] + rows["height"] - 1
        assert (size[0] > 1000, size[0] < 1000) == (beside, below)
        assert 0 <= card["x"]
        assert card["x"] + card["width"] <= size[0]
        assert card["y"] < size[1] - 100
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_calls_are_drawn_where_and_in_the_color_of_what_they_are(browser: Browser, tmp_path: Path) -> None:
    """The pixel at the middle of a call has its kind's color, on every level, and is blank where there is none."""
    run = open_run([GLOO])
    colors = [look["color"] for look in kind_looks()]
    with open_page(browser, written(run, tmp_path / "gloo.html")) as (page, errors):
        page.keyboard.press("c")
        until(page, "dptrace.interactions.host.rows.state(0)", 2)
        show(page, 100_000_000, 130_000_000)
        seen: list[Any] = page.evaluate(
            """() => {
                // Lines of the axis stand where nothing else is.
                    dptrace.picture.under = () => {};
                    dptrace.picture.draw(true);
                    const { main, stage } = dptrace, { from, to } = main.range, { width: across, height } = main.canvas;
                const pixels = main.canvas.getContext("2d").getImageData(0, 0, across, height).data;
                const pixel = (x, y) => [...pixels.slice(4 * (y * across + x), 4 * (y * across + x) + 4)];
                const width = main.canvas.clientWidth, px = (to - from) / width, found = [];
                for (const row of stage.visible.filter((one) => one.host)) row.host.lanes.forEach((lane, level) => {
                    const { lod, kind } = row.host.calls, h = row.h / row.host.lanes.length;
                    for (let x = 3; x < width - 3; x += 5) {
                        const [left, right] = [from + (x - 2) * px, from + (x + 3) * px];
                        const at = lod.at(lane, left), same = at >= 0 && lod.start[at] + lod.duration[at] >= right;
                        const none = lod.count(lane, left, right) === 0;
                        if (!same && !none) continue;
                        // Text covers part of a call, but hardly its first and its last line of pixels.
                        const lines = [Math.round(row.y + level * h) + 1, Math.round(row.y + (level + 1) * h) - 3];
                        found.push([same ? kind[at] : -1, ...lines.map((y) => pixel(x, y))]);
                    }
                });
                return found;
            }"""
        )
        assert len([one for one in seen if one[0] >= 0]) > 300
        assert len([one for one in seen if one[0] < 0]) > 100
        for kind, *pixels in seen:
            drawn = {"#{:02X}{:02X}{:02X}".format(*one[:3]) if one[3] == 255 else "nothing" for one in pixels}
            assert (colors[kind] if kind >= 0 else "nothing") in drawn
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_names_of_calls_stay_text(browser: Browser, tmp_path: Path) -> None:
    """Operators, annotations, shapes, stacks and threads with markup: nothing is executed or fetched."""
    file = training_step(KinetoFile(), 1, 0)
    odd: dict[str, Any] = {"Input Dims": [[PAYLOAD]], "Input type": [PAYLOAD], "Call stack": PAYLOAD}
    file.label(PAYLOAD, 4, 60).op(PAYLOAD, 11, 15, **odd).kernel(PAYLOAD, 62, 70, 12, grid=[PAYLOAD])
    run = open_run([str(file.write(tmp_path / "rank0.json"))])
    before = "window.fired = []; window.PWN = (how) => fired.push(how);"
    with open_page(browser, written(run, tmp_path / "hostile.html"), before=before) as (page, errors):
        for position in range(3):
            choose(page, "compute", position)
        page.evaluate("dptrace.interactions.host.rows.show(0)")
        until(page, "dptrace.interactions.host.rows.state(0)", 2)
        page.mouse.move(*host_at(page, "host · main", 14_500))
        page.mouse.click(*host_at(page, "host · main", 14_500))
        page.locator("#card").wait_for(state="visible")
        assert "onerror" in page.locator("#card").inner_text()
        assert "\u202e" not in page.locator("body").inner_text()
        assert ([], []) == (page.evaluate("fired"), errors)


@pytest.mark.slow
@browser_test
def test_a_served_page_asks_for_the_calls_that_it_shows(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few calls of the whole run at first; zoomed in, all of the window."""
    monkeypatch.setattr(host, "MOST_SERVED", 300)
    known = "dptrace.interactions.host.rows.source.of(0).then(({ calls }) => calls.leftOut)"
    with served_page(open_run([GLOO])) as address, open_page(browser, address) as (page, errors):
        assert page.evaluate(known) > 500
        show(page, 100_000_000, 104_000_000)
        until(page, known, 0)
        choose(page, "collectives", 2)
        assert "c10d::allreduce_" == facts(page)["operator"]
        assert [] == errors


@pytest.mark.slow
@browser_test
@pytest.mark.parametrize("serve", [False, True])
def test_the_search_finds_calls_annotations_and_findings(
    browser: Browser, page_file: Path, small: Run, serve: bool
) -> None:
    """Names that no interval of a GPU has: listed with their number, and a click shows the longest, or the finding."""
    calls = calls_of(small)
    drawn = axes_of(small)[0].inside(calls.start_ns, calls.end_ns)
    link, finding = "#card:not([hidden]) .link", "#findings button:enabled"
    with ExitStack() as closing:
        address: Path | str = closing.enter_context(served_page(small)) if serve else page_file
        page, errors = closing.enter_context(open_page(browser, address))
        for text in ("aten::empty", "profilerstep#1"):
            page.locator("#find").fill(text)
            count = sum(calls.names[number].lower() == text for number in calls.name[drawn].tolist())
            until(page, "(link) => document.querySelector(link)?.closest('tr')?.cells[1].textContent", str(count), link)
            page.locator(link).first.click()
            until(page, "() => document.querySelector('#card h2').textContent.toLowerCase()", text)
        page.locator("#find").fill(page.locator(finding).first.inner_text()[-25:-5])
        page.locator(f"{link}:not(table *)").first.click()
        until(page, "() => document.querySelectorAll('#findings [aria-expanded=true]').length", 1)
        assert [] == errors

"""The page's data: rows do not overlap, columns unpack to the chart's values, colours are the theme's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import dptrace
from dptrace.analysis.per_gpu.causes import IDLE_CAUSES
from dptrace.analysis.per_gpu.split import Part
from dptrace.core.intervals import Int64
from dptrace.run.memory import device_reports
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.gantt.chart import OVERLAPPED, Chart, Role, cause_category, chart
from dptrace.viewers.gantt.packing import unpack
from dptrace.viewers.gantt.page import data as module
from dptrace.viewers.gantt.page import document as gantt
from dptrace.viewers.gantt.page.data import (
    categories,
    details,
    few_ranks,
    layout,
    memory_lanes,
    rank_reasons,
    row_orders,
    scene,
    with_memory,
)
from tests.support.browser import browser_test, open_page, rest, until
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.gantt_page import settle
from tests.support.memory_files import GOLDEN, memory_run, training_file
from tests.support.paths import TRACES
from tests.support.real_traces import needs_real_traces, real
from tests.support.synthetic import training_run
from tests.support.times import unpack_times

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_eight_gpus_fit_a_laptop_s_screen() -> None:
    """Header, minimap and axis take about 260 of 900 pixels."""
    assert layout(chart(training_run(1_600, 8)))["height"] <= 650


def test_rows_that_would_be_empty_on_every_gpu_are_left_out() -> None:
    """A single-GPU run without copies has neither communication nor memory rows."""
    single = chart(Run("", (TimelineBuilder(0).compute(0, 50).build(),)))

    assert ["phases", "compute"] == [row["role"] for row in layout(single)["rows"]]


def test_columns_come_back_lane_by_lane() -> None:
    """Times as each lane stores them; the other columns are stored directly."""
    drawn = chart(training_run(600))
    data = json.loads(json.dumps(scene(drawn)))
    offset, phases = 0, None
    for lane, entry in zip(drawn.lanes, data["lanes"], strict=True):
        rows = slice(offset, offset + entry["count"])
        starts, durations = unpack(data["columns"]["delta"])[rows], unpack(data["columns"]["duration"])[rows]
        start, duration = unpack_times(entry["times"], entry["first"], starts, durations, phases)
        phases = (start, duration) if lane.role is Role.PHASES else phases
        streams = np.array(data["columns"]["streams"])[unpack(data["columns"]["stream"])[rows]]

        assert lane.start_ns.tolist() == start.tolist()
        assert lane.duration_ns.tolist() == duration.tolist()
        assert lane.category.tolist() == unpack(data["columns"]["category"])[rows].tolist()
        assert lane.name.tolist() == unpack(data["columns"]["name"])[rows].tolist()
        assert lane.stream.tolist() == streams.tolist()
        offset += entry["count"]
    assert offset == len(drawn)


def test_categories_are_the_theme_s() -> None:
    """A category's index is its part, then overlapped communication, then idle causes; the order has each once."""
    shown = categories("Exposed transfer")

    assert [theme.PART_COLORS[Part(part)] for part in range(len(Part))] == [one["color"] for one in shown[: len(Part)]]
    assert all(cause.label in shown[cause_category(cause.name)]["label"] for cause in IDLE_CAUSES)
    assert ("Overlapped communication", theme.OVERLAPPED) == (
        shown[OVERLAPPED]["label"],
        shown[OVERLAPPED]["color"],
    )
    assert sorted(scene(chart(training_run(200)))["order"]) == list(range(len(shown)))


def test_the_same_run_gives_the_same_scene() -> None:
    """The scene is deterministic."""
    assert scene(chart(training_run(300))) == scene(chart(training_run(300)))


# The data of the memory lanes of a Gantt page, and the lanes in a browser.


def lanes(run: Run) -> dict[str, dict[str, Any]]:
    return memory_lanes(run, chart(run))


def unfolded(column: dict[str, Any]) -> Int64:
    folded = unpack(column)
    levels: Int64 = np.cumsum(np.where(folded % 2, -(folded + 1) // 2, folded // 2))
    return levels


def test_a_lane_has_every_event_of_its_device(tmp_path: Path) -> None:
    """Times from the chart's origin, and the file's own totals; first the level that the chart begins with."""
    run = dptrace.open(memory_run(tmp_path))
    found = lanes(run)
    lane = found["1"]

    assert ["0", "1"] == list(found)
    assert [0, 13_000, 14_000, 16_000, 40_000] == np.cumsum(unpack(lane["delta"])).tolist()[:5]
    assert [1000, 1040, 1048, 1040, 1140] == unfolded(lane["bytes"]).tolist()[:5]
    assert {4096} == set(unfolded(lane["reserved"]).tolist())
    assert (0, 4096, [113_000 + 27_000, 1340], [82_000], True, False) == tuple(
        lane[key] for key in ("least", "most", "peak", "calls", "exact", "fromStart")
    )


def test_a_selected_step_has_its_own_peak(tmp_path: Path) -> None:
    """The lane begins with the level that the step finds."""
    lane = lanes(dptrace.open(memory_run(tmp_path)).select(ranks=[0], steps=(0, 0)))["0"]

    assert 1300 == lane["peak"][1] == int(unfolded(lane["bytes"]).max())


def test_a_long_recording_is_reduced_without_losing_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer points than events, each with the highest level of its stretch."""
    monkeypatch.setattr(module, "MOST_POINTS", 50)
    run = dptrace.open(GOLDEN)
    [lane], [report] = lanes(run).values(), device_reports(run)

    assert (50, False, True) == (len(unpack(lane["delta"])), lane["exact"], lane["fromStart"])
    assert report.peak.bytes == int(unfolded(lane["bytes"]).max()) == lane["peak"][1]


def test_a_page_without_memory_events_has_nothing_of_them() -> None:
    """Its scene is as before."""
    run = dptrace.open(TRACES / "single_cpu")

    assert {} == with_memory(run, chart(run))


@pytest.mark.slow
@browser_test
def test_the_lane_is_drawn_folds_and_shows_its_levels(browser: Browser, tmp_path: Path) -> None:
    """The peak fills a row up to its mark, a click on the row's name makes it taller, the tooltip has the bytes."""
    file = training_file().memory(99, -1, 99, allocated=1299, reserved=4096, device=0)
    run = dptrace.open(file.write(tmp_path / "a.json"))
    (tmp_path / "page.html").write_text(gantt.document(run), encoding="utf-8")
    with open_page(browser, tmp_path / "page.html") as (page, errors):
        settle(page)
        row = "dptrace.rows.find((row) => row.memory)"
        low = page.evaluate(f"{row}.base")
        page.get_by_role("button", name="memory 1.3 kB").click()
        settle(page)
        below = page.evaluate("dptrace.stage.blockOf.get(0).rows.map((row) => row.role)")
        at = "{ time: 41000, pixel: 100, width: 800 }"
        tip = page.evaluate(f"{row}.memory.tip({row}, {at}).map((line) => line.textContent)")
        inked = page.evaluate(
            f"""(() => {{
                const {{ y, h }} = {row}, {{ canvas }} = dptrace.main, scale = canvas.width / canvas.clientWidth;
                const x = Math.round(canvas.width * 0.75), context = canvas.getContext("2d");
                const pixels = context.getImageData(x, Math.round(y * scale), 1, Math.round(h * scale)).data;
                const opaque = pixels.filter((alpha, i) => i % 4 === 3 && alpha > 200);
                return opaque.length / (h * scale);
            }})()"""
        )

        assert page.evaluate(f"{row}.base") > 2 * low
        assert below.index("memory_use") < below.index("host")
        assert ["1.1 kB allocated", "4.1 kB reserved by the allocator"] == tip[:2]
        # At 3/4 of the time some 1,300 of 4,096 bytes are allocated.
        assert 0.2 < inked < 0.5
        assert not errors


# Details of single intervals: launch delays, and the members of collectives as in the analysis.


def test_members_are_those_of_the_matches() -> None:
    """Wait, lateness, transfer, bandwidth and exposed time of every collective, as in Run.matched_collectives().

    Where one may be unknown, it is packed plus 1.
    """
    run = Run("two", two_rank_timelines())
    drawn = chart(run)
    columns = details(run, drawn)
    instance, wait, late, within = (unpack(columns[key]) for key in ("instance", "wait", "late", "within"))
    lanes = [lane for lane in drawn.lanes if lane.role is Role.COLLECTIVES]
    starts = np.concatenate([lane.start_ns for lane in lanes]) + drawn.origin_ns
    tracks = np.repeat(np.arange(len(lanes)), [len(lane) for lane in lanes])
    exposed = np.concatenate([lane.exposed_ns for lane in lanes])
    rows = run.matched_collectives()

    assert len(rows) == np.count_nonzero(instance) > 0
    for row in rows.to_dict("records"):
        [place] = np.flatnonzero((starts == row["start_ns"]) & (tracks == row["rank"]))
        number = instance[place] - 1
        assert row["collective"] == number
        assert (row["wait_ns"] + 1, row["exposed_ns"]) == (wait[place], exposed[place])
        known = not pd.isna(row["late_ns"])
        assert (row["late_ns"] if known else None) == (late[place] - 1 if late[place] else None)
        # Of two ranks' clocks, this says what a lateness does not exceed.
        assert (within[place] > 0) != known
        one = {key: unpack(columns["instances"][key])[number] for key in ("transfer", "busbw", "bytes", "seq", "group")}
        seq = -1 if pd.isna(row["seq"]) else row["seq"]
        assert (row["transfer_ns"] + 1, row["bytes"], seq) == (one["transfer"], one["bytes"], one["seq"] - 1)
        assert one["busbw"] == pytest.approx(0 if pd.isna(row["busbw_gbps"]) else row["busbw_gbps"] * 1e6, abs=1)
        assert columns["groups"][one["group"]]["name"] == row["group"]


def test_members_of_incomplete_collectives_have_no_times() -> None:
    """With a rank missing, wait, lateness and transfer are 0, which stands for unknown."""
    run = Run("two", two_rank_timelines()[:1], world_size=2)
    columns = details(run, chart(run))

    assert unpack(columns["instance"]).any()
    unknown = [columns[key] for key in ("wait", "late", "within")]
    unknown += [columns["instances"][key] for key in ("transfer", "last")]
    assert {0} == {value for column in unknown for value in unpack(column).tolist()}


def test_launch_delays_are_in_the_order_of_the_lanes() -> None:
    """Each is the ns from launch to start plus 1, or 0 without a recorded launch."""
    build = TimelineBuilder(0, bounds=(1_000, 2_000)).compute(1_100, 1_200).compute(1_300, 1_400)
    timeline = build.build()
    timeline.launch_ns[0] = 1_050
    run = Run("launched", (timeline,))

    assert [51, 0] == unpack(details(run, chart(run))["launch"]).tolist()


def test_a_large_page_holds_no_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch delays are left out above MAX_LAUNCHES."""
    run = training_run(300)
    monkeypatch.setattr(module, "MAX_LAUNCHES", 100)

    assert "launch" not in details(run, chart(run))
    assert "instance" in details(run, chart(run))


def test_a_run_without_collectives_has_no_members() -> None:
    """Only launch delays are there."""
    run = Run("single", (TimelineBuilder(0).compute(0, 50).build(),))

    assert ["launch"] == list(details(run, chart(run)))


# The orders of the GPUs on the Gantt page.


NAMES = "[...document.querySelectorAll('#names .track')].map((one) => one.textContent)"


def charted(run: Run) -> tuple[Run, Chart]:
    return run, chart(run)


def orders_of(run: Run) -> dict[str, list[int]]:
    return {one["label"]: one["tracks"] for one in row_orders(run, chart(run))}


@pytest.mark.heavy
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


@pytest.mark.heavy
@needs_real_traces
def test_the_few_to_look_at_are_named_with_their_reasons() -> None:
    """A list where there are more ranks than it is about; of four ranks the reasons, and none where all are alike."""
    run, four, alike = (
        training_run(600, ranks=12),
        dptrace.open(real("straggler_v100_4ranks")),
        Run("", (two_rank_timelines()[0],) * 2),
    )
    few = few_ranks(*charted(run))

    assert few is not None
    assert "typical" in rank_reasons(*charted(run)).values()
    assert "slowest" in few["label"]
    assert sorted(few["tracks"]) == few["tracks"]
    assert 11 in few["tracks"]
    assert few_ranks(*charted(four)) is None
    assert rank_reasons(*charted(four))[2].startswith("held others up")
    assert {} == rank_reasons(*charted(alike))


def test_few_ranks_have_no_orders() -> None:
    """Two are compared at a glance."""
    run = training_run(100, ranks=2)

    assert [] == row_orders(run, chart(run))


@pytest.mark.slow
@browser_test
@needs_real_traces
def test_the_rows_follow_the_chosen_order(browser: Browser, tmp_path: Path) -> None:
    """Names, rows and the arrow keys; the strip shows the steps of the rank on top, whichever that is."""
    run, path = dptrace.open(real("straggler_v100_4ranks")), tmp_path / "run.html"
    path.write_text(gantt.document(run), encoding="utf-8")
    with open_page(browser, path) as (page, errors):
        settle(page)
        steps = page.locator("#names .strip").first
        assert "steps, rank 0" == steps.inner_text()
        page.get_by_role("combobox", name="Order of the ranks").select_option("notable ranks first")
        settle(page)
        until(page, f"{NAMES}[0].split(' · ')[0]", "rank 2")
        tops = page.evaluate("dptrace.rows.filter(({ role }) => role === 'phases').map(({ track, y }) => [y, track])")

        assert 2 == min(tops)[1]
        assert "steps, rank 2" == steps.inner_text()
        page.locator("#names .track").first.focus()
        page.keyboard.press("ArrowDown")
        second = page.evaluate(f"{NAMES}[1]")
        until(page, "document.activeElement.textContent", second)
        assert [] == errors


@pytest.mark.slow
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


@pytest.mark.slow
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
        assert all(part in address for part in ("order=by%20node", "few=1", "pin=4,2"))
        assert [] == errors
    with open_page(browser, path.as_uri() + address) as (page, errors):
        settle(page)
        assert shown == page.evaluate("dptrace.stage.order")
        assert [] == [error for error in errors if "file:" not in error]

"""Findings, and where the chart shows them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import dptrace
from dptrace.analysis.findings.finding import top_findings
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.replay.findings import findings_of
from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import Lane, Role, cause_category, chart
from dptrace.viewers.gantt.finding_places import MOST, finding_places
from dptrace.viewers.gantt.gaps import joined, named_gaps
from dptrace.viewers.gantt.page import document as gantt
from tests.support.browser import browser_test, open_page, until
from tests.support.gantt_page import settle, visible_range
from tests.support.planted import Plant, planted_job
from tests.support.real_traces import needs_real_traces, real

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run in which the host of rank 1 runs Python code for 30 ms a step."""
    folder = tmp_path_factory.mktemp("late")
    planted_job(folder, [Plant(1, "python", 30.0)])
    return dptrace.open(folder)


@pytest.mark.heavy
def test_a_straggler_is_in_its_own_gap(late: Run) -> None:
    """The idle time of the late rank, not the wait of another, and its call at the end, with those late in the step."""
    drawn = chart(late)

    first = finding_places(late, drawn)[0]
    place = first["place"]

    assert "wait for rank 1" in first["text"] or "waits for rank 1" in first["text"]
    assert 1 == drawn.tracks[place["track"]].rank
    idle, calls = (
        next(lane for lane in drawn.lanes if (lane.track, lane.role) == (place["track"], role))
        for role in (Role.IDLE, Role.COLLECTIVES)
    )
    gap = int(np.flatnonzero(idle.start_ns == place["gap"])[0])
    assert 25_000_000 < idle.duration_ns[gap] < 35_000_000
    track, position = place["collective"]
    assert track == place["track"]
    assert place["from"] < place["gap"] < calls.start_ns[position] < place["to"]
    assert 25_000_000 < dict(place["late"])[position] < 35_000_000
    step = np.searchsorted(drawn.tracks[track].bounds_ns, calls.start_ns[[one for one, _ in place["late"]]], "right")
    assert 1 == len(set(step.tolist()))


def test_idle_time_is_one_gap_across_short_work(tmp_path: Path) -> None:
    """The allocator's gap on the rank that has it, in the step that the finding names."""
    planted_job(tmp_path, [Plant(0, "allocator", 40.0)], ranks=1)
    run = dptrace.open(tmp_path)
    drawn = chart(run)
    entry = next(entry for entry in finding_places(run, drawn) if entry["idle"])
    place = entry["place"]
    middle = (place["from"] + place["to"]) / 2
    margin = (place["to"] - place["from"]) / 4

    bounds = drawn.tracks[place["track"]].bounds_ns
    assert bounds[0] < middle < bounds[-1]
    lane = next(lane for lane in drawn.lanes if (lane.track, lane.role) == (place["track"], Role.IDLE))
    inside = (lane.start_ns >= middle - margin) & (lane.start_ns + lane.duration_ns <= middle + margin)
    assert 2 * margin * 0.98 <= lane.duration_ns[inside].sum() <= 2 * margin
    assert lane.start_ns[inside][lane.duration_ns[inside].argmax()] == place["gap"]


@pytest.mark.heavy
def test_a_step_that_is_not_drawn_has_no_place(late: Run) -> None:
    """A selection of steps may leave out the one that a finding is about."""
    drawn = chart(late)
    none = [track.__class__(track.rank + 5, 0, "", track.steps, track.bounds_ns, {}) for track in drawn.tracks]

    places = finding_places(late, drawn.__class__(0, drawn.end_ns, tuple(none), (), drawn.lanes, (), drawn.collectives))

    assert [None] * len(places) == [entry["place"] for entry in places]


@pytest.mark.heavy
def test_every_finding_with_its_gain_has_a_place() -> None:
    """Also a delay that reaches no collective in which others wait: it is shown by its step."""
    for name in ("ddp_cpu_2ranks", "interleaved_cpu_2ranks", "naive_cpu_2ranks"):
        run = dptrace.open(Path(__file__).parents[3] / "traces" / name)

        assert all(entry["place"] for entry in finding_places(run, chart(run))), name


@pytest.mark.heavy
@needs_real_traces
def test_the_gap_of_a_finding_is_named_however_short() -> None:
    """A page names the longest gaps of each GPU, and those that its findings lead to."""
    run = dptrace.open(real("ddp_a100_rank0of2"))
    drawn = chart(run)
    [idle] = (lane for lane in drawn.lanes if lane.role is Role.IDLE)
    longest = named_gaps(run, drawn)["tracks"]["0"]
    host_bound = idle.start_ns[idle.category == cause_category("host_bound_ns")].tolist()
    short = next(start for start in host_bound if not any(begin <= start < end for begin, end, *_ in longest))
    named = named_gaps(run, drawn, [None, {"track": 0, "gap": short}, {"track": 1, "gap": short}])["tracks"]

    assert {"0"} == set(named)
    [added] = [gap for gap in named["0"] if gap not in longest]
    assert added[0] <= short < added[1]


@pytest.mark.heavy
@needs_real_traces
def test_every_finding_of_a_real_run_has_a_place_in_its_step() -> None:
    """The most expensive ones, each within the step that the finding names."""
    for name in ("sharded_h100_8ranks", "dlrm_v100_4ranks", "perparam_v100_rank1of2", "ddp_mi300_rank0of8"):
        run = dptrace.open(real(name))
        drawn = chart(run)
        found = top_findings(findings_of(run))[:MOST]

        for finding, entry in zip(found, finding_places(run, drawn), strict=True):
            place = entry["place"]
            track = drawn.tracks[place["track"]]
            step = track.steps.index(finding.evidence.step)
            middle = (place["from"] + place["to"]) / 2
            assert finding.evidence.rank == track.rank, name
            assert track.bounds_ns[step] <= middle <= track.bounds_ns[step + 1] + np.diff(track.bounds_ns).max(), name
            if entry["idle"]:
                lane = next(lane for lane in drawn.lanes if (lane.track, lane.role) == (place["track"], Role.IDLE))
                assert f"{finding.kind}_ns" == _main_cause(lane, place["gap"]), name


def _main_cause(lane: Lane, time: int) -> str:
    """Return the cause that has most of the gap at a time."""
    first = joined(lane)
    gap = int(np.searchsorted(lane.start_ns[first], time, side="right")) - 1
    pieces = slice(first[gap], (*first[1:], len(lane))[gap])
    return max(CAUSES, key=lambda cause: lane.duration_ns[pieces][lane.category[pieces] == cause_category(cause)].sum())


@pytest.mark.slow
@browser_test
def test_a_click_goes_to_the_culprit(browser: Browser, late: Run, tmp_path: Path) -> None:
    """Its gap and its host's rows, with the cause and its late arrivals, each of which leads to its call on all ranks;
    another click closes it."""
    path = tmp_path / "late.html"
    path.write_text(gantt.document(late), encoding="utf-8")
    place = finding_places(late, chart(late))[0]["place"]
    with open_page(browser, path) as (page, errors):
        whole = visible_range(page)
        button, card = page.locator("#findings button").first, page.locator("#card")
        assert "wait" in button.inner_text()

        button.focus()
        page.keyboard.press("Enter")
        page.locator("#card th", has_text="late arrivals").wait_for()
        settle(page)

        start, end = visible_range(page)
        quarter = (place["to"] - place["from"]) / 4  # of context on either side, less at the ends of the run
        assert start <= place["from"] + quarter < place["to"] - quarter <= end
        assert end - start == pytest.approx(4 * quarter, abs=2)
        assert place["track"] == page.evaluate("dptrace.stage.marked")
        gap = page.evaluate("dptrace.interactions.host.panel.chosen.gap")
        assert place["track"] == gap["track"]
        assert gap["from"] <= place["gap"] < gap["to"]
        assert "Python" in card.inner_text()
        rows = page.evaluate("dptrace.stage.visible.filter(({ host }) => host).map(({ track, h }) => [track, h])")
        assert max(height for track, height in rows if track == place["track"]) > max(
            [height for track, height in rows if track != place["track"]], default=0
        )
        assert len(place["late"]) == card.locator("button.link").count()
        assert "true" == button.get_attribute("aria-expanded")
        assert page.locator("#findings p").first.is_visible()

        card.locator("button.link").first.click()
        until(page, "dptrace.interactions.selection.chosen?.memberDetails?.members.length", 4)
        button.click()
        settle(page)

        assert page.evaluate("dptrace.stage.marked === -1 && dptrace.interactions.selection.chosen === null")
        assert not page.locator("#findings p").first.is_visible()
        assert whole != visible_range(page)
        assert not errors


@pytest.mark.slow
@browser_test
def test_a_click_on_idle_time_opens_its_gap(browser: Browser, tmp_path: Path) -> None:
    """By keyboard, too: how long it is, and what the host did in it; another press closes the panel."""
    planted_job(tmp_path, [Plant(0, "allocator", 40.0)], ranks=1)
    run = dptrace.open(tmp_path)
    number = next(i for i, entry in enumerate(finding_places(run, chart(run))) if entry["idle"])
    path = tmp_path / "idle.html"
    path.write_text(gantt.document(run), encoding="utf-8")
    with open_page(browser, path) as (page, errors):
        page.locator("#findings button").nth(number).focus()
        page.keyboard.press("Enter")
        until(page, "Boolean(dptrace.interactions.host.panel.chosen?.gap)", True)
        settle(page)

        shown = page.evaluate("dptrace.interactions.host.panel.chosen.gap")
        assert 38_000_000 < shown["to"] - shown["from"] < 42_000_000
        assert page.locator("#card h2").inner_text().startswith("Idle ")
        assert "cudaMalloc" in page.locator("#card").inner_text()

        page.keyboard.press("Enter")
        settle(page)

        assert not page.locator("#card").is_visible()
        assert [] == errors

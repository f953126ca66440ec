"""Two runs as one chart: every interval is at its step's place, and the figures are the runs' own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dptrace.analysis.per_gpu.split import Part
from dptrace.comparison.compare import compare
from dptrace.comparison.step_alignment import align_runs, align_steps, run_steps
from dptrace.errors import DptraceError
from dptrace.load.open import open_run
from dptrace.run.run import Run
from dptrace.viewers.base.page import Markup
from dptrace.viewers.base.time_saved import time_saved_sentence
from dptrace.viewers.gantt.chart import OVERLAPPED, Chart, Role, chart
from dptrace.viewers.gantt.page import pair as pair_page
from dptrace.viewers.gantt.page.document import document, run_data
from dptrace.viewers.gantt.page.pair import StepPages, paired_chart, paired_scene
from tests.support.browser import PATIENCE_S, browser_test, open_page
from tests.support.builders import TimelineBuilder
from tests.support.gantt_page import SHARE_FIGURES, settle, show, visible_range
from tests.support.jobs import job, late_run, run_of
from tests.support.real_traces import needs_real_traces, real

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def lane(drawn: Chart, track: int, role: Role) -> list[tuple[int, int, int]]:
    found = [one for one in drawn.lanes if (one.track, one.role) == (track, role)]
    return [
        row
        for one in found
        for row in zip(one.start_ns.tolist(), one.duration_ns.tolist(), one.category.tolist(), strict=True)
    ]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.booleans())
def test_each_steps_figures_are_the_splits(steps_a: int, steps_b: int, ranks: int, by_step: bool) -> None:
    """The phases of each step, at its place, are the split's figures to the nanosecond."""
    runs = job(steps_a, ranks, noise=0.1), job(steps_b, 2, seed=1, noise=0.1, factors={"exposed": 0.3})
    aligned = align_steps(run_steps(runs[0]), run_steps(runs[1]), by_step)
    drawn, data = paired_scene(aligned)

    tracks = [(run, device) for run in (0, 1) for device in range(len(runs[run].timelines))]
    for track, (which, device) in enumerate(tracks):
        split, page = runs[which].splits[device], data["tracks"][track]
        phases = lane(drawn, track, Role.PHASES)
        for step, (begin, end) in enumerate(zip(page["bounds"], page["ends"], strict=False)):
            assert split.figures["wall_ns"][step] == end - begin
            inside = [(max(s, begin), min(s + d, end), part) for s, d, part in phases if s < end and s + d > begin]
            for part, name in SHARE_FIGURES.items():
                if part != Part.IDLE:
                    assert split.figures[name][step] == sum(e - s for s, e, p in inside if p == part)
        assert sum(d for _, d, c in lane(drawn, track, Role.EXPOSURE) if c == OVERLAPPED) == sum(
            split.figures["overlapped_comm_ns"][: len(aligned.a.names)]
        )


def test_recorded_intervals_stay_whole() -> None:
    """An interval that ends after its step keeps its length, but its pieces are cut at the step."""
    build = TimelineBuilder(0, bounds=(0, 100, 200)).compute(0, 60).all_reduce(50, 130).compute(110, 180)
    aligned = align_steps(
        run_steps(run_of([build.build()])), run_steps(run_of([TimelineBuilder(0, bounds=(0, 150, 300)).build()]))
    )
    drawn = paired_chart(aligned)

    assert [(50, 80, int(Part.EXPOSED_COMM))] == lane(drawn, 0, Role.COLLECTIVES)
    exposed = [(s, d) for s, d, c in lane(drawn, 0, Role.PHASES) if c == Part.EXPOSED_COMM]
    assert [(60, 40), (150, 10)] == exposed
    assert [(0, 60), (160, 70)] == [(s, d) for s, d, _ in lane(drawn, 0, Role.COMPUTE)]


def test_one_run_against_itself_is_drawn_as_it_is() -> None:
    """Aligned by the first step only, both halves equal the run's own chart, and no time is saved."""
    run = job()
    drawn, data = paired_scene(align_steps(run_steps(run), run_steps(run), by_step=False))
    alone = chart(run)

    assert [] == data["freed"]
    for track in (0, 1):
        for role in Role:
            if role is Role.PHASE_LABELS:
                continue
            assert lane(alone, track, role) == lane(drawn, track, role) == lane(drawn, track + 2, role), role


def test_names_are_each_runs_own() -> None:
    """B's kernels and collectives have B's names."""
    a, b = job(ranks=1), job(ranks=1, seed=1)
    other = replace(b.timelines[0], names=tuple(f"other {name}" for name in b.timelines[0].names))
    drawn = paired_chart(align_steps(run_steps(a), run_steps(Run("runs/b", (other,)))))

    for one in drawn.lanes:
        if one.role in (Role.COMPUTE, Role.COLLECTIVES):
            texts = [drawn.names[i] if one.role is Role.COMPUTE else drawn.collectives[i][0] for i in one.name.tolist()]
            assert {one.track == 1} == {text.startswith("other ") for text in texts}


@pytest.mark.heavy
@needs_real_traces
def test_ranks_have_their_roles_and_gaps_their_names_in_both_runs() -> None:
    """As on a page of one run: who held others up, and what filled the gaps, which lie in idle time at their place."""
    runs = [open_run([real(name)]) for name in ("straggler_v100_4ranks", "dlrm_v100_4ranks")]
    drawn, data = paired_scene(align_steps(run_steps(runs[0]), run_steps(runs[1])))
    alone = [run_data(run, chart(run)) for run in runs]

    assert {track + 4 * i: why for i, one in enumerate(alone) for track, why in one["why"].items()} == data["why"]
    gaps = data["gaps"]
    for track in range(8):
        found, own = gaps["tracks"][str(track)], alone[track // 4]["gaps"]
        named = {(e - s, own["texts"][text], ns) for s, e, text, ns in own["tracks"][str(track % 4)]}
        assert len(found) > 0.8 * len(named)
        assert {(e - s, gaps["texts"][text], ns) for s, e, text, ns in found} <= named
        idle = lane(drawn, track, Role.IDLE)
        assert all(sum(d for s, d, _ in idle if begin <= s < end) == end - begin for begin, end, *_ in found)


def test_the_scene_names_the_runs() -> None:
    """Strips and groups have the run's name, tracks its letter; the axis ends where the longer run does."""
    a, b = job(path="runs/naive", ranks=1), job(path="runs/inter", ranks=2, seed=1, factors={"exposed": 2.0})
    aligned = align_steps(run_steps(a), run_steps(b))
    _, data = paired_scene(aligned)

    assert ["A · rank 0 · GPU 0", "B · rank 0 · GPU 0", "B · rank 1 · GPU 1"] == [t["label"] for t in data["tracks"]]
    assert ["naive", "inter"] == [strip["title"] for strip in data["strips"]]
    assert [("A · naive", [0]), ("B · inter", [1, 2])] == [(g["label"], g["tracks"]) for g in data["groups"]]
    assert aligned.slots_ns.tolist() == data["slots"]
    assert data["end"] == data["slots"][-1]
    assert {(0, "B")} == {(one["strip"], one["who"]) for one in data["freed"]}
    assert all(one["ns"] < 0 for one in data["freed"])
    assert np.mean([one["ns"] for one in data["freed"]]) == pytest.approx(aligned.saved_ns())
    assert [one.mean_ns.tolist() for one in aligned.runs] == [strip["ns"] for strip in data["strips"]]


@pytest.mark.heavy
def test_several_runs_share_an_axis() -> None:
    """Each of three is the second of a pair with A; steps are as long as in the slowest, and names stay own."""
    factors = {"exposed": 0.2, "idle": 0.5}
    runs = [job(4), job(3, seed=1, factors=factors, path="runs/b"), job(5, ranks=3, seed=2, path="runs/c")]
    pairs = align_runs(runs)
    drawn, data = paired_scene(*pairs)

    assert [("A", "B"), ("A", "C")] == [pair.names for pair in pairs]
    lengths = [run_steps(run).length_ns[:3] for run in runs]
    assert np.diff(pairs[0].slots_ns).tolist() == np.max(lengths, axis=0).tolist()
    assert ["A", "A", "B", "B", "C", "C", "C"] == [track.run for track in drawn.tracks]
    assert [run.splits[-1].figures["forward_ns"][:3].sum() for run in runs] == [
        sum(d for _, d, part in lane(drawn, track, Role.PHASES) if part == Part.FORWARD) for track in (1, 3, 6)
    ]
    assert {1, 2} >= {one["strip"] for one in data["freed"]}
    said = [time_saved_sentence(pair) for pair in pairs]
    assert all(f"{letter} " in text for letter, text in zip("BC", said, strict=True))
    page = pair_page.document(*runs)
    assert all(str(Markup.escape(text)) in page for text in said)


@pytest.mark.heavy
def test_steps_of_a_served_page_are_pages() -> None:
    """Those with these numbers; others, and what is no list of numbers, are refused."""
    pages = StepPages(job(4))
    drawn = pages("4,6") or b""

    assert [None] * 4 == [pages(text) for text in ("1", "1,x", "1,2/3", ",".join("123456789"))]
    assert all(f'"label":"step {number}"' in drawn.decode() for number in (4, 6))
    assert "In the step drawn, step 6 takes" in drawn.decode()
    assert b"<p>runs/job: no step has a number 97" in (pages("4,97") or b"")


# The page of two runs on one axis, in a browser.


PAYLOAD = "</script><script>PWN(1)</script><img src=x onerror=PWN(2)>\"'{{7*7}}\u202e"


@pytest.fixture(scope="module")
def runs() -> tuple[Run, Run]:
    faster = {"exposed": 0.2, "idle": 0.5}
    return job(4, path="runs/naive"), job(5, ranks=3, seed=1, factors=faster, path="runs/interleaved")


@pytest.fixture(scope="module")
def file(runs: tuple[Run, Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "against.html"
    path.write_text(pair_page.document(*runs), encoding="utf-8")
    return path


def shown_bars(page: Page) -> list[dict[int, float]]:
    """Read the bar of each run's line: ns by category."""
    return [
        {int(category): float(ns) for category, ns in bar}
        for bar in page.eval_on_selector_all(
            "#summary .bar",
            "bars => bars.map((bar) => [...bar.children].map((s) => [s.dataset.category, s.dataset.ns]))",
        )
    ]


def expected(run: Run, step: int) -> dict[int, int]:
    """Sum one step over the ranks, without parts that are too small for the bar."""
    wall = sum(int(split.figures["wall_ns"][step]) for split in run.splits)
    parts = {int(part): sum(int(s.figures[name][step]) for s in run.splits) for part, name in SHARE_FIGURES.items()}
    return {part: ns for part, ns in parts.items() if ns >= 0.0005 * wall}


@pytest.mark.slow
@browser_test
def test_figures_are_the_splits_in_any_window(browser: Browser, file: Path, runs: tuple[Run, Run]) -> None:
    """In the window of a pair, to which ] and [ lead, each run's line has its own step and none of the saved time; in
    any other its sum is the time of the window inside the steps. F shows the whole run. Saved time is green in B's
    rows, not in A's, and the sentence is above the chart."""
    found = compare(*runs)
    aligned = align_steps(run_steps(runs[0]), run_steps(runs[1]), comparison=found)
    slots, gap = aligned.slots_ns.tolist(), aligned.time_saved()[0]
    windows = [(gap.from_ns - 3_000_000, gap.to_ns + 2_000_000), (gap.from_ns - 900, gap.from_ns + 700), (5e6, 5.001e6)]
    with open_page(browser, file) as (page, errors):
        settle(page)
        whole = visible_range(page)
        for step, (begin, stop) in enumerate(pairwise(slots)):
            show(page, begin, stop)
            assert [expected(run, step) for run in runs] == shown_bars(page)
        for begin, stop in windows:
            show(page, begin, stop)
            start, end = visible_range(page)
            sums = page.eval_on_selector_all("#summary .bar", _SUMS)
            for which, (one, ns) in enumerate(zip(aligned.runs, sums, strict=True)):
                begins, ends = (times + aligned.shifts(which) for times in (one.start_ns, one.end_ns))
                inside = (ends.clip(start, end) - begins.clip(start, end)).clip(0).sum()
                assert inside == pytest.approx(ns, rel=1e-3, abs=2)
        page.keyboard.press("f")
        for key, step in zip("]]]]][", (0, 1, 2, 3, 3, 2), strict=True):
            page.keyboard.press(key)
            settle(page)
            start, end = visible_range(page)
            margin = 0.042 * (slots[step + 1] - slots[step])
            assert slots[step] - margin <= start <= slots[step]
            assert slots[step + 1] <= end <= slots[step + 1] + margin
        page.keyboard.press("f")
        settle(page)
        assert whole == visible_range(page)

        show(page, gap.from_ns, gap.to_ns)
        pixels = page.evaluate(_TINTS)
        assert [found.summary(), time_saved_sentence(aligned)] == page.locator(".answer").all_text_contents()
        assert 0 == pixels["A"] < 0.95 < pixels["B"]
        assert "paired by order" in (page.locator("#notes").text_content() or "")
        assert [] == [error for error in errors if "willReadFrequently" not in error]


_SUMS = "bars => bars.map((bar) => [...bar.children].reduce((sum, one) => sum + Number(one.dataset.ns), 0))"


_TINTS = """(() => {
  const { main, scene, stage } = dptrace, { canvas } = main;
  const context = canvas.getContext("2d"), scale = canvas.width / main.frame().width;
  const share = (track) => {
    const { y, h } = stage.blocks.find((block) => block.track === track);
    const { data } = context.getImageData(4, y * scale, canvas.width - 8, h * scale);
    let green = 0;
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] < 60 && data[i + 1] > data[i + 2] + 10) green++;
    return green / (data.length / 4);
  };
  return { A: share(0), B: share(scene.strips[1].tracks[1]) };
})()"""


def groups_of_kernels(page: Page) -> set[tuple[str, ...]]:
    """Return which runs or steps have a row of a kernel in the panel of a range, or of their total."""
    page.keyboard.press("t")
    page.locator("#card .tabs button", has_text="Kernels").click()
    settle(page)
    assert "sum over all 2 GPUs of each step" in page.locator("#card .quiet").first.inner_text()
    read = "rows => rows.map((row) => [...row.cells].map((cell) => cell.innerText))"
    rows = page.eval_on_selector_all("#card tbody tr", read)
    long = "link => { link.textContent = 'kernel_'.repeat(12); return link.scrollHeight <= link.clientHeight; }"
    assert page.locator("#card tbody .link").first.evaluate(long), "a name is cut"
    page.keyboard.press("Escape")
    return {tuple(sorted(group for name, group, *_ in rows if name == one)) for one, *_ in rows}


@pytest.mark.slow
@browser_test
def test_hostile_names_of_runs_are_text(browser: Browser, tmp_path: Path) -> None:
    """In paths, titles and notes: nothing is executed or added to the page."""
    runs = [job(2, seed=seed, path=PAYLOAD, metadata={"mode": PAYLOAD}, notes=(PAYLOAD,)) for seed in (0, 1)]
    path = tmp_path / "hostile.html"
    path.write_text(pair_page.document(runs[0], runs[1]), encoding="utf-8")
    with open_page(browser, path, before="globalThis.PWN = (what) => console.error('ran: ' + what);") as (page, errors):
        settle(page)

        assert [] == errors
        assert 0 == page.locator("img").count()


@pytest.mark.slow
@browser_test
def test_waits_that_only_one_run_knows_are_not_zero_in_the_other(browser: Browser, tmp_path: Path) -> None:
    """The line of a run of which a rank is missing says that its waits are unknown, and so do its tables."""
    path = tmp_path / "unknown.html"
    path.write_text(pair_page.document(late_run(30, 70), late_run(30, size=2)), encoding="utf-8")
    with open_page(browser, path) as (page, errors):
        settle(page)
        labels = page.locator("#summary .indicator span").all_text_contents()
        assert ["waiting for other ranks", "waiting unknown"] == [label for label in labels if "waiting" in label]
        page.locator(".tools #tables").click()
        settle(page)
        rows = [row.locator("th, td").all_text_contents() for row in page.locator("#card tr").all()]
        assert ["unknown"] == [row[-1] for row in rows if row and "Waiting for other ranks" in row[0]]
        assert ["unknown"] == [row[3] for row in rows if row and row[0].startswith("B · rank")]
        assert [] == errors


@pytest.mark.slow
def test_both_alignments_draw(runs: tuple[Run, Run]) -> None:
    """Each has its own sentence about the saved time."""
    for by_step in (True, False):
        page: Any = pair_page.document(*runs, by_step=by_step)

        aligned = align_steps(run_steps(runs[0]), run_steps(runs[1]), by_step, compare(*runs))
        assert time_saved_sentence(aligned).replace("'", "&#39;") in page, by_step
        assert by_step == ('"slots":' in page), by_step


def test_a_run_without_steps_is_refused(runs: tuple[Run, Run]) -> None:
    """The error names the run."""
    with pytest.raises(DptraceError, match="runs/job: there is no step"):
        pair_page.document(runs[0], run_of([TimelineBuilder(0, bounds=()).build()]))


@pytest.mark.heavy
def test_differences_are_listed_above(runs: tuple[Run, Run]) -> None:
    """Runs of different work are not compared."""
    page = pair_page.document(*runs)
    other = pair_page.document(job(metadata={"model": "small"}), job(seed=1, metadata={"model": "large"}))

    assert f"A had {runs[0].world_size} ranks, B {runs[1].world_size}." in page.split('class="answer"')[0]
    assert "B saves" in page
    assert '<p class="answer quiet">Not compared: A trained the model small, B large.' in other
    assert '"freed":[]' in other


@pytest.mark.heavy
def test_a_prediction_has_its_own_verdict(runs: tuple[Run, Run]) -> None:
    """Its sentences stand above the chart, as text, instead of a comparison of two recordings."""
    shown = pair_page.document(*runs, verdict=("With compute 2×: 1 ms a step", PAYLOAD))

    assert '<p class="answer">With compute 2×: 1 ms a step</p>' in shown
    assert compare(*runs, with_kernels=False).summary() not in shown
    assert PAYLOAD not in shown


def loaded_again(page: Page, act: Callable[[], None]) -> None:
    """Do what loads the page again, and wait until it is drawn."""
    with page.expect_event("load", timeout=1000 * PATIENCE_S):
        act()
    page.locator("html[data-ready='1']").wait_for(state="attached", timeout=1000 * PATIENCE_S)
    settle(page)


@pytest.mark.slow
@needs_real_traces
@browser_test
def test_waits_of_a_step_are_bounds_only_where_it_lacks_a_rank(browser: Browser, tmp_path: Path) -> None:
    """Rank 2 misses a collective of step 4 alone: step 6 has all its waits, beside it and in the whole run."""
    path = tmp_path / "page.html"
    path.write_text(document(open_run([real("straggler_v100_4ranks")])), encoding="utf-8")
    label = "#summary [data-key=waiting] span"
    with open_page(browser, path) as (page, errors):
        settle(page)
        assert page.locator(label).all_text_contents() == ["waiting for other ranks, at least"]
        page.keyboard.press("]")
        page.keyboard.press("]")
        page.keyboard.press("]")
        settle(page)
        assert page.locator(label).all_text_contents() == ["waiting for other ranks"]
        loaded_again(page, lambda: page.evaluate("location.hash = '#compare=4,6'"))
        assert page.locator(label).all_text_contents() == [
            "waiting for other ranks, at least",
            "waiting for other ranks",
        ]
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_steps_are_compared_by_three_clicks(browser: Browser, tmp_path: Path) -> None:
    """Each chosen step begins at 0 and has its own figures; a button leads to the whole run, as does a link to steps
    that do not exist."""
    run, path = job(5, first=0.5, noise=0.1), tmp_path / "page.html"
    path.write_text(document(run), encoding="utf-8")
    with open_page(browser, path) as (page, errors):
        settle(page)
        whole = visible_range(page)
        page.locator("#compare").click()
        page.locator("#card .link", has_text="step 4").click()
        loaded_again(page, page.locator("#card .link", has_text="step 6").click)
        assert "#compare=4,6" == page.evaluate("location.hash")
        assert [expected(run, 0), expected(run, 2)] == shown_bars(page)
        tracks = page.evaluate("dptrace.scene.tracks.map(({ label, bounds }) => [label.split(' · ')[0], bounds[0]])")
        assert ["step 4", "step 4", "step 6", "step 6"] == [label for label, _ in tracks]
        assert [0, 0] == [min(begin for label, begin in tracks if label == step) for step in ("step 4", "step 6")]
        assert {("step 4", "step 6")} == groups_of_kernels(page)
        (longer,) = page.evaluate("dptrace.scene.freed")
        assert (0, "step 6") == (longer["strip"], longer["who"])
        assert {} == page.evaluate("dptrace.scene.why")
        size = page.viewport_size
        page.set_viewport_size({"width": 420, "height": 900})
        settle(page)
        assert page.locator("#names .track").first.inner_text().startswith("4 · rank 0")
        page.set_viewport_size(size or {"width": 1280, "height": 800})
        page.locator("#find").fill("aten::cat")
        page.locator("#card", has_text="not on a page that compares").wait_for()
        assert "kernel" in page.locator("#found").inner_text()
        page.locator("#find").fill("")
        page.locator("#compare").click()
        lengths = page.locator("#card tr:has([aria-pressed=true]) td:last-child").all_text_contents()
        assert lengths == page.locator("#summary [data-key=step] b").all_text_contents()
        loaded_again(page, page.locator("#card .chip").click)
        assert whole == visible_range(page)
        page.evaluate("location.hash = '#compare=1,97'")
        settle(page)
        assert page.evaluate("!dptrace.scene.compared")
        assert [] == errors

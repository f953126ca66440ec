"""The page of real runs against the analysis: random labels, tooltips, figures and pixel columns."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas
import pytest

import dptrace
from dptrace.analysis.cross_rank.ddp_buckets import call_names
from dptrace.analysis.findings.finding import top_findings
from dptrace.analysis.kernels.names import short_names
from dptrace.analysis.per_gpu.split import FIGURE_WORDS, PART_LABELS, Part, idle, partition
from dptrace.core.intervals import Int64, IntervalSet, covered, subtract, union
from dptrace.core.units import byte_size, duration
from dptrace.replay.findings import findings_of
from dptrace.run.notable_ranks import middle_step_of
from dptrace.run.run import Run
from dptrace.timeline.model import main_activity
from dptrace.viewers.base.svg import text_width
from dptrace.viewers.base.table import GAIN_UNKNOWN
from dptrace.viewers.base.theme import IDLE
from dptrace.viewers.gantt.chart import WAITING, Chart, Role, chart
from dptrace.viewers.gantt.page import document as gantt
from dptrace.viewers.pages.gantt_svg import figure_svg, svg_layout
from tests.support.browser import browser_test, open_page
from tests.support.gantt_page import SHARE_FIGURES, at, settle, show, shown_figures, tip
from tests.support.real_traces import needs_real_traces, real
from tests.viewers.gantt.page.test_truth import check, only_raster
from tests.viewers.gantt.tiles.test_served_page import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

QUICK = "straggler_v100_4ranks"
IN_A_FILE = [
    "dlrm_v100_4ranks",
    "sharded_h100_8ranks",
    "odd/rocm_mi250_tiny_train.json.gz",
]
SERVED = [
    "ddp_a100_rank0of2",
    "ddp_mi300_rank0of8",
    "compute/h100_qwen_0.5b",
    "odd/gloo_cpu_rank34of300.json.gz",
]
HOVERS, VIEWS, LABELS, LEAST = 3, 30, 300, 20
"""Tooltips of each kind, views whose labels are compared, labels of them at most, and values of a run at least."""
SIZE = (1440, 1100)
"""Of the window; the rows of eight GPUs are in it without scrolling the page."""


BESIDE_WAITING = {
    "Exposed communication": "Exposed",
    "Exposed transfer": "Transfer",
    "Exposed transfer, at most": "Transfer, at most",
}
"""What a label says for what the legend says of exposed communication that is not drawn as waiting."""

SPY = """(views) => {
    // Each label's text, track, role, begin and end in time; on a host's row also the calls at both.
    const { main, picture, stage, interactions } = dptrace, found = [];
    const { prototype } = CanvasRenderingContext2D, { fillText } = prototype;
    for (const [from, to] of views) {
        main.show(from, to);
        const pixel = (to - from) / main.frame().width;
        prototype.fillText = function (text, x, y) {
            const row = stage.visible.find((one) => y > one.y && y < one.y + one.h);
            const ends = [x, x + this.measureText(text).width].map((end) => from + end * pixel);
            const under = (time) => row.host.calls.nameOf(interactions.host.panel.callAt(row, { y, time, pixel: 0 }));
            if (row) found.push([text, row.track, row.role, ...ends, row.host ? ends.map(under) : null]);
        };
        picture.draw(true);
        prototype.fillText = fillText;
    }
    return found;
}"""


class Truth:
    """The figures of a run by what a label stands on; times are since the chart's origin."""

    def __init__(self, run: Run) -> None:
        self.drawn, cross_rank = chart(run), run.cross_rank
        self.run, self.waits = run, cross_rank.exposed_waits
        self.names = call_names(run.timelines, cross_rank.matches, cross_rank.names)
        self.shorts = short_names(self.drawn.names)
        self.parts = cache(self._parts)
        self.idle = cache(lambda track: idle(run.timelines[track]).sets)

    def of(self, text: str, track: int, role: str, begin: float, end: float, calls: list[str] | None) -> bool:
        """Return whether a label in a row, between two times, is true of the block that it lies in from end to end."""
        if role == "host":
            assert calls is not None
            return calls[0] == calls[1] and text.removesuffix("…").removeprefix("evaluate:").strip() in calls[0]
        if role == "compute":
            return self._kernel(text, track, begin, end)
        return (self._phase if role == "phases" else self._call)(text, track, begin, end)

    def _phase(self, text: str, track: int, begin: float, end: float) -> bool:
        timeline, (origin,) = self.run.timelines[track], self.drawn.axes[track].recorded(0)
        time_of, wait = self.parts(track), self.waits[track]
        labels = next(one for one in self.drawn.lanes if one.track == track and one.role is Role.PHASE_LABELS)
        ends = labels.start_ns + labels.duration_ns
        spans = np.flatnonzero((labels.start_ns <= begin) & (end <= ends)).tolist()
        # A label names what fills its place, but for the slits that a text may cross.
        under = np.round([begin, end]).astype(np.int64) + origin
        filled = {name for name, mine in time_of.items() if np.diff(covered(mine, under)) >= 0.94 * np.diff(under)}
        said = self._gap(track, *time_of["Idle"], int(under[0])) if "Idle" in filled else set()
        for span in spans:
            bounds = np.array([labels.start_ns[span], ends[span]]) + origin
            times = {name: int(np.diff(covered(time_of[name], bounds))[0]) for name in filled - {"Idle"}}
            said |= set(times) | {f"{name} {duration(ns)}" for name, ns in times.items()}
            inside = (timeline.start_ns[timeline.collective >= 0] < bounds[1]) & (wait.calls.exposed_ns > 0)
            for rank in set(wait.calls.waits_for[inside].tolist()) if "Waiting" in filled else ():
                said |= {f"Waiting for rank {rank}", f"Waiting for rank {rank} · {duration(times['Waiting'])}"}
        return any(_is_cut(text, one) for one in said)

    def _parts(self, track: int) -> dict[str, IntervalSet]:
        """The times of a GPU by the word that a label has for them."""
        pieces, wait = partition(self.run.timelines[track]), self.waits[track]
        time_of: dict[str, IntervalSet] = {"Waiting": wait.intervals}
        for part in Part:
            mine: IntervalSet = union(pieces.start_ns[pieces.part == part], pieces.end_ns[pieces.part == part])
            mine = subtract(mine, wait.intervals) if part == Part.EXPOSED_COMM else mine
            named = {Part.EXPOSED_MEMORY: "Memory", Part.EXPOSED_COMM: BESIDE_WAITING[self.drawn.exposed]}
            time_of[named.get(part, PART_LABELS[part].split()[0])] = mine
        return time_of

    def _gap(self, track: int, starts: Int64, ends: Int64, time: int) -> set[str]:
        """What the host did most in the idle gap at a time; where it was in time, the device's reason."""
        place = int(np.searchsorted(starts, time, "right")) - 1
        _, what, ns = main_activity(self.run.timelines[track].host.spent(int(starts[place]), int(ends[place])))
        texts = {what, what.split(" in ")[0]}
        for cause in ("launch_latency_ns", "waiting_ns", "bubble_ns", "unexplained_ns"):
            within = int(np.diff(covered(self.idle(track)[cause], np.array([starts[place], ends[place]])))[0])
            if 2 * within > ends[place] - starts[place]:
                texts, ns = {FIGURE_WORDS[cause], f"{FIGURE_WORDS[cause]} for another stream"}, within
                texts |= {"not explained by what is recorded"} if cause == "unexplained_ns" else set()
        return texts | {f"{one} · {duration(ns)}" for one in texts}

    def _kernel(self, text: str, track: int, begin: float, end: float) -> bool:
        """A kernel around both ends, none of the others that begins under the text, and a part of its name."""
        lane = next(one for one in self.drawn.lanes if one.track == track and one.role is Role.COMPUTE)
        around = (lane.start_ns <= begin) & (end <= lane.start_ns + lane.duration_ns)
        crossed = (lane.start_ns > begin) & (lane.start_ns < end)
        names = [self.drawn.names[int(name)] for name in lane.name[around]]
        first = text.split("…")[0].strip()
        return not crossed.any() and any(first in name or first in self.shorts[name] for name in names)

    def _call(self, text: str, track: int, begin: float, end: float) -> bool:
        timeline, calls = self.run.timelines[track], self.waits[track].calls
        comm = np.flatnonzero(timeline.collective >= 0)
        first, last = self.drawn.axes[track].recorded(round(begin), round(end))
        for call in np.flatnonzero((timeline.start_ns[comm] <= first) & (last < timeline.end_ns[comm])).tolist():
            known = timeline.collectives[timeline.collective[comm[call]]]
            name = self.names[track][call] or known.kind
            said = {name, f"{name} · {byte_size(known.bytes)}"}
            wait, rank = int(calls.wait_ns[call]), int(calls.waits_for[call])
            whom = f"waiting for rank {rank}" if rank >= 0 else "waiting for other ranks"
            if wait > 0 and last < timeline.start_ns[comm[call]] + wait:
                waits = {whom, "waiting", f"{whom} · {duration(wait)}", f"waiting · {duration(wait)}", duration(wait)}
                said |= waits | {f"{name} · {one}" for one in waits}
            if text in said:
                return True
        return False


def _is_cut(text: str, whole: str) -> bool:
    """Return whether a text is another one, or its beginning and its end."""
    head, mark, tail = text.partition("…")
    return whole == text or bool(mark and whole.startswith(head) and whole.endswith(tail))


class Checked:
    """An open page, and how many of its values were compared."""

    def __init__(self, page: Page, run: dptrace.Run, truth: Truth, seed: int) -> None:
        self.page, self.run, self.truth, self.drawn = page, run, truth, truth.drawn
        self.draw, self.values = np.random.default_rng(seed), 0
        self.tracks = {(track.rank, track.device): i for i, track in enumerate(self.drawn.tracks)}

    def figures(self) -> None:
        """The summary and the findings, which hold for the whole run."""
        shown = shown_figures(self.page)
        steps: Any = self.run.steps()
        wait = int(steps["exposed_wait_ns"].fillna(0).sum())
        for name in set(SHARE_FIGURES.values()) & set(shown):
            assert int(steps[name].sum()) - (wait if name == "exposed_comm_ns" else 0) == shown[name], name
            self.values += 1
        assert wait == shown.get("exposed_wait_ns", 0)
        assert int(steps["overlapped_comm_ns"].sum()) == shown["overlapped"]
        shown_with = self.page.locator("#findings button b").all_inner_texts()
        listed = top_findings(findings_of(self.run))
        figures = [duration(finding.figure[0]) if finding.has_gain else GAIN_UNKNOWN for finding in listed]
        assert figures[: len(shown_with)] == shown_with
        self.values += 2 + len(shown_with)

    def since(self, rank: int, device: int, *times: int) -> list[int]:
        """Return times of a GPU's trace on the page."""
        found: list[int] = self.drawn.axes[self.tracks[rank, device]].since(np.array(times)).tolist()
        return found

    def hover(self, rank: int, device: int, role: str, start: float, end: float) -> str:
        """Return the tooltip in the middle of an interval, which then takes a twentieth of the view."""
        track, middle = self.tracks[rank, device], (start + end) / 2
        half = max(10 * (end - start), 2000)
        self.page.evaluate("([track, role]) => dptrace.stage.reveal(track, role)", [track, role])
        show(self.page, middle - half, middle + half)
        self.page.mouse.move(*at(self.page, role, middle, track))
        self.values += 1
        return tip(self.page)

    def phases(self) -> None:
        """A tooltip in a phase tells its time in the step, which is the step's figure."""
        lanes = [lane for lane in self.drawn.lanes if lane.role is Role.PHASES and len(lane)]
        steps = {(row.rank, row.device, row.step): row for row in self.run.steps().itertuples()}
        for _ in range(HOVERS):
            lane = lanes[self.draw.integers(len(lanes))]
            track = self.drawn.tracks[lane.track]
            inside = (lane.start_ns >= track.bounds_ns[0]) & (lane.start_ns + lane.duration_ns < track.bounds_ns[-1])
            i = self.draw.choice(np.flatnonzero(inside & (lane.duration_ns > 0)))
            start, category = int(lane.start_ns[i]), int(lane.category[i])
            text = self.hover(track.rank, track.device, "phases", start, start + int(lane.duration_ns[i]))
            step = track.steps[int(np.searchsorted(track.bounds_ns, start, "right")) - 1]
            row: Any = steps[track.rank, track.device, step]
            told = category in (WAITING, Part.EXPOSED_COMM) and not pandas.isna(row.exposed_wait_ns)
            wait = int(row.exposed_wait_ns) if told else 0
            known = wait if category == WAITING else getattr(row, SHARE_FIGURES[Part(category)])
            known -= wait if category == Part.EXPOSED_COMM else 0
            assert f"{step}: {duration(known)}, " in text
            labels = {WAITING: "Waiting", int(Part.EXPOSED_COMM): self.drawn.exposed}
            assert (labels.get(category) or PART_LABELS[Part(category)]) in text

    def kernels(self) -> None:
        """A tooltip on a kernel tells name, time, phase and stream of run.kernels(), and the step that counts it."""
        frame: Any = self.run.kernels()
        frame = frame[(frame["kind"] == "compute") & frame["step"].notna() & (frame["end_ns"] > frame["start_ns"])]
        for i in self.draw.choice(len(frame), min(HOVERS, len(frame)), replace=False):
            row, of = frame.iloc[i], frame[(frame["rank"] == frame.iloc[i]["rank"])]
            middle = (row.start_ns + row.end_ns) // 2
            under = of[(of["start_ns"] <= middle) & (of["end_ns"] > middle)]
            lasts = int((under["end_ns"] - under["start_ns"]).min())
            times = self.since(row["rank"], row.device, row.start_ns, row.end_ns)
            text = self.hover(row["rank"], row.device, "compute", *times)
            shortest = under[under["end_ns"] - under["start_ns"] == lasts]
            assert f"{duration(lasts)} · starts" in text
            assert any(self._tells(one, text) for one in shortest.itertuples()), text

    def _tells(self, row: Any, text: str) -> bool:
        track = self.drawn.tracks[self.tracks[row.rank, row.device]]
        # Not always the step that launched it: a step is as long as its device is busy with it.
        (start,) = self.since(row.rank, row.device, row.start_ns)
        window = np.searchsorted(track.bounds_ns, start, "right") - 1
        words = (row.phase.capitalize(), track.steps[int(window)], f" {row.lane}")
        names = [" ".join(line.split()) for line in text.splitlines()[:2]]
        return " ".join(row.name.split()) in names and all(word in text for word in words)

    def collectives(self) -> None:
        """A tooltip on a collective tells exposed, overlapped and waiting time of the two tables."""
        frame: Any = self.run.collectives()
        matched: Any = self.run.matched_collectives()
        waits = {(row.rank, row.start_ns): row.wait_ns for row in matched.dropna(subset="wait_ns").itertuples()}
        for i in self.draw.choice(len(frame), min(HOVERS, len(frame)), replace=False):
            row, of = frame.iloc[i], frame[frame["rank"] == frame.iloc[i]["rank"]]
            start, end = self.since(row["rank"], row.device, row.start_ns, row.end_ns)
            middle = (row.start_ns + row.end_ns) // 2
            under = of[(of["start_ns"] <= middle) & (of["end_ns"] > middle)]
            if len(under) != 1 or start < 0 or end > self.drawn.end_ns:
                continue
            text = self.hover(row["rank"], row.device, "exposure", start, end)
            assert f"exposed {duration(row.exposed_ns)} " in text
            assert f"overlapped {duration(row.overlapped_ns)}" in text
            wait = waits.get((row["rank"], row.start_ns), 0)
            assert ("waiting for" in text) == (wait > 0), text
            assert wait == 0 or duration(wait) in text

    def labels(self) -> None:
        """Labels in random views: each is true, and lies in its own block from its first letter to its last."""
        widths = self.drawn.end_ns / 2.0 ** self.draw.integers(0, 7, VIEWS)
        starts = self.draw.random(VIEWS) * (self.drawn.end_ns - widths)
        views = [[float(a), float(a + w)] for a, w in zip(starts, widths, strict=True)]
        found = [one for one in self.page.evaluate(SPY, views) if one[2] in ("phases", "compute", "exposure", "host")]
        chosen = [found[i] for i in self.draw.permutation(len(found))[:LABELS]]
        assert [] == [one for one in chosen if not one[0].startswith("nccl") and not self.truth.of(*one)]
        self.values += len(chosen)

    def columns(self, drawn: Chart, most: float) -> None:
        """Pixel columns of a random GPU, in the whole run and in a part of it, waiting among them.

        Args:
            most: device pixels that a category may be off.
        """
        only_raster(self.page)
        track = int(self.draw.integers(len(drawn.tracks)))
        low = float(self.draw.random() * 0.8) * drawn.end_ns
        for start, end in ((0, drawn.end_ns), (low, low + 0.2 * drawn.end_ns)):
            self.page.evaluate("([track, role]) => dptrace.stage.reveal(track, role)", [track, "compute"])
            show(self.page, start, end)
            for role in (Role.PHASES, Role.COMPUTE, Role.EXPOSURE):
                if drawn.has(role):
                    check(self.page, drawn, role, track, most)


@pytest.mark.slow
@needs_real_traces
@browser_test
@pytest.mark.parametrize("name", [QUICK, *IN_A_FILE])
def test_a_page_in_one_file_shows_what_the_analysis_found(browser: Browser, name: str, tmp_path: Path) -> None:
    """At least 20 values of each run, and pixel columns, at one or two device pixels per pixel."""
    run, path, scale = dptrace.open(real(name)), tmp_path / "page.html", 1 + len(name) % 2
    truth = Truth(run)
    path.write_text(gantt.document(run, truth.drawn), encoding="utf-8")
    with open_page(browser, path, SIZE, scale=scale) as (page, errors):
        settle(page)
        checked = Checked(page, run, truth, seed=5)
        for look in (checked.figures, checked.phases, checked.kernels, checked.collectives, checked.labels):
            look()
        checked.columns(truth.drawn, 1.01 * scale)
        assert checked.values >= LEAST
        assert [] == [error for error in errors if "willReadFrequently" not in error]


@needs_real_traces
@browser_test
@pytest.mark.parametrize("name", [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SERVED)])
def test_a_served_page_draws_what_the_analysis_found(browser: Browser, name: str) -> None:
    """Figures, findings and pixel columns, at the other resolution; shares travel in a byte each."""
    run, scale = dptrace.open(real(name)), 2 - len(name) % 2
    truth = Truth(run)
    with served(run) as url, open_page(browser, url, SIZE, scale=scale) as (page, errors):
        settle(page)
        checked = Checked(page, run, truth, seed=6)
        checked.figures()
        checked.columns(truth.drawn, 1.25 * scale)
        assert [] == [error for error in errors if "willReadFrequently" not in error]


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize("name", [QUICK, *IN_A_FILE, *SERVED])
def test_the_labels_of_a_figure_follow_the_same_rules(name: str) -> None:
    """Each is true of the block that it lies in from its first letter to its last, in a column and across a page."""
    run = middle_step_of(dptrace.open(real(name)))
    truth, labels = Truth(run), 0
    for width in (420, 1600):
        drawn, where = figure_svg(run, True, True, width), svg_layout(truth.drawn, 0, width)
        first = re.search(rf'y="([\d.]+)" width="[\d.]+" height="[\d.]+" fill="{IDLE}"', drawn.split("<polyline")[-1])
        assert first
        top = float(first[1]) - where.rows[0].y
        per_px = truth.drawn.end_ns / where.width
        for x, y, text in re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*font-size="11"[^>]*>([^<]*)<', drawn):
            row = next(row for row in where.rows if row.y <= float(y) - top < row.y + row.height)
            begin = (float(x) - where.left) * per_px
            role = "phases" if row.role is Role.PHASES else "exposure"
            end = begin + text_width(text, 11) * per_px
            assert text.startswith("nccl") or truth.of(text, row.track, role, begin, end, None), text
            labels += 1
    assert labels or len(run.timelines) < 2

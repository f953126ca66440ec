"""What labels say on real recordings: every time, rank and size on the chart is the analysis' own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import dptrace
from dptrace.analysis.cross_rank.ddp_buckets import call_names
from dptrace.analysis.per_gpu.split import PART_LABELS, Part, partition
from dptrace.core.intervals import IntervalSet, covered, subtract, union
from dptrace.core.units import byte_size, duration
from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import Role, chart
from dptrace.viewers.gantt.page import document as gantt
from tests.support.browser import browser_test, open_page
from tests.support.gantt_page import settle
from tests.support.real_traces import REAL, needs_real_traces

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SPY = """(views) => {
    const { main, picture, stage, scene } = dptrace, { prototype } = CanvasRenderingContext2D, { fillText } = prototype;
    const found = [];
    for (const [from, to] of views) {
        main.show(from, to);
        const width = main.frame().width;
        prototype.fillText = function (text, x, y) {
            const row = stage.visible.find((one) => y > one.y && y < one.y + one.h);
            const half = this.measureText(text).width / 2;
            if (row) found.push([text, row.track, row.role, from + ((x + half) / width) * (to - from)]);
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

    def of(self, text: str, track: int, role: str, time: float) -> bool:
        """Return whether a label in a row is true of what lies at a time."""
        return self._phase(text, track, time) if role == "phases" else self._call(text, track, time)

    def _phase(self, text: str, track: int, time: float) -> bool:
        origin, timeline = self.drawn.origin_ns, self.run.timelines[track]
        labels = next(one for one in self.drawn.lanes if one.track == track and one.role is Role.PHASE_LABELS)
        ends = labels.start_ns + labels.duration_ns
        spans = np.flatnonzero((labels.start_ns <= time) & (time < ends)).tolist()
        pieces, wait = partition(timeline), self.waits[track]
        said: set[str] = set()
        for span in spans:
            bounds = np.array([labels.start_ns[span], ends[span]]) + origin
            times = {"Waiting": int(np.diff(covered(wait.intervals, bounds))[0])}
            for part in Part:
                mine: IntervalSet = union(pieces.start_ns[pieces.part == part], pieces.end_ns[pieces.part == part])
                mine = subtract(mine, wait.intervals) if part == Part.EXPOSED_COMM else mine
                word = "Memory" if part == Part.EXPOSED_MEMORY else PART_LABELS[part].split()[0]
                times[word] = int(np.diff(covered(mine, bounds))[0])
            said |= set(times) | {f"{name} {duration(ns)}" for name, ns in times.items()}
            inside = (timeline.start_ns[timeline.collective >= 0] < bounds[1]) & (wait.calls.exposed_ns > 0)
            for rank in set(wait.calls.waits_for[inside].tolist()):
                said |= {f"Waiting for rank {rank}", f"Waiting for rank {rank} · {duration(times['Waiting'])}"}
        return text in said

    def _call(self, text: str, track: int, time: float) -> bool:
        timeline, calls = self.run.timelines[track], self.waits[track].calls
        comm = np.flatnonzero(timeline.collective >= 0)
        at = time + self.drawn.origin_ns
        for call in np.flatnonzero((timeline.start_ns[comm] <= at) & (at < timeline.end_ns[comm])).tolist():
            known = timeline.collectives[timeline.collective[comm[call]]]
            name = self.names[track][call] or known.kind
            said = {name, f"{name} · {byte_size(known.bytes)}"}
            wait, rank = int(calls.wait_ns[call]), int(calls.waits_for[call])
            whom = f"waiting for rank {rank}" if rank >= 0 else "waiting for other ranks"
            if wait > 0 and at < timeline.start_ns[comm[call]] + wait:
                waits = {whom, "waiting", f"{whom} · {duration(wait)}", f"waiting · {duration(wait)}", duration(wait)}
                said |= waits | {f"{name} · {one}" for one in waits}
            if text in said:
                return True
        return False


@needs_real_traces
@browser_test
@pytest.mark.parametrize("name", ["straggler_v100_4ranks", "sharded_h100_8ranks", "ddp_a100_rank0of2"])
def test_every_label_is_true(browser: Browser, name: str, tmp_path: Path) -> None:
    """In random views of a real run, phases and collectives; no label is left out of the check."""
    run = dptrace.open(REAL / name)
    truth, path = Truth(run), tmp_path / "page.html"
    path.write_text(gantt.document(run, truth.drawn), encoding="utf-8")
    draw = np.random.default_rng(7)
    widths = truth.drawn.end_ns / 2.0 ** draw.integers(0, 7, 24)
    starts = draw.random(24) * (truth.drawn.end_ns - widths)
    views: list[Any] = [[float(a), float(a + w)] for a, w in zip(starts, widths, strict=True)]
    with open_page(browser, path) as (page, errors):
        settle(page)
        labels = [one for one in page.evaluate(SPY, views) if one[2] in ("phases", "exposure")]
        kernels = [text for text, _, role, _ in labels if role == "exposure" and re.match("nccl", text)]

        assert len(labels) > 40
        assert [] == [one for one in labels if one[0] not in kernels and not truth.of(*one)]
        assert [] == errors

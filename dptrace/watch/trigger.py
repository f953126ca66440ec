"""When to capture: a step far beyond the median, a rank that is late again and again, memory that grows, or on request.

The slow step itself cannot be profiled any more: its records say who was late, and the capture shows the next steps.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dptrace.core.units import duration
from dptrace.record.messages import request_path, write_json
from dptrace.record.run_folder import RUN_FILE
from dptrace.record.safety import say
from dptrace.watch.account import Batch
from dptrace.watch.records import STAGES
from dptrace.watch.verdict import Totals

ASKED_FILE = "capture.json"
"""What ``dptrace watch FOLDER --capture N`` writes."""
_FACTOR, _BEYOND_P95 = 2.0, 1.5
"""A step is slow if it takes more than both: times the typical step, and times the 95th percentile."""
_LATE_SHARE, _LATE_STEPS, _LATE_OF = 0.1, 10, 0.3
"""A rank is late in a step by more than this share of a typical one; so many such steps are worth a capture, while they
are at least this share of all."""
_HISTORY = 50
"""Steps before which nothing is unusual."""
_PAUSE_STEPS, _PAUSE_S = 100, 30.0
"""Steps and seconds from one capture to the next."""
_GROWTH, _GROWN_BYTES = 1.2, 256 << 20
"""Factor and bytes by which a rank's memory has grown when it is captured: both, so that small models do not count."""
_ANALYSIS_S = 300.0
"""How long the end of a watch waits for the analyses of its captures."""
DOES = {
    "data": "waited for its data loader",
    "forward": "took longer in forward",
    "backward": "took longer in backward",
    "optimizer": "took longer in the optimizer",
    "other": "took longer between the stages",
}


@dataclass(slots=True)
class Capture:
    """A capture that was asked for."""

    number: int
    why: str
    step: int
    """The step that it was asked after."""
    path: str
    finding: str = ""
    """The first finding of its analysis, and what to do."""
    state: str = "asked for"

    @property
    def sentence(self) -> str:
        """What happened, and what was recorded."""
        found = f"; {self.finding}" if self.finding else ""
        return f"capture {self.why} ({self.state}: {self.path}){found}"


class Trigger:
    """Asks for captures of a watch in *folder*: at most so many by itself, each of so many steps."""

    def __init__(self, folder: Path, most: int, steps: int) -> None:
        self.folder, self._most, self._steps = folder, most, steps
        self.captures: list[Capture] = []
        self.signalled: Path | None = None
        """Where dptrace's launcher notes that it has got SIGUSR2: files ``request-N.json``."""
        self.say: Callable[[str], None] = say
        """Tells that a capture was asked for."""
        self._signals = 0
        self._by_itself = 0
        self._not_before = (0, 0.0)
        self._late = self._late_of = np.zeros(0)
        """In how many steps each rank was late in each stage, of how many, since it was rarely late."""
        self._analyses: dict[int, subprocess.Popen[bytes]] = {}
        self._first_memory: Any = None

    def look(self, batch: Batch | None, totals: Totals) -> None:
        """Look at steps that have just been added."""
        if batch is None or totals.steps < _HISTORY or self._by_itself >= self._most:
            return
        if totals.last_step < self._not_before[0] or time.monotonic() < self._not_before[1]:
            return
        why = self._slow_step(batch, totals) or self._late_again(batch, totals) or self._grown(batch)
        if why:
            self._by_itself += 1
            self._late = self._late_of = np.zeros(0)  # the next capture needs late steps of its own
            self._ask(why, totals.last_step, self._steps)

    def _slow_step(self, batch: Batch, totals: Totals) -> str:
        length = batch.length.max(0)
        at, typical = int(length.argmax()), totals.typical_ns
        # Where one step in twenty takes that long, it is nothing that happens.
        least = max(_FACTOR * typical, _BEYOND_P95 * totals.lengths.quantile(0.95))
        if totals.steps - len(length) < _HISTORY or length[at] < least:
            return ""
        took = f"step {int(batch.steps[at]):,} took {length[at] / typical:.1f} × the median: "
        if batch.late is not None and batch.late[:, at].max() > 0.25 * (length[at] - typical):
            rank, stage = np.unravel_index(int(batch.late[:, at].argmax()), batch.late[:, at].shape)
            return f"{took}rank {batch.ranks[rank]} {DOES[STAGES[stage]]}"
        usual = totals.own.mean(0) / totals.steps
        above = np.median(batch.own[:, at], 0) - usual
        if above.max() > 0.5 * (length[at] - typical):
            return f"{took}all ranks spent {duration(float(above.max()))} more in {STAGES[int(above.argmax())]}"
        if (core := float(batch.core_wait[:, at].max())) > 0.25 * (length[at] - typical):
            return f"{took}a rank waited {duration(core)} for a core, which other processes had"
        return f"{took}no rank was late, so the time was spent in communication"

    def _late_again(self, batch: Batch, totals: Totals) -> str:
        if batch.late is None:
            return ""
        # A rank that waits for a core now and then is late by all of that in some steps, if not on average.
        noise = float(batch.core_wait.mean(1).max())
        late = batch.late > max(2e6, _LATE_SHARE * totals.typical_ns, noise)
        again = late.sum(1)
        if self._late.shape != again.shape:
            self._late, self._late_of = np.zeros(again.shape), np.zeros(again.shape)
        self._late, self._late_of = self._late + again, self._late_of + late.shape[1]
        rare = self._late < _LATE_OF * self._late_of
        self._late[rare] = self._late_of[rare] = 0
        rank, stage = np.unravel_index(int(self._late.argmax()), again.shape)
        count = int(self._late[rank, stage])
        if count < _LATE_STEPS or not again[rank, stage]:
            return ""
        each = duration(float(np.median(batch.late[rank, :, stage][late[rank, :, stage]])))
        return f"rank {batch.ranks[rank]} was late in {count} steps, {each} each: it {DOES[STAGES[stage]]}"

    def _grown(self, batch: Batch) -> str:
        memory = batch.memory[:, -1].astype(float)
        if self._first_memory is None or len(self._first_memory) != len(memory):
            self._first_memory = memory
        grown = memory - self._first_memory
        rank = int(grown.argmax())
        if grown[rank] < _GROWN_BYTES or memory[rank] < _GROWTH * self._first_memory[rank]:
            return ""
        self._first_memory = memory
        return f"the memory of rank {batch.ranks[rank]} has grown by {grown[rank] / 2**20:,.0f} MiB"

    def poll(self, step: int) -> None:
        """Pass on what a user asks for, and analyze what is recorded."""
        asked = self.folder / ASKED_FILE
        with suppress(OSError, ValueError):
            steps = int(json.loads(asked.read_text(encoding="utf-8"))["steps"])
            asked.unlink()
            self._ask("on request", step, steps)
        if self.signalled is not None and request_path(self.signalled, self._signals + 1).exists():
            self._signals += 1
            self._ask("on SIGUSR2", step, self._steps)
        for capture in self.captures:
            if capture.number not in self._analyses and (Path(capture.path) / RUN_FILE).exists():
                capture.state = "recorded"
                self._analyses[capture.number] = _analyze(Path(capture.path))
            self._take_finding(capture)

    def _ask(self, why: str, step: int, steps: int) -> None:
        number = len(self.captures) + 1
        path = self.folder / f"capture{number}"
        try:
            write_json(request_path(self.folder, number), {"kind": "record", "steps": steps})
        except OSError:
            return
        self._not_before = step + _PAUSE_STEPS, time.monotonic() + _PAUSE_S
        self.captures.append(Capture(number, why, step, str(path)))
        self.say(f"dptrace watch: {why}; the next {steps} steps are recorded into {path}.")

    def _take_finding(self, capture: Capture) -> None:
        analysis = self._analyses.get(capture.number)
        if analysis is None or analysis.poll() is None or capture.state == "analyzed":
            return
        capture.state = "analyzed"
        with suppress(OSError, ValueError, KeyError, IndexError):
            content = json.loads((Path(capture.path).with_suffix(".analysis.json")).read_text(encoding="utf-8"))
            first = content["findings"][0]
            capture.finding = f"{first['text']} → {first['advice']}{_doubt(first)}"

    def finish(self) -> None:
        """Wait for captures that are recorded to be analyzed."""
        self.poll(0)
        until = time.monotonic() + _ANALYSIS_S
        for capture in self.captures:
            if capture.number in self._analyses:
                with suppress(subprocess.TimeoutExpired):
                    self._analyses[capture.number].wait(max(0.1, until - time.monotonic()))
                self._take_finding(capture)

    def told(self) -> list[dict[str, Any]]:
        """Return the captures for summary.json."""
        return [asdict(capture) | {"sentence": capture.sentence} for capture in self.captures]


def _doubt(finding: dict[str, Any]) -> str:
    """Return what cannot be told of a finding's gain, as a sentence that follows."""
    gain, low, why = (finding.get(f"gain_{key}") for key in ("ns", "low_ns", "reason"))
    if gain is None or low is None:
        return f" Can't tell what a step would gain without it: {why}" if why else ""
    if low > 0:
        return f" {why}" if why else ""
    return f" Can't tell its gain from noise: {duration(low)} to {duration(finding['gain_high_ns'])} a step."


def request(folder: Path, steps: int) -> None:
    """Ask the job that a folder watches to record so many steps."""
    write_json(folder / ASKED_FILE, {"steps": steps})


def _analyze(run: Path) -> subprocess.Popen[bytes]:
    """Analyze a run in a process of its own, so that reading goes on meanwhile."""
    output = run.with_suffix(".analysis.json")
    command = [sys.executable, "-m", "dptrace", "analyze", str(run), "--json", "-o", str(output)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=run.parent
    )

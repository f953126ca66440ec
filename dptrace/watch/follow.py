"""Read the files of a job's ranks while it runs: lines of progress, captures, and the verdict at the end.

``python -m dptrace.watch.follow SETTINGS PROCESS`` does so for the job whose rank 0 is that process. It is a process
of its own, or a thread of dptrace's launcher: nothing of it runs in a rank.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dptrace.core.units import duration
from dptrace.errors import DptraceError, UsageError
from dptrace.record.messages import write_json
from dptrace.record.processes import is_running
from dptrace.record.safety import say
from dptrace.watch.account import Batch, Merger
from dptrace.watch.page import PAGE_FILE, document
from dptrace.watch.records import STAGES, RankFile, rank_path
from dptrace.watch.trigger import Trigger
from dptrace.watch.verdict import CORE_SHARE_MOVING, SUMMARY_FILE, Totals, lines, summary

_POLL_S = 0.5
"""Between two looks at the files."""
_LINE_S = 10.0
"""Between two lines of progress, where no number of steps is asked for."""
_WRITE_S = 30.0
"""Between two times that summary, page and trends are written, so that little is lost if this process is killed."""
_LINE_STEPS = 100
"""How many of the last steps are kept, in whole batches, and a line is about: to name a rank, half of them at least."""
_PEERS_S = 5.0
"""How long ranks may take to end after the first one."""


class Follower:
    """What is known of a job from its files.

    Args:
        trigger: asks for captures; None to only look on.
    """

    def __init__(self, folder: Path, trigger: Trigger | None = None) -> None:
        self.folder, self.trigger = folder, trigger
        self.merger, self.totals = Merger(folder), Totals(())
        self.recent = deque[Batch]()
        self.listeners: list[Callable[[Batch], None]] = []
        """Called with the steps that are new, such as exporters."""
        self._written = time.monotonic()

    def poll(self) -> bool:
        """Read what is new; return whether there were steps."""
        if self.merger.look():
            self.merger, self.totals = Merger(self.folder), Totals(())
            self.merger.look()
        if not self.merger.is_complete and not self.totals.steps and not self._has_waited():
            return False  # ranks whose files appear a moment later
        new = False
        for batch in self.merger.batches():
            if batch.ranks != self.totals.ranks:
                self.totals = Totals(batch.ranks)
                self.recent.clear()
            new = True
            added = self.totals.add(batch)
            if added is not None:
                self._keep(added)
                for listener in self.listeners:
                    listener(added)
            if self.trigger is not None:
                self.trigger.look(added, self.totals)
        if self.trigger is not None:
            self.trigger.poll(self.totals.last_step)
            if time.monotonic() > self._written + _WRITE_S:
                self.write()
        return new

    def _keep(self, batch: Batch) -> None:
        self.recent.append(batch)
        while sum(len(kept.steps) for kept in self.recent) - len(self.recent[0].steps) >= _LINE_STEPS:
            self.recent.popleft()

    def _has_waited(self) -> bool:
        files = self.merger.files.values()
        return any(time.time_ns() - file.unix_ns > _PEERS_S * 1e9 for file in files) or self.has_ended()

    def has_ended(self) -> bool:
        """Return whether all ranks whose files are here have ended."""
        return bool(self.merger.files) and all(self._rank_ended(file) for file in self.merger.files.values())

    def _rank_ended(self, file: RankFile) -> bool:
        gone = file.host == platform.node() and not is_running(file.process)
        return gone or rank_path(self.folder, file.rank, "ended").exists()

    def lost_ranks(self) -> dict[int, int]:
        """Return the ranks that ended without a word, with their last steps."""
        reached = self.merger.reached
        return {
            rank: reached[rank]
            for rank, file in self.merger.files.items()
            if not rank_path(self.folder, rank, "ended").exists() and self._rank_ended(file)
        }

    def summary(self) -> dict[str, Any]:
        """Return what is known so far."""
        captures = self._captures_told() if self.trigger is None else self.trigger.told()
        lost = {str(rank): step for rank, step in self.lost_ranks().items()}
        content = summary(self.totals, self.merger, captures) | {"lost_ranks": lost}
        reached = self.merger.reached
        if self.has_ended():
            short = [rank for rank, step in reached.items() if step < max(reached.values()) and str(rank) not in lost]
            content["file_notes"] += [f"rank {rank} has no steps after {reached[rank]:,}; others do" for rank in short]
            paths = [rank_path(self.folder, rank, "steps") for rank in range(content["world_size"])]
            absent = [path.name for path in paths if not path.exists()]
            more = f", nor the files of {len(absent) - 1:,} more ranks" if len(absent) > 1 else ""
            content["file_notes"] += [f"{absent[0]} is not here{more}"] if absent else []
        return content

    def _captures_told(self) -> list[dict[str, Any]]:
        """Return the captures that the reader of the job itself has written down."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            told = json.loads((self.folder / SUMMARY_FILE).read_text(encoding="utf-8"))["captures"]
            return [capture for capture in told if isinstance(capture["sentence"], str)]
        return []

    def write(self) -> dict[str, Any]:
        """Write summary.json and trends.npz, and return the former's content."""
        self._written = time.monotonic()
        content = self.summary()
        with suppress(OSError):  # the folder may be gone, or the disk full
            write_json(self.folder / SUMMARY_FILE, content)
            courses = {
                **self.totals.length_course.arrays("step"),
                **self.totals.late_course.arrays("late"),
                **self.totals.own_course.arrays("own"),
            }
            (self.folder / ".watch.html").write_text(self.page(content), encoding="utf-8")
            (self.folder / ".watch.html").replace(self.folder / PAGE_FILE)
            path = self.folder / ".trends.npz"
            np.savez(path, ranks=self.totals.ranks, width=self.totals.length_course.width, **courses)
            path.replace(self.folder / "trends.npz")
        return content

    def page(self, content: Mapping[str, Any] | None = None) -> str:
        """Return the page about the run so far."""
        return document(self.totals, content or self.summary(), self.folder.name, not self.has_ended())

    def finish(self) -> list[str]:
        """Read the rest, let captures be analyzed, and return the verdict."""
        until = time.monotonic() + _PEERS_S
        while not self.has_ended() and time.monotonic() < until:
            time.sleep(0.1)
        self.poll()
        if self.trigger is not None:
            self.trigger.finish()
        if not self.merger.files:
            return []
        return [*lines(self.write()), f"Next: dptrace watch {os.path.relpath(self.folder)}"]

    def line(self) -> str:
        """Return a line about the last steps."""
        if not self.recent:
            return f"step {self.totals.last_step:,}"
        text = f"step {self.totals.last_step:,}  {duration(float(np.median(self.recent[-1].length.max(0))))}"
        text += f" (median {duration(self.totals.typical_ns)})"
        # One batch has the steps of half a second: too few to tell a late rank from one that waited for a core.
        known = [(batch.late, batch.core_wait) for batch in self.recent if batch.late is not None]
        if sum(late.shape[1] for late, _ in known) >= _LINE_STEPS / 2:
            late, core_wait = (np.concatenate(part, 1).mean(1) for part in zip(*known, strict=True))
            rank, stage = np.unravel_index(int(late.argmax()), late.shape)
            noise = CORE_SHARE_MOVING * float(core_wait.max())
            if late[rank, stage] > max(1e6, 0.03 * self.totals.typical_ns, noise):
                who = f"rank {self.totals.ranks[rank]} in {STAGES[stage]}"
                text += f"  late: {who}, {duration(float(late[rank, stage]))} per step"
        return text


def opened(folder: Path) -> Follower:
    """Return what the files in a folder say.

    Raises:
        DptraceError: none can be read.
        UsageError: it has none.
    """
    follower = Follower(folder)
    follower.poll()
    if not follower.merger.files:
        if notes := follower.merger.file_notes:
            raise DptraceError(f"{folder}: no file of it can be read: {'; '.join(notes[:3])}.")
        raise UsageError(f"{folder} holds no watch: no file rank*.steps. Begin one: dptrace watch -o FOLDER train.py")
    return follower


def follow(
    follower: Follower, goes_on: Callable[[], bool], every: int, tell: Callable[[str], None], show: bool = True
) -> None:
    """Follow a job until it ends, and tell a line now and then."""
    told_step, told_at, began = 0, time.monotonic(), False
    while goes_on() and not follower.has_ended():
        time.sleep(_POLL_S)
        if not follower.poll() or not show:
            continue
        due = time.monotonic() > told_at + _LINE_S or not began
        if follower.totals.steps and (follower.totals.last_step >= told_step + every if every else due):
            told_step, told_at, began = follower.totals.last_step, time.monotonic(), True
            tell(f"dptrace watch: {follower.line()}")


def main() -> None:
    """Follow the job of a rank 0."""
    settings, parent = json.loads(sys.argv[1]), int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder = Path(settings["folder"])
    follower = Follower(folder, Trigger(folder, settings["captures"], settings["steps"]))
    if settings["export"]:
        from dptrace.watch.export import exporter

        try:
            follower.listeners.append(exporter(settings["export"]))
        except DptraceError as error:
            say(f"dptrace watch: {error}")
    follow(follower, lambda: os.getppid() == parent, settings["every"], say, not settings["quiet"])
    text = follower.finish()
    if not settings["quiet"] and text:
        say("\n".join(text))


if __name__ == "__main__":
    main()

"""Watch a running job: complete its runs when they are recorded, ask the ranks for windows, and report progress."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from dptrace.core.units import plural
from dptrace.errors import UsageError
from dptrace.record.failures import ask_ranks, describe_hang, find_restarts, has_failures
from dptrace.record.launch.torchrun import SCRIPT_S, Launch
from dptrace.record.messages import (
    finish_path,
    read_messages,
    recorded_marker,
    request_path,
    window_folder,
    write_json,
    writers,
)
from dptrace.record.processes import Signals, descendants
from dptrace.record.run_folder import RunFolder, add_overhead, launch_metadata, note_launch, write_manifest

ATTACH_FILE = "attach"
"""The file in the staging folder by which ``dptrace record --attach`` asks for a window."""
_ATTACHABLE = "attachable"
"""The file that shows that the launcher looks for the other."""
_STOPPED = "stopped"
"""The file by which machine 0 says that --stop has ended the training."""
_OTHERS_LOOK_S = 2.0
"""How long machine 0 then leaves the file to the others, on a folder that may be on a network."""
_LOOK_S = 0.2
"""Seconds between two looks at the ranks' files."""
_LONG_S = 1800.0
"""How long a rank may take for a step, if the user does not say."""
_START_S = 600.0
"""How long a job may take before its first step, at least: to load data, compile or wait for a file system."""
_FINISH_S = 15.0
"""How long an interrupted launch waits for a step to end, at least, and for the files of ranks that do not write."""
_SAY_AGAIN_S = 30.0
"""How often the same kind of progress is reported."""


class RankSteps(NamedTuple):
    """How far a rank is."""

    done: int
    total: int
    """0 if unknown."""
    recorded: int
    """Steps recorded in the open window; 0 if none is open, -1 if training has ended."""
    asked: int = 0
    """Steps to record in the open window; 0 if none is open."""


class Stalled(Exception):
    """A rank has made no step for too long; the message says where each one is."""


class Reporter:
    """Where a launch reports what happens while training runs; this one says nothing."""

    def progress(self, done: int, total: int) -> None:
        """Show how many steps are done, of how many."""

    def state(self, text: str) -> None:
        """Show what the job does at the moment."""

    def recorded(self, info: dict[str, Any], goes_on: bool) -> None:
        """Show that a run has been written: the contents of its run.json with ``folder``; whether training goes on."""

    def measured(self, info: dict[str, Any]) -> None:
        """Show the profiler's overhead, measured after the run was written."""

    def message(self, text: str) -> None:
        """Show a sentence."""

    def error(self, text: str) -> None:
        """Show an error of the recorder, which does not end the training."""


class Monitor:
    """The state of one job, as seen from outside; :meth:`poll` is called many times a second."""

    def __init__(self, job: Launch, run: RunFolder, reporter: Reporter) -> None:
        self.job, self.run, self.reporter = job, run, reporter
        self.runs: list[dict[str, Any]] = []
        """The completed runs: the contents of run.json, with ``folder``."""
        self._requests = 0
        self._asked_for_window = False
        self._overhead_known = job.mode is not None or job.use_script_profiler
        if not job.node_rank:
            note_launch(run, self.run_metadata())
            if job.mode is None:
                with suppress(OSError):
                    (run.staging / _ATTACHABLE).touch()
        self.broken: str | None = None
        """Why nothing more is recorded although training goes on: an error of the recorder."""
        self._looked = 0.0
        self._began = time.monotonic()
        self._progress: dict[int, tuple[int, float]] = {}
        """The steps of each rank, and since when it has made no other."""
        self._longest_step = 0.0
        self._told_of = 0.0
        """Since when there has been no progress, if that was said."""
        self._state: tuple[str, float] = "", 0.0
        self._interrupted_ns: int | None = None
        self.unwritten_steps = 0
        """Steps that a rank had recorded, but not written, when the job was interrupted."""

    def poll(self, agent: int) -> bool:
        """Do what is due; return whether the job is to be ended because all of it is recorded.

        Args:
            agent: process id of torchrun, whose descendants the ranks are, or of the only rank.

        Raises:
            Stalled: a rank has made no step for too long.
        """
        if time.monotonic() - self._looked < _LOOK_S or self.broken:
            return False
        self._looked = time.monotonic()
        with self.contain_errors():
            return self._poll(agent)
        return False

    @contextmanager
    def contain_errors(self) -> Iterator[None]:
        """End the recording, but not the training, on an error of the file system."""
        try:
            yield
        except OSError as error:
            if not self.broken:
                self.broken = f"{error.filename or self.run.path}: {error.strerror or error}"
                self.reporter.error(f"The recording has ended, the training goes on: {self.broken}.")

    def _poll(self, agent: int) -> bool:
        self._report_progress()
        if self.is_for_another_machine:
            return (self.run.staging / _STOPPED).exists()
        self._check_progress(agent)
        if self.job.mode is None:
            self._pass_on_requests()
            self.complete_runs(goes_on=True)
            self._add_overhead()
            if self.job.trigger is None and self._has_all():  # the ranks count no more steps
                (self.run.staging / _ATTACHABLE).unlink(missing_ok=True)
        return self._stops()

    def _has_all(self) -> bool:
        """Return whether all is recorded and measured that was asked for."""
        return len(self.runs) >= self.job.repeat and self._overhead_known

    def _stops(self) -> bool:
        """Return whether --stop ends the training now; the launchers of other machines that share the folder follow."""
        if not self.job.stop or not self._has_all():
            return False
        if self.job.nnodes > 1:
            (self.run.staging / _STOPPED).touch()
            time.sleep(_OTHERS_LOOK_S)
        return True

    @property
    def is_for_another_machine(self) -> bool:
        """Whether machine 0 completes the runs of all, because the machines share the folder."""
        staging = self.run.staging
        return bool(self.job.node_rank) and (not staging.exists() or (staging / "owner").exists())

    def _report_progress(self) -> None:
        steps = self.rank_steps()
        first = steps.get(0)
        if first is not None and first.total:
            self.reporter.progress(first.done, first.total)
        elif not (self.job.mode or self.job.node_rank):
            self._report_state(steps)

    def _report_state(self, steps: dict[int, RankSteps]) -> None:
        """Report at each change, and now and then, what a script's job does until its first run is written."""
        if (self.runs or self.job.trigger) and not any(rank.asked for rank in steps.values()):
            return
        kind, text = "first", "Waiting for the first step."
        if writing := writers(self.run.staging):
            kind, text = "writing", f"Writing the traces of {plural(len(writing), 'rank')}."
        elif recording := [rank for rank in steps.values() if rank.asked]:
            least = min(recording)
            kind, text = "recording", f"Recording: {least.recorded} of {plural(least.asked, 'step')}."
        elif done := min((rank.done for rank in steps.values()), default=0):
            kind, text = "waiting", f"{plural(done, 'step')} done; the recording has not begun."
        now = time.monotonic()
        if kind != self._state[0] or now > self._state[1] + _SAY_AGAIN_S:
            self._state = kind, now
            self.reporter.state(text)

    def _check_progress(self, agent: int) -> None:
        """Raise Stalled if a rank has made no step for too long, and nothing is recorded yet.

        A script goes on unless the user has set a limit: it may evaluate for long. Where it stands is said once.
        """
        now = time.monotonic()
        for rank, steps in self.rank_steps().items():
            done, since = self._progress.get(rank, (-1, 0.0))
            if steps.done != done:
                if done > 0:
                    self._longest_step = max(self._longest_step, (now - since) / (steps.done - done))
                self._progress[rank] = steps.done, now
        limit = _LONG_S if self.job.timeout_s is None else self.job.timeout_s
        if not limit or self.runs or self.job.trigger is not None:
            return
        started = bool(self._progress)
        last = min(since for _, since in self._progress.values()) if started else self._began
        if now - last <= (limit if started else max(limit, _START_S)) or last == self._told_of:
            return
        where = self._describe_stall(agent, now - last)
        if self.job.timeout_s is not None or self.job.mode is not None:
            raise Stalled(where)
        self._told_of = last
        self.reporter.message(f"{where} The training goes on; --timeout S would end it.")

    def _describe_stall(self, agent: int, seconds: float) -> str:
        """Ask the ranks where they are, and return a sentence about it."""
        staging = self.run.staging
        ask_ranks(staging, [agent, *descendants(agent)])
        started = {int(path.stem.removeprefix("rank")) for path in staging.glob("rank*.stacks")}
        steps: dict[int, int | None] = dict.fromkeys(started)
        steps |= {rank: done for rank, (done, _) in self._progress.items()}
        if not steps:
            return f"No progress for {seconds:.0f} s: no rank has started."
        return describe_hang(staging, steps, seconds)

    def _pass_on_requests(self) -> None:
        """Ask rank 0 for a window if the user has asked for one."""
        asked = self._asked_for_window
        for path in filter(None, (self.run.staging / ATTACH_FILE, self._trigger_file)):
            if path.exists():
                path.unlink(missing_ok=True)
                asked = True
        if asked:
            self._asked_for_window = False
            self._ask("record")
            self.reporter.message("A recording was requested; it begins within a few steps.")

    @property
    def _trigger_file(self) -> Path | None:
        trigger = self.job.trigger
        return None if trigger is None or trigger == "SIGUSR2" else Path(trigger)

    @property
    def trigger_text(self) -> str:
        """The command that asks for a window."""
        if self._trigger_file is None:
            return f"kill -USR2 {os.getpid()}"
        return f"touch {shlex.quote(str(self._trigger_file))}"

    @contextmanager
    def trigger_signal(self) -> Iterator[None]:
        """Take SIGUSR2 as the request for a window, if it is the trigger."""
        if self.job.trigger != "SIGUSR2":
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            self._asked_for_window = True

        before = signal.signal(signal.SIGUSR2, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR2, before)

    def _ask(self, kind: str) -> None:
        self._requests += 1
        write_json(request_path(self.run.staging, self._requests), {"kind": kind})

    def complete_runs(self, goes_on: bool) -> None:
        """Rename the runs for which all ranks have written their files."""
        while (folder := window_folder(self.run.staging, len(self.runs) + 1)).is_dir():
            pieces = read_messages(folder, "piece")
            # A script may profile only some of its ranks, which is known when it has ended.
            of_script = any(piece["schedule"] is None for piece in pieces)
            if not (self._all_ranks_in(pieces) or (of_script and not goes_on)) or not self._is_whole(pieces):
                return
            self._complete(folder, goes_on)

    def _all_ranks_in(self, pieces: list[dict[str, Any]]) -> bool:
        """Return whether all ranks that write to this folder have written their files."""
        here = {int(path.stem.removeprefix("rank")) for path in self.run.staging.glob("rank*.steps")}
        if not pieces or here - {piece["rank"] for piece in pieces}:
            return False
        # Ranks of other machines write to folders of their own, unless the machines share this one.
        return self.job.nnodes > 1 or len(pieces) >= pieces[0]["world_size"]

    def _is_whole(self, pieces: list[dict[str, Any]]) -> bool:
        """Return whether a run is not what a failure has left of it."""
        whole = all(piece["schedule"] and piece["recorded_steps"] >= piece["schedule"]["steps"] for piece in pieces)
        return whole or not has_failures(self.run.staging, self._interrupted_ns)

    def _complete(self, folder: Path, goes_on: bool) -> None:
        number = len(self.runs) + 1
        content = write_manifest(folder, self.run_metadata())
        path = self.run.complete(folder, number)
        content["folder"] = str(path)
        self.runs.append(content)
        recorded_marker(self.run.staging, number).touch()
        goes_on = goes_on and any(steps.recorded >= 0 for steps in self.rank_steps().values())
        goes_on = goes_on and not has_failures(self.run.staging, self._interrupted_ns)
        self.reporter.recorded(content, goes_on)
        if goes_on and number == 1 and not self._overhead_known:
            self._ask("overhead")

    def run_metadata(self, failure: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the launcher knows of a run, for its run.json."""
        job = self.job
        script = None if job.mode else str(job.script)
        metadata = launch_metadata(job.command, job.mode, script, failure)
        metadata |= {"nnodes": job.nnodes, "restarts": find_restarts(self.run.staging)}
        metadata |= {"use_script_profiler": True} if job.use_script_profiler else {}
        return metadata if job.links is None else metadata | {"links": job.links}

    def _add_overhead(self) -> None:
        if self._overhead_known or not self.runs:
            return
        measured = read_messages(self.run.staging, "overhead")
        ranks = {rank["rank"] for rank in self.runs[0]["ranks"]}
        if ranks - {entry["rank"] for entry in measured}:
            return
        self._overhead_known = True
        for number, info in enumerate(self.runs):
            with suppress(OSError, ValueError):  # the user may have moved the run
                self.runs[number] = add_overhead(Path(info["folder"]), measured) | {"folder": info["folder"]}
        self.reporter.measured(self.runs[0])

    def finish_window(self, signals: Signals) -> None:
        """Ask the ranks to end the window that they record; wait for the step to end, and as long as a rank writes.

        Args:
            signals: a second one ends the wait.
        """
        self._interrupted_ns = time.time_ns()  # what fails from now on fails for that
        with self.contain_errors():
            finish_path(self.run.staging).touch()
            self._finish_window(signals)
        if self.job.mode is None and not signals.again:
            limit = "" if signals.numbers[:1] == [signal.SIGINT] else f" within {SCRIPT_S:.0f} s"
            self.reporter.message(f"Interrupted: waiting for the training to end{limit} … (Ctrl-C again gives up)")

    def _finish_window(self, signals: Signals) -> None:
        staging, number = self.run.staging, len(self.runs) + 1
        self.unwritten_steps = max((steps.recorded for steps in self.rank_steps().values()), default=0)
        if not (self.unwritten_steps > 0 or writers(staging) or window_folder(staging, number).exists()):
            return
        said, deadline = "", time.monotonic() + max(_FINISH_S, 2 * self._longest_step)
        while time.monotonic() < deadline and not signals.again:
            writing = writers(staging)
            if not writing and self._all_ranks_in(read_messages(window_folder(staging, number), "piece")):
                break
            doing = "waiting for the step to end"
            if writing:
                doing = f"writing the traces of {plural(len(writing), 'rank')}; until then, the training goes on"
            if said[:7] != doing[:7]:
                said = doing
                self.reporter.message(f"Interrupted: {doing} … (Ctrl-C again gives up)")
            if writing:
                deadline = max(deadline, time.monotonic() + _FINISH_S)
            time.sleep(_LOOK_S / 4)
        if not self.is_for_another_machine:
            self.complete_runs(goes_on=False)  # before the ranks are ended, which counts as a failure of each

    def rank_steps(self) -> dict[int, RankSteps]:
        """Return how far each rank is."""
        steps = {}
        for path in self.run.staging.glob("rank*.steps"):
            with suppress(OSError, ValueError, TypeError):
                steps[int(path.stem.removeprefix("rank"))] = RankSteps(*map(int, path.read_text().split()))
        return steps


def request_window(run: RunFolder) -> None:
    """Ask the launcher that records a run for another one.

    Raises:
        UsageError: no launcher records there, or it records a trainer of dptrace, which ends when it is recorded.
    """
    if not (run.staging / _ATTACHABLE).exists():
        if run.staging.exists():
            raise UsageError(
                f"{run.path}: this job has recorded all that was asked for, and its steps are no longer counted. Start "
                "one that records on demand with --trigger FILE."
            )
        raise UsageError(f"{run.path}: no dptrace record of a script is running with this -o.")
    (run.staging / ATTACH_FILE).touch()

"""Where a recording's files go: the folder that ``dptrace record`` prepared, or one that rank 0 prepares itself."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from dptrace.errors import DptraceError, RecordingError, UsageError
from dptrace.record.distributed import Meeting
from dptrace.record.launch import messages
from dptrace.record.launch.manifest import facts, write_manifest
from dptrace.record.launch.process_tree import end_with_parent
from dptrace.record.launch.run_folder import RunFolder

__all__ = ["Host", "open_host"]

_LONGEST_WRITE = timedelta(hours=2)
"""How long rank 0 waits for the slowest rank's file."""
_PROGRESS_EVERY_NS = 200_000_000


class Host(Protocol):
    """The place of a recording."""

    folder: Path
    meeting: Meeting

    def begin(self) -> None:
        """Prepare the folder."""

    def progress(self, done: int, total: int) -> None:
        """Be told how far the recording is."""

    def complain(self, message: str) -> None:
        """Be told why there is nothing, or not everything, to keep."""

    def end(self, failure: str | None) -> None:
        """Be told that this rank's files are written, and what ended its training, if that was a failure."""


_opened = 0


def open_host(out: str | os.PathLike[str] | None, force: bool) -> Host:
    """Give the launcher's folder when ``dptrace record`` started this process, else one at *out*."""
    global _opened
    _opened += 1
    meeting = Meeting(str(_opened))
    assignment = messages.Assignment.mine()
    if assignment is None:
        stem = Path(sys.argv[0]).stem or "python"
        return OwnHost(Path(out) if out is not None else Path("runs", stem), force, meeting)
    if out is not None and meeting.rank == 0:
        print(f"dptrace record keeps this recording in {assignment.shown}, not in {out}.", file=sys.stderr)
    end_with_parent(signal.SIGKILL)
    return LaunchedHost(assignment, meeting)


class LaunchedHost:
    """The launcher's folder: it waits for all ranks, and names the run at the end."""

    def __init__(self, assignment: messages.Assignment, meeting: Meeting) -> None:
        self.folder, self.meeting = Path(assignment.folder), meeting
        self._progress = self.folder / "progress" if assignment.progress and meeting.rank == 0 else None
        self._told_ns = 0

    def begin(self) -> None:
        """Make the folder where the launcher of another machine could not."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def progress(self, done: int, total: int) -> None:
        """Tell the launcher, now and then, how far it is."""
        now = time.monotonic_ns()
        if self._progress is not None and now - self._told_ns > _PROGRESS_EVERY_NS:
            self._told_ns = now
            self._progress.write_text(f"{done} {total}")

    def complain(self, message: str) -> None:
        """Let the launcher say it."""
        messages.report_failure(RecordingError(message))

    def end(self, failure: str | None) -> None:
        """Leave the rest to the launcher."""


class OwnHost:
    """A folder of our own: rank 0 prepares it, waits for the others' files, and names the run."""

    def __init__(self, path: Path, force: bool, meeting: Meeting) -> None:
        self.meeting = meeting
        self._run = RunFolder(path)
        self._force = force
        self.folder = self._run.staging

    def begin(self) -> None:
        """Let rank 0 prepare the folder, and all ranks know whether it could."""
        if self.meeting.rank != 0:
            problem = json.loads(self.meeting.hear("folder"))
            if problem is not None:
                raise UsageError(problem)
            return
        try:
            self._run.begin(self._force)
        except DptraceError as error:
            self.meeting.tell("folder", json.dumps(str(error)))
            raise
        self.meeting.tell("folder", "null")

    def progress(self, done: int, total: int) -> None:
        """Show nothing: the script's own output tells."""

    def complain(self, message: str) -> None:
        """Say it, and let the training go on: a recording must not end it."""
        print(f"dptrace: rank {self.meeting.rank}: {message}", file=sys.stderr)

    def end(self, failure: str | None) -> None:
        """Be counted; rank 0 waits for all, and names the run."""
        rank = self.meeting.rank
        if rank != 0:
            if failure is None:
                self.meeting.leave("written")
            else:
                self.meeting.tell("failed", json.dumps({"rank": rank, "message": failure}))
            return
        note: dict[str, Any] | None = None if failure is None else {"rank": rank, "message": failure}
        if note is None and not self.meeting.watch("written", _LONGEST_WRITE):
            note = {"rank": None, "message": "not every rank came to the end of its recording"}
            told = self.meeting.failure()
            note = note if told is None else json.loads(told)
        if not messages.read_notes(self.folder, "piece"):
            self._run.discard()
            return
        write_manifest(self.folder, facts(sys.orig_argv, None, sys.argv[0] or None, note))
        if note is None:
            path = self._run.complete()
            print(f"Wrote {path}. Next: dptrace analyze {path}", file=sys.stderr)
        else:
            print(f"Kept what was recorded in {self._run.keep_failed()}.", file=sys.stderr)

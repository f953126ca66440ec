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
from dptrace.record.distributed import RankStore
from dptrace.record.launch import messages
from dptrace.record.launch.manifest import launch_metadata, write_manifest
from dptrace.record.launch.process_tree import end_with_parent
from dptrace.record.launch.run_folder import RunFolder

__all__ = ["RecordingOutput", "open_output"]

_LONGEST_WRITE = timedelta(hours=2)
"""How long rank 0 waits for the slowest rank's file."""
_PROGRESS_EVERY_NS = 200_000_000


class RecordingOutput(Protocol):
    """The place of a recording."""

    folder: Path
    rank_store: RankStore

    def begin(self) -> None:
        """Prepare the folder."""

    def progress(self, done: int, total: int) -> None:
        """Be told how far the recording is."""

    def report_error(self, message: str) -> None:
        """Be told why there is nothing, or not everything, to keep."""

    def end(self, failure: str | None) -> None:
        """Be told that this rank's files are written, and what ended its training, if that was a failure."""


_opened = 0


def open_output(out: str | os.PathLike[str] | None, force: bool) -> RecordingOutput:
    """Give the launcher's folder when ``dptrace record`` started this process, else one at *out*."""
    global _opened
    _opened += 1
    rank_store = RankStore(str(_opened))
    assignment = messages.LauncherSettings.from_environment()
    if assignment is None:
        stem = Path(sys.argv[0]).stem or "python"
        return StandaloneOutput(Path(out) if out is not None else Path("runs", stem), force, rank_store)
    if out is not None and rank_store.rank == 0:
        print(f"dptrace record keeps this recording in {assignment.display_path}, not in {out}.", file=sys.stderr)
    end_with_parent(signal.SIGKILL)
    return LauncherOutput(assignment, rank_store)


class LauncherOutput:
    """The launcher's folder: it waits for all ranks, and names the run at the end."""

    def __init__(self, assignment: messages.LauncherSettings, rank_store: RankStore) -> None:
        self.folder, self.rank_store = Path(assignment.folder), rank_store
        self._progress = self.folder / "progress" if assignment.progress and rank_store.rank == 0 else None
        self._last_progress_ns = 0

    def begin(self) -> None:
        """Make the folder where the launcher of another machine could not."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def progress(self, done: int, total: int) -> None:
        """Tell the launcher, now and then, how far it is."""
        now = time.monotonic_ns()
        if self._progress is not None and now - self._last_progress_ns > _PROGRESS_EVERY_NS:
            self._last_progress_ns = now
            self._progress.write_text(f"{done} {total}")

    def report_error(self, message: str) -> None:
        """Let the launcher say it."""
        messages.report_failure(RecordingError(message))

    def end(self, failure: str | None) -> None:
        """Leave the rest to the launcher."""


class StandaloneOutput:
    """A folder of our own: rank 0 prepares it, waits for the others' files, and names the run."""

    def __init__(self, path: Path, force: bool, rank_store: RankStore) -> None:
        self.rank_store = rank_store
        self._run = RunFolder(path)
        self._force = force
        self.folder = self._run.staging

    def begin(self) -> None:
        """Let rank 0 prepare the folder, and all ranks know whether it could."""
        if self.rank_store.rank != 0:
            problem = json.loads(self.rank_store.receive("folder"))
            if problem is not None:
                raise UsageError(problem)
            return
        try:
            self._run.begin(self._force)
        except DptraceError as error:
            self.rank_store.publish("folder", json.dumps(str(error)))
            raise
        self.rank_store.publish("folder", "null")

    def progress(self, done: int, total: int) -> None:
        """Show nothing: the script's own output tells."""

    def report_error(self, message: str) -> None:
        """Say it, and let the training go on: a recording must not end it."""
        print(f"dptrace: rank {self.rank_store.rank}: {message}", file=sys.stderr)

    def end(self, failure: str | None) -> None:
        """Be counted; rank 0 waits for all, and names the run."""
        rank = self.rank_store.rank
        if rank != 0:
            if failure is None:
                self.rank_store.arrive("written")
            else:
                self.rank_store.publish("failed", json.dumps({"rank": rank, "message": failure}))
            return
        note: dict[str, Any] | None = None if failure is None else {"rank": rank, "message": failure}
        if note is None and not self.rank_store.barrier_unless_failed("written", _LONGEST_WRITE):
            note = {"rank": None, "message": "not every rank came to the end of its recording"}
            failure_note = self.rank_store.failure()
            note = note if failure_note is None else json.loads(failure_note)
        if not messages.read_messages(self.folder, "piece"):
            self._run.discard()
            return
        write_manifest(self.folder, launch_metadata(sys.orig_argv, None, sys.argv[0] or None, note))
        if note is None:
            path = self._run.complete()
            print(f"Wrote {path}. Next: dptrace analyze {path}", file=sys.stderr)
        else:
            print(f"Kept what was recorded in {self._run.keep_failed()}.", file=sys.stderr)

"""The folder of a recording: that of ``dptrace record``, or one that rank 0 prepares itself."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

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


_opened = 0


def open_output(out: str | os.PathLike[str] | None, force: bool) -> RecordingOutput:
    """Return the launcher's folder if ``dptrace record`` started this process, else one at *out*."""
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
    """The launcher's folder; the launcher waits for all ranks and renames the run at the end."""

    def __init__(self, assignment: messages.LauncherSettings, rank_store: RankStore) -> None:
        self.folder, self.rank_store = Path(assignment.folder), rank_store
        self._progress = self.folder / "progress" if assignment.progress and rank_store.rank == 0 else None
        self._last_progress_ns = 0

    def begin(self) -> None:
        """Create the folder if the launcher of another machine could not."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def progress(self, done: int, total: int) -> None:
        """Write the number of steps done for the launcher, at most five times a second."""
        now = time.monotonic_ns()
        if self._progress is not None and now - self._last_progress_ns > _PROGRESS_EVERY_NS:
            self._last_progress_ns = now
            self._progress.write_text(f"{done} {total}")

    def report_error(self, message: str) -> None:
        """Pass the message to the launcher."""
        messages.report_failure(RecordingError(message))

    def end(self, failure: str | None) -> None:
        """Do nothing: the launcher finishes the run."""


class StandaloneOutput:
    """A folder that rank 0 prepares; at the end it waits for the other ranks' files and renames the run."""

    def __init__(self, path: Path, force: bool, rank_store: RankStore) -> None:
        self.rank_store = rank_store
        self._run = RunFolder(path)
        self._force = force
        self.folder = self._run.staging

    def begin(self) -> None:
        """Prepare the folder on rank 0; raise its error on all ranks."""
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
        """Do nothing: the script has its own output."""

    def report_error(self, message: str) -> None:
        """Print the message; a failed recording must not end the training."""
        print(f"dptrace: rank {self.rank_store.rank}: {message}", file=sys.stderr)

    def end(self, failure: str | None) -> None:
        """Report that this rank is done; rank 0 waits for all ranks and renames the run."""
        rank = self.rank_store.rank
        if rank != 0:
            if failure is None:
                self.rank_store.arrive("written")
            else:
                self.rank_store.publish("failed", json.dumps({"rank": rank, "message": failure}))
            return
        failure_message: dict[str, Any] | None = None if failure is None else {"rank": rank, "message": failure}
        if failure_message is None and not self.rank_store.barrier_unless_failed("written", _LONGEST_WRITE):
            failure_message = {"rank": None, "message": "not every rank finished its recording"}
            published = self.rank_store.failure()
            failure_message = failure_message if published is None else json.loads(published)
        if not messages.read_messages(self.folder, "piece"):
            self._run.discard()
            return
        write_manifest(self.folder, launch_metadata(sys.orig_argv, None, sys.argv[0] or None, failure_message))
        if failure_message is None:
            path = self._run.complete()
            print(f"Wrote {path}. Next: dptrace analyze {path}", file=sys.stderr)
        else:
            print(f"Kept the incomplete recording in {self._run.keep_failed()}.", file=sys.stderr)


RecordingOutput = LauncherOutput | StandaloneOutput
"""The folder of a recording, and how its ranks coordinate."""

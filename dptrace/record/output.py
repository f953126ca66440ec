"""Where a recording's files go: the folder of ``dptrace record``, or one that rank 0 prepares itself."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from io import FileIO
from pathlib import Path
from typing import Any

from torch.profiler import profile

from dptrace.core.files import replacing
from dptrace.errors import DptraceError, RecordingError, UsageError
from dptrace.record import messages
from dptrace.record.distributed import RankStore
from dptrace.record.failures import is_consequence
from dptrace.record.run_folder import RunFolder, add_overhead, launch_metadata, trace_name, write_manifest
from dptrace.record.safety import say
from dptrace.record.windows import Request, WindowRequests

_LONGEST_WRITE = timedelta(hours=2)
"""How long rank 0 waits for the slowest rank's file."""
_MAX_LAST_TRACE_S = 5.0
"""How long a rank waits for another one's file where a training has failed, unless that rank is writing it."""
_SHORT = timedelta(seconds=5)
"""How long rank 0 waits for the step times of ranks that end together with it."""


_opened = 0
"""The recordings of this process so far."""


def open_output(out: str | os.PathLike[str] | None, force: bool) -> RecordingOutput:
    """Return the launcher's folder if ``dptrace record`` started this process, else one at *out*."""
    global _opened
    _opened += 1
    rank_store = RankStore(str(_opened))
    settings = messages.LauncherSettings.from_environment()
    if settings is None:
        own = messages.LauncherSettings.own()
        if own is not None:
            return StandaloneOutput(Path(own.display_path), own.force, rank_store, own.quiet)
        stem = Path(sys.argv[0]).stem or "python"
        return StandaloneOutput(Path(out) if out is not None else Path("runs", stem), force, rank_store)
    if out is not None and rank_store.rank == 0:
        say(f"dptrace record keeps this recording in {settings.display_path}, not in {out}.")
    return LauncherOutput(settings, rank_store)


def write_rank(folder: Path, export: Callable[[str], Any], metadata: dict[str, Any]) -> None:
    """Write a rank's trace, and then its part of run.json; each file appears only when it is complete.

    Args:
        export: writes the trace as JSON to a path.
        metadata: the rank's part of run.json, without ``file``.

    Raises:
        RecordingError: they cannot be written; the message says why.
    """
    path = folder / trace_name(metadata["rank"])
    plain = path.with_name(f".{path.name}.json")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter_ns()
        export(str(plain))  # which keeps Python's other threads, and so the training, waiting
        metadata = metadata | {"held_up_ns": metadata.get("held_up_ns", 0) + time.perf_counter_ns() - began}
        with plain.open("ab+") as file:  # Kineto reports no full disk, and may have created no file
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16))
            if not file.read().rstrip().endswith(b"}"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(plain))
        compress(plain, path)
        messages.write_json(folder / f"rank{metadata['rank']}.piece.json", metadata | {"file": path.name})
    except Exception as error:
        raise RecordingError(f"{path} cannot be written: {error}.") from None
    finally:
        plain.unlink(missing_ok=True)


def compress(plain: Path, target: Path) -> None:
    """Write a compressed copy of a file, which appears only when it is complete.

    Nothing is held in a buffer of Python's: a child that the script forks meanwhile would write it, too, when it ends.
    """
    packer = zlib.compressobj(6, wbits=16 + zlib.MAX_WBITS)  # in the form of gzip
    with plain.open("rb") as source, replacing(target) as packed, packed.open("wb", buffering=0) as file:
        while block := source.read(1 << 20):
            _write_all(file, packer.compress(block))
        _write_all(file, packer.flush())


def _write_all(file: FileIO, block: bytes) -> None:
    left = memoryview(block)
    while left:
        left = left[file.write(left) :]


def start_thread(write: Callable[[], None]) -> threading.Thread | None:
    """Write in a thread; at once, and return None, if the interpreter is ending and starts none."""
    thread = threading.Thread(target=write, name="dptrace_writer")
    try:
        thread.start()
    except RuntimeError:
        write()
        return None
    return thread


class LauncherOutput:
    """The launcher's folder; the launcher waits for all ranks and renames the run."""

    def __init__(self, settings: messages.LauncherSettings, rank_store: RankStore) -> None:
        self.folder, self.rank_store = Path(settings.folder), rank_store
        self.log = self.folder / f"rank{rank_store.rank}.profiler"
        """What torch prints when the profiler starts and stops."""
        self._requests = WindowRequests(self.folder, rank_store) if settings.script else None
        self._on_demand = settings.on_demand
        self._heartbeat: int | None = None
        self.writing = messages.Writing(self.folder, rank_store.rank)

    def begin(self) -> None:
        """Create the folder if the launcher of another machine could not, and begin to count steps there."""
        with suppress(OSError):  # what cannot be written is reported when the trace cannot
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.rank_store.rank == 0 and messages.restart_count():
                for path in self.folder.glob("request-*.json"):  # to the ranks before the restart
                    path.unlink(missing_ok=True)
            heartbeat = messages.heartbeat_path(self.folder, self.rank_store.rank)
            self._heartbeat = os.open(heartbeat, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self.heartbeat(0, 0, 0, 0)

    def already_recorded(self, number: int) -> bool:
        """Return whether a window was recorded before the ranks were restarted."""
        return os.path.exists(messages.recorded_marker(self.folder, number))

    def heartbeat(self, done: int, total: int, recorded: int, asked: int) -> None:
        """Write the steps for the launcher.

        Args:
            done: steps done.
            total: steps in all; 0 if unknown.
            recorded: steps recorded in the open window; -1 if the training has ended.
            asked: steps to record in it.
        """
        if self._heartbeat is not None:
            # In place, of constant length: some microseconds, so that it can be done in every step.
            with suppress(OSError):
                os.pwrite(self._heartbeat, b"%12d %12d %12d %12d\n" % (done, total, recorded, asked), 0)

    def poll_requests(self, step: int) -> Request | None:
        """Return the windows that the launcher asks for, if it does."""
        return None if self._requests is None else self._requests.poll(step)

    def expects_requests(self, overhead_known: bool) -> bool:
        """Return whether the launcher may still ask for windows: on demand, or to measure the overhead."""
        return self._requests is not None and (self._on_demand or not overhead_known)

    def finish_asked(self) -> bool:
        """Return whether the launcher asks to end the window after this step."""
        return os.path.exists(messages.finish_path(self.folder))

    def write(self, number: int, profiler: profile, metadata: dict[str, Any]) -> None:
        """Write the files of a recorded window."""
        folder = messages.window_folder(self.folder, number)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self.log.exists():
                os.replace(self.log, folder / f"rank{self.rank_store.rank}.log")
            write_rank(folder, profiler.export_chrome_trace, metadata)
        except (RecordingError, OSError) as error:
            self.report_error(str(error))
        finally:
            self.writing.end()

    def report_overhead(self, overhead: dict[str, Any]) -> None:
        """Write the step times that were measured after the run had been written."""
        with suppress(OSError):
            messages.write_json(self.folder / f"rank{self.rank_store.rank}.overhead.json", overhead)

    def report_error(self, message: str, too_short: bool = False, told: bool = False) -> None:
        """Pass the message to the launcher, and print what it may not learn because the disk is full.

        Args:
            too_short: whether the training was; the launcher says so when it has ended.
            told: whether it was printed already.
        """
        if not (too_short or told):
            say(f"dptrace: rank {self.rank_store.rank}: the recording has ended, the training goes on: {message}")
        messages.report_failure(RecordingError(message), of_recorder=True)

    def fail(self, error: BaseException) -> None:
        """Report to the launcher that training has failed on this rank."""
        messages.report_failure(error)

    def interrupted(self) -> None:
        """Do nothing: the launcher has the signal, too."""

    def end(self) -> None:
        """Do nothing more: the launcher finishes the run."""
        if self._heartbeat is not None:
            os.close(self._heartbeat)
            self._heartbeat = None


class StandaloneOutput:
    """A folder that rank 0 prepares; when all ranks have written their files, it renames the run."""

    def __init__(self, path: Path, force: bool, rank_store: RankStore, quiet: bool = False) -> None:
        self.rank_store = rank_store
        self._quiet = quiet
        self._run = RunFolder(path)
        self._force = force
        self.folder = messages.window_folder(self._run.staging, 1)
        self.log: Path | None = None
        self._failure: dict[str, Any] | None = None
        self._complete: Path | None = None
        self._overhead: dict[str, Any] | None = None
        self.writing = messages.Writing(self._run.staging, rank_store.rank)

    def begin(self) -> None:
        """Prepare the folder on rank 0; raise its error on all ranks."""
        if self.rank_store.rank != 0:
            problem = json.loads(self.rank_store.receive("folder"))
            if problem is not None:
                raise UsageError(problem)
            return
        try:
            self._run.begin(self._force)
            self.folder.mkdir()
        except (DptraceError, OSError) as error:
            if isinstance(error, OSError):
                self._run.discard()
            self.rank_store.publish("folder", json.dumps(str(error)))
            raise
        self.rank_store.publish("folder", "null")

    def already_recorded(self, number: int) -> bool:
        """Return False: no launcher has restarted the ranks."""
        return False

    def heartbeat(self, done: int, total: int, recorded: int, asked: int) -> None:
        """Do nothing: the script has its own output."""

    def poll_requests(self, step: int) -> Request | None:
        """Return None: no launcher asks for windows."""
        return None

    def expects_requests(self, overhead_known: bool) -> bool:
        """Return False, for the same reason."""
        return False

    def finish_asked(self) -> bool:
        """Return False: no launcher asks to end a window."""
        return False

    def write(self, number: int, profiler: profile, metadata: dict[str, Any]) -> None:
        """Write the files of this rank; rank 0 completes the run when all ranks have written theirs.

        Called in a thread, so that training continues meanwhile.
        """
        try:
            write_rank(self.folder, profiler.export_chrome_trace, metadata)
        except RecordingError as error:
            self.report_error(str(error))
            self.fail(error)
            return
        finally:
            self.writing.end()
        if self._failure is not None:
            return
        if self.rank_store.rank != 0:
            self.rank_store.arrive("written")
        elif self.rank_store.barrier_unless_failed("written", _LONGEST_WRITE) and self._failure is None:
            self._finish(None)

    def report_overhead(self, overhead: dict[str, Any]) -> None:
        """Pass the step times that were measured after the run had been written to rank 0."""
        self._overhead = overhead
        self.rank_store.publish(f"overhead/{self.rank_store.rank}", json.dumps(overhead))

    def report_error(self, message: str, too_short: bool = False, told: bool = False) -> None:
        """Print the message; a failed recording must not end the training."""
        if not told:
            say(f"dptrace: rank {self.rank_store.rank}: {message}")

    def fail(self, error: BaseException) -> None:
        """Notify the other ranks that this one has failed, so that the run does not count as complete."""
        rank, text = self.rank_store.rank, messages.error_text(error)
        self._failure = {"rank": rank, "message": text}
        consequence = is_consequence(text)
        if consequence and self.rank_store.is_published("interrupted"):
            self._failure = None
            return
        if consequence:  # a rank that is killed can't say so, and the launcher then ends its peers
            self._failure = {"rank": None, "message": f"a rank ended first; rank {rank} then failed: {text}"}
        with suppress(RuntimeError):  # the process that hosted the store has ended
            if not self.rank_store.is_published("failed") if consequence else self.rank_store.claim("cause"):
                self.rank_store.publish("failed", json.dumps(self._failure))

    def interrupted(self) -> None:
        """Tell the other ranks of Ctrl-C, which may reach them later than the end of this rank does."""
        with suppress(RuntimeError):  # the process that hosted the store has ended
            self.rank_store.publish("interrupted", "1")

    def end(self) -> None:
        """Keep what was written of a run that is not complete, under another name, if no other rank still will.

        That is the last one to end: the peers of a rank that failed may wait for it until it is gone.
        """
        staging, rank = self._run.staging, self.rank_store.rank
        if self._complete is not None:
            self._add_overhead(self._complete)
        if not staging.exists():
            return
        # A rank that is killed does not end here, so that its peers do not wait for long.
        waits = self._failure["rank"] is None if self._failure else rank == 0
        try:
            (staging / f"rank{rank}.ended").touch()
        except OSError:  # the disk is full
            waits = waits or rank == 0
        until = time.monotonic() + (_MAX_LAST_TRACE_S if waits else 0)
        while not (last := len(list(staging.glob("rank*.ended"))) >= self.rank_store.size):
            written = time.monotonic() < until and messages.read_messages(self.folder, "piece")
            if not waits or not (written or messages.writers(staging)):
                break
            time.sleep(0.05)
        if last or waits:
            try:
                (staging / "finishing").touch(exist_ok=False)
            except FileExistsError:
                return  # another rank finishes the run
            except OSError:
                pass
            unknown = {"rank": None, "message": "not every rank finished its recording"}
            published = self.rank_store.peek("failed")  # the cause, which need not be this rank's failure
            self._finish(json.loads(published) if published else self._failure or unknown)

    def _finish(self, failure: dict[str, Any] | None) -> None:
        """Write run.json and rename the run; discard the folder if no rank has written its files."""
        if not messages.read_messages(self.folder, "piece"):
            self._run.discard()
            return
        write_manifest(self.folder, launch_metadata(sys.orig_argv, None, sys.argv[0] or None, failure))
        if failure is None:
            self._complete = path = self._run.complete(self.folder)
            if not self._quiet:
                say(f"Wrote {path}. Next: dptrace analyze {path}")
        else:
            say(f"Kept the incomplete recording in {self._run.keep_failed(self.folder)}.")
        self._run.discard()

    def _add_overhead(self, run: Path) -> None:
        """Add the overhead to run.json if all ranks have measured it."""
        if self._overhead is None:
            return
        others = [self.rank_store.receive_within(f"overhead/{rank}", _SHORT) for rank in range(1, self.rank_store.size)]
        measured = [self._overhead, *(json.loads(text) for text in others if text is not None)]
        if len(measured) == self.rank_store.size:
            with suppress(OSError, ValueError):  # the user may have moved the run
                add_overhead(run, measured)


RecordingOutput = LauncherOutput | StandaloneOutput
"""The folder of a recording, and how its ranks coordinate."""

"""Turn the traces of any torch.profiler use into runs: ``profile(on_trace_ready=trace_handler("runs/x"))``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerAction, profile

from dptrace.core.units import plural
from dptrace.errors import RecordingError
from dptrace.record import messages
from dptrace.record.distributed import RankStore
from dptrace.record.output import compress, start_thread
from dptrace.record.profiler import device_of
from dptrace.record.rank_metadata import foreign_metadata
from dptrace.record.run_folder import RUN_FILE, RunFolder, launch_metadata, trace_name, write_manifest
from dptrace.record.safety import say

# Collect the traces of several ranks, each written when its rank is ready, into one run; never wait forever.
#
# Rank 0 collects: it prepares the folder, waits for the files of the ranks that have announced one, and names the run.
# If rank 0 does not profile, the first of the others that has waited long enough collects. The ranks meet in the
# key-value store of their job, which is only polled, so that no other user of it waits.


_POLL_S = 0.05
"""How often other ranks' files are looked for."""
_ANNOUNCE_S, _WRITE_S = 30.0, 600.0
"""How long to wait for ranks that have not announced a trace, and for the files of those that have."""
_ANNOUNCE_AT_END_S, _WRITE_AT_END_S = 5.0, 120.0
"""The same once the script has ended, since its process waits too."""
_ANALYSIS_TIMEOUT_S = 600
"""Within which a summary is made; training goes on without one."""


class PendingTrace:
    """One rank's trace on its way into a run."""

    def __init__(self, path: Path, force: bool, rank_store: RankStore, analyze: bool) -> None:
        self._run, self._force, self._ranks, self._analyze = RunFolder(path), force, rank_store, analyze
        self.trace = path.with_name(f".{path.name}.rank{rank_store.rank}.{os.getpid()}.json")
        """Where the profiler writes this rank's trace first."""
        self._folder = messages.window_folder(self._run.staging, 1)
        self._began = time.monotonic()

    def announce(self) -> None:
        """Notify the other ranks, before anything that takes long, that this one has a trace."""
        self.trace.parent.mkdir(parents=True, exist_ok=True)
        if self._ranks.rank == 0:
            self._ranks.publish("root", "1")
        self._ranks.arrive("announced")

    def deliver(self, piece: dict[str, Any]) -> None:
        """Write this rank's file, and on the collecting rank the run; print what goes wrong."""
        try:
            if self._collects():
                self._collect(piece)
                return
            try:
                if json.loads(self._ranks.receive("folder")) is None:  # else the collecting rank prints why
                    self._write(piece)
            finally:
                self._ranks.arrive("ended")
        except Exception as error:
            self._print(f"no run was made of this trace: {messages.error_text(error)}")
        finally:
            self.trace.unlink(missing_ok=True)

    def _collects(self) -> bool:
        """Return whether this rank collects, once it knows: when rank 0 has prepared the folder, or is not there."""
        if self._ranks.rank == 0:
            return self._ranks.claim("collector")
        while not self._ranks.is_published("folder"):
            root = self._ranks.is_published("root")
            if self._is_over(root):
                if root:
                    raise RecordingError("rank 0 did not prepare the run's folder")
                if self._ranks.claim("collector"):
                    return True
            time.sleep(_POLL_S)
        return False

    def _is_over(self, announced: bool) -> bool:
        """Return whether this rank has waited long enough for another one."""
        goes_on = threading.main_thread().is_alive()
        limits = (_ANNOUNCE_S, _WRITE_S) if goes_on else (_ANNOUNCE_AT_END_S, _WRITE_AT_END_S)
        return time.monotonic() - self._began > limits[announced]

    def _write(self, piece: dict[str, Any]) -> None:
        name = trace_name(self._ranks.rank)
        if self._folder.exists():
            compress(self.trace, self._folder / name)
            messages.write_json(self._folder / f"rank{self._ranks.rank}.piece.json", piece)
            return
        # Too late, or on a machine that does not share the folder of the collecting rank.
        late = (self._run.path / RUN_FILE).exists()
        target = self._run.path / name
        if target.exists() and not self._force:
            raise RecordingError(f"{target} exists. Replace it with force=True, or choose another folder.")
        target.parent.mkdir(parents=True, exist_ok=True)
        compress(self.trace, target)
        elsewhere = "copy it next to the traces of the ranks on other machines"
        self._print(f"wrote {target}; {'it came too late for run.json, but counts' if late else elsewhere}.")

    def _collect(self, piece: dict[str, Any]) -> None:
        try:
            self._run.begin(self._force)
            self._folder.mkdir()
        except Exception as error:
            self._ranks.publish("folder", json.dumps(str(error)))
            raise
        self._ranks.publish("folder", "null")
        try:
            self._write(piece)
            if self._ranks.size > 1:
                self._wait_for_the_others()
            write_manifest(self._folder, launch_metadata(sys.orig_argv, None, sys.argv[0] or None, None))
            pieces = len(list(self._folder.glob("rank*.gz")))
            path = self._run.complete(self._folder)
        finally:
            self._run.discard()
        self._report(path, pieces)

    def _wait_for_the_others(self) -> None:
        """Wait until each rank that has announced a trace has written it, and the others have had time to announce."""
        with suppress(RuntimeError):  # the process that hosted the store has ended, and with it the other ranks
            self._ranks.arrive("ended")
            while True:
                announced, ended = self._ranks.count("announced"), self._ranks.count("ended")
                if announced == ended == self._ranks.size or self._is_over(announced > ended):
                    return
                time.sleep(_POLL_S)

    def _report(self, path: Path, traces: int) -> None:
        text = f"Wrote {path}: {plural(traces, 'rank')}. Next: dptrace analyze {path}"
        if traces < self._ranks.size:
            text += (
                f"\nOnly {traces} of {self._ranks.size} ranks profiled, so waiting for other ranks cannot be separated "
                "from transfer. Profile on all ranks to see which rank waits for which."
            )
        if self._analyze:
            text += f"\n{_analysis(path, self._ranks.rank if traces > 1 else None)}"
        say(text)

    def _print(self, message: str) -> None:
        say(f"dptrace: rank {self._ranks.rank}: {message}")


def _analysis(path: Path, rank: int | None) -> str:
    """Return what ``dptrace analyze`` prints, from a process of its own: it must not hold back the training."""
    command = [sys.executable, "-m", "dptrace", "analyze", str(path)]
    command += [] if rank is None else ["--ranks", str(rank)]
    # A folder named dptrace where the script runs must not take the place of this package.
    variables = os.environ | {"PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=_ANALYSIS_TIMEOUT_S, check=False
    )
    return (done.stdout if done.returncode == 0 else done.stderr).rstrip()


def trace_handler(
    out: str | os.PathLike[str], *, force: bool = False, analyze: bool = True
) -> Callable[[profile], None]:
    """Return a handler for ``on_trace_ready`` of torch.profiler, which joins the ranks' traces to a run.

    Each rank writes its trace in a thread. As soon as all traces are there, rank 0 names the run and prints its split
    and findings. Each further cycle of a repeating schedule is a separate run: ``x-2``, ``x-3`` …

    If only some ranks profile, the run has those, after half a minute. An error is one line in the log; the training
    continues.

    Args:
        out: folder of the run.
        force: replace existing runs.
        analyze: print split and findings on rank 0.

    Raises:
        UsageError: the folder holds other files or a run.
    """
    RunFolder(Path(out)).check(force)
    first, cycles = Path(os.path.abspath(out)), count(1)

    def take(profiler: profile) -> None:
        number = next(cycles)
        path = first if number == 1 else first.with_name(f"{first.name}-{number}")
        try:
            rank_store = RankStore(f"traces/{path}")
            pending = PendingTrace(path, force, rank_store, analyze)
            pending.announce()
            profiler.export_chrome_trace(str(pending.trace))
            piece = foreign_metadata(rank_store, device_of(()), recorded_steps(profiler), [])
            # Not a daemon: the interpreter waits for it at its end.
            start_thread(partial(pending.deliver, piece | {"file": trace_name(rank_store.rank)}))
        except Exception as error:
            say(f"dptrace: no run was made of this trace: {messages.error_text(error)}")

    return take


def recorded_steps(profiler: profile) -> int:
    """Return how many whole steps the trace of a profiler holds; 0 if its ``step()`` was never called."""
    recording = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
    last = profiler.step_num - 1
    first = last
    while first >= 0 and profiler.schedule(first) in recording:
        if first != last and profiler.schedule(first) == ProfilerAction.RECORD_AND_SAVE:
            break  # the end of the cycle before
        first -= 1
    return last - first

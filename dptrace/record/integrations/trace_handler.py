"""Turn the traces of any torch.profiler use into runs: ``profile(on_trace_ready=trace_handler("runs/x"))``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch.profiler import ProfilerAction, profile

from dptrace.record.integrations.trace_collection import PendingTrace
from dptrace.record.output import start_thread
from dptrace.record.profiler.aligned_profile import device_of
from dptrace.record.rank_metadata import foreign_metadata
from dptrace.record.ranks.distributed import RankStore
from dptrace.record.run_folder import messages
from dptrace.record.run_folder.folder import RunFolder, trace_name

__all__ = ["TraceHandler", "recorded_steps", "trace_handler"]


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
    return TraceHandler(Path(os.path.abspath(out)), force, analyze)


class TraceHandler:
    """Makes a run of each trace that a profiler hands to it."""

    def __init__(self, out: Path, force: bool, analyze: bool) -> None:
        self._out, self._force, self._analyze = out, force, analyze
        self._cycles = 0

    def __call__(self, profiler: profile) -> None:
        """Take the profiler's trace, and write it while the training goes on."""
        self._cycles += 1
        try:
            self._take(profiler)
        except Exception as error:
            print(f"dptrace: no run was made of this trace: {messages.error_text(error)}", file=sys.stderr)

    def _take(self, profiler: profile) -> None:
        number = self._cycles
        path = self._out if number == 1 else self._out.with_name(f"{self._out.name}-{number}")
        rank_store = RankStore(f"traces/{path}")
        delivery = PendingTrace(path, self._force, rank_store, self._analyze)
        delivery.announce()
        profiler.export_chrome_trace(str(delivery.trace))
        piece = foreign_metadata(rank_store, device_of(()), recorded_steps(profiler), [])
        # Not a daemon: the interpreter waits for it at its end.
        start_thread(partial(delivery.deliver, piece | {"file": trace_name(rank_store.rank)}))


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

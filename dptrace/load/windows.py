"""Windows of one job: what a profiler with a repeating schedule wrote of each process, one file after the other."""

from __future__ import annotations

import re
from collections import defaultdict

from msgspec.structs import replace

from dptrace.core.units import plural
from dptrace.errors import DptraceError, UsageError
from dptrace.readers.discovery import Sources
from dptrace.readers.source import Source, file_name

_NAME = re.compile(r"(.+)\.(\d{10,19})\.pt\.trace\.json(\.gz)?$")
"""Names of ``tensorboard_trace_handler``: the worker, which is the host and the process by default, and the time."""


def with_window(sources: Sources, window: int | None) -> Sources:
    """Return the sources of one window, by its number from 1 in the order of time; all where each process has one.

    Raises:
        UsageError: there is no window of this number.
        DptraceError: there are several windows, and none is chosen.
    """
    by_worker = defaultdict[str, list[tuple[int, Source]]](list)
    for file in sources.files:
        name = _NAME.match(file_name(file.address))
        where = file.address.removesuffix(file_name(file.address))
        by_worker[f"{where}{name[1]}" if name else file.address].append((int(name[2]) if name else 0, file))
    count = max(map(len, by_worker.values()), default=1)
    if window is None and count == 1:
        return sources
    if window is None:
        first = next(files for files in by_worker.values() if len(files) > 1)
        names = " and ".join(file_name(file.address) for _, file in sorted(first, key=lambda one: one[0])[:2])
        raise DptraceError(
            f"{plural(count, 'window')} of each process, such as {names}: choose one, --window 1 to --window {count}, "
            "or list them as runs with dptrace history."
        )
    if not 1 <= window <= count:
        raise UsageError(f"--window {window}: there {'is 1 window' if count == 1 else f'are {count} windows'}, from 1.")
    ordered = [sorted(files, key=lambda one: one[0]) for files in by_worker.values()]
    # A process that lacks a window has those that are nearest in time to the windows of the one with the most.
    times = [time for time, _ in max(ordered, key=len)]
    kept = {
        file
        for files in ordered
        for number, (time, file) in enumerate(files)
        if window - 1 == (number if len(files) == count else min(range(count), key=lambda i: abs(times[i] - time)))
    }
    return replace(sources, files=tuple(file for file in sources.files if file in kept), named=sources.named & kept)

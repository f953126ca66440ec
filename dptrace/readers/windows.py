"""Which files are windows of one process, by their names: a schedule that repeats writes one for each."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from dptrace.readers.source import file_name

_NAME = re.compile(r"(.+)\.(\d{10,19})\.pt\.trace\.json(\.gz)?$")
"""Names of ``tensorboard_trace_handler``: the worker, which is the host and the process by default, and the time."""


def windows_of(addresses: Sequence[str]) -> list[list[str]]:
    """Return the files of each window, in the order of time; all are of the only one where each process has one.

    A process that lacks a window has those that are nearest in time to the windows of the one with the most.
    """
    by_worker = defaultdict[str, list[tuple[int, str]]](list)
    for address in addresses:
        name, file = _NAME.match(file_name(address)), file_name(address)
        worker = f"{address.removesuffix(file)}{name[1]}" if name else address
        by_worker[worker].append((int(name[2]) if name else 0, address))
    ordered = [sorted(files) for files in by_worker.values()]
    if max(map(len, ordered), default=1) == 1:
        return [list(addresses)]
    times = [time for time, _ in max(ordered, key=len)]
    windows: list[list[str]] = [[] for _ in times]
    for files in ordered:
        for number, (time, address) in enumerate(files):
            away = [abs(other - time) for other in times]
            windows[number if len(files) == len(times) else away.index(min(away))].append(address)
    return windows

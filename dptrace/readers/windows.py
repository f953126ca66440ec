"""Which files are windows of one process: a schedule that repeats writes a file for each.

Names tell: those of torch's handler, and ranks in others. Where several files have one rank in their names, or none,
the first bytes of the files do.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence

from dptrace.readers.heads import stated
from dptrace.readers.source import Source, file_name, rank_in_name

_NAME = re.compile(r"(.+)\.(\d{10,19})\.pt\.trace\.json(\.gz)?$")
"""Names of ``tensorboard_trace_handler``: the worker, which is the host and the process by default, and the time."""
_NUMBERS = re.compile(r"\d+")
_MOST = 256
"""Files without ranks in their names whose first bytes are read."""


def windows_of(addresses: Sequence[str]) -> list[list[str]]:
    """Return the files of each window, in the order of time, by names of torch's handler; one window without such.

    A process that lacks a window has those that are nearest in time to the windows of the one with the most.
    """
    by_worker = defaultdict[Hashable, list[tuple[int, str]]](list)
    for address in addresses:
        name, file = _NAME.match(file_name(address)), file_name(address)
        worker = f"{address.removesuffix(file)}{name[1]}" if name else address
        by_worker[worker].append((int(name[2]) if name else 0, address))
    return _in_order(addresses, by_worker)


def windows_of_run(files: Sequence[Source]) -> list[list[str]]:
    """Return the addresses of each window of a run's files, whatever their names are."""
    addresses = [file.address for file in files]
    windows = windows_of(addresses)
    ranks = [rank_in_name(address) for address in addresses]
    # Most runs have a rank in each name, or names of torch's handler, and no file is opened here.
    named = all(rank is not None for rank in ranks) or all(_NAME.match(file_name(one)) for one in addresses)
    if len(windows) > 1 or len(files) == 1 or (named and (None in ranks or len({*ranks}) == len(ranks))):
        return windows
    if any(file.single_pass for file in files) or (not named and (len(files) > _MOST or files[0].remote)):
        return windows
    heads = [stated(file) for file in files]
    if None in {one.rank for one in heads} or len({one.world_size for one in heads if one.world_size}) > 1:
        return windows
    # Where a file does not say when it begins, the numbers in names do: iteration_6 before iteration_12.
    numbers = [tuple(map(int, _NUMBERS.findall(address))) for address in addresses]
    timed = all(one.begin_ns for one in heads)
    place = {numbers: place for place, numbers in enumerate(sorted({*numbers}))}
    by_rank = defaultdict[Hashable, list[tuple[int, str]]](list)
    for one, own in zip(heads, numbers, strict=True):
        by_rank[one.rank].append((one.begin_ns if timed else place[own], one.file.address))
    # Two files of one rank that begin at once are no windows.
    if any(len({time for time, _ in own}) < len(own) for own in by_rank.values()):
        return windows
    return _in_order(addresses, by_rank)


def _in_order(addresses: Sequence[str], by_worker: defaultdict[Hashable, list[tuple[int, str]]]) -> list[list[str]]:
    """Return the files of each window, by the times of each worker's files."""
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

"""Which runs a folder holds: run folders, archives, baselines, and loose trace files, told apart by what they say.

A trace says of which rank of how many it is, and when it begins, in its first bytes. Files are of one run if no two are
of one rank, all state one number of ranks, and they were recorded at the same time.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from dptrace.errors import TraceError
from dptrace.readers.discovery import MAX_LEVELS, is_confined, kind_of, may_be_trace
from dptrace.readers.formats import BASELINE, DATABASE_SUFFIXES, FORMATS
from dptrace.readers.nsight_export import work_in
from dptrace.readers.run_file import RUN_FILE
from dptrace.readers.source import Source, rank_in_name
from dptrace.readers.storage import DAMAGE, is_archive
from dptrace.readers.stream import open_decompressed
from dptrace.readers.windows import windows_of

_HEAD = 1 << 18
"""Bytes of a trace in which its rank and its first time are; of a machine with many GPUs, these come first."""
_RANK_INFO = re.compile(rb'"distributedInfo"\s*:\s*\{(.{0,400})', re.DOTALL)
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_FIRST_TIME = re.compile(rb'"ts"\s*:\s*"?(\d{1,19}(?:\.\d{1,9})?)')
_EPOCH_NS = 10**18
"""Times below this, of the year 2001, count from something else."""
_APART_NS = 600 * 10**9
"""ns between the first events of two ranks of a run, whose clocks may differ."""
_TOGETHER_NS = 60 * 10**9
"""The same where files do not say their rank."""
_NUMBER = re.compile(r"\d+")


class FoundRun(msgspec.Struct, frozen=True):
    """A run in a folder."""

    path: str
    """Opens it: a folder, a file, or a pattern that fits its files alone."""
    files: tuple[str, ...]
    """Its traces, an archive or a baseline, as paths; none where a recording ended before it wrote any."""
    window: int | None = None
    """Which of several windows of each process it is, from 1, where the folder holds several."""


class _Stated(msgspec.Struct, frozen=True):
    """What a trace file says of its run; None and 0 where it does not."""

    path: Path
    rank: int | None = None
    world_size: int = 0
    begin_ns: int = 0
    end_ns: int = 0


def runs_in(folder: Path, levels: int = MAX_LEVELS) -> list[FoundRun]:
    """Return the runs in a folder and the folders in it, by name.

    Args:
        levels: how deep folders are searched; hidden ones are left out.

    Raises:
        OSError: the folder can't be read.
    """
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".") and is_confined(entry)]
    traces = [entry for entry in entries if entry.is_file() and _is_loose_trace(entry)]
    if any(entry.name == RUN_FILE for entry in entries):
        return [FoundRun(str(folder), tuple(map(str, traces or _traces_below(folder, levels))))]
    found = [FoundRun(str(entry), (str(entry),)) for entry in entries if entry.is_file() and _is_single(entry)]
    windows = windows_of([str(file) for file in traces])
    repeated = len(windows) > 1 and not found
    found += [FoundRun(str(folder), tuple(own), n) for n, own in enumerate(windows, 1)] if repeated else []
    groups = [] if repeated else _groups(traces)
    found += [run for group in groups for run in _named(folder, group, not found and len(groups) == 1)]
    below = []
    for entry in entries if levels > 1 else ():
        if entry.is_dir():
            with suppress(OSError):
                below.append((entry, runs_in(entry, levels - 1)))
    if not found and _is_one_run([run for _, runs in below for run in runs]):
        return [FoundRun(str(folder), tuple(file for _, runs in below for run in runs for file in run.files))]
    for entry, runs in below:
        whole = len(runs) == 1 and (runs[0].path == str(entry) or Path(runs[0].path).is_dir())
        found += [FoundRun(str(entry), runs[0].files)] if whole else runs
    return sorted(found, key=lambda run: run.path)


def _is_loose_trace(file: Path) -> bool:
    """Return whether a file is a trace by its name, and of JSON files, which may be anything, by its first bytes."""
    kind = kind_of(file.name)
    if kind is None or file.name == RUN_FILE or is_archive(file.name) or not may_be_trace(file):
        return False
    return not file.name.lower().endswith(FORMATS[0].suffixes) or _is_kineto(file)


def _is_kineto(file: Path) -> bool:
    start = _head(Source(str(file)), 1 << 12)
    if start.startswith(BASELINE):
        return False
    # A file that is cut or empty counts by its name: reading it says what is wrong.
    named = re.search("trace|rank|worker", file.name.lower())
    return bool(named or re.search(rb'"traceEvents"|"schemaVersion"|"deviceProperties"|"ph"\s*:', start))


def _is_single(file: Path) -> bool:
    """Return whether a file is a run, or several, on its own: an archive or a baseline."""
    if is_archive(file.name):
        return True
    return file.suffix == ".json" and _head(Source(str(file)), len(BASELINE)).startswith(BASELINE)


def _traces_below(folder: Path, levels: int) -> list[Path]:
    patterns = [os.path.join(glob.escape(str(folder)), *"*" * level) for level in range(1, levels + 1)]
    paths = (Path(path) for pattern in patterns for path in sorted(glob.glob(pattern)))
    return [path for path in paths if path.is_file() and is_confined(path) and _is_loose_trace(path)]


def _head(source: Source, size: int = _HEAD) -> bytes:
    """Return the first bytes of a file, decompressed; as many as can be read."""
    start = b""
    with suppress(OSError, TraceError, *DAMAGE), open_decompressed(source) as stream:
        while len(start) < size and (part := stream.read1(size - len(start))):
            start += part
    return start


def _stated(file: Path) -> _Stated:
    """Return what a file says of its run."""
    rank = rank_in_name(file.name)
    if file.name.lower().endswith(DATABASE_SUFFIXES):
        work = work_in(Source(str(file)))
        return _Stated(file, rank) if work is None else _Stated(file, rank, 0, work.begin_ns, work.end_ns)
    head = _head(Source(str(file)))
    info = _RANK_INFO.search(head)
    numbers = (
        {key: re.search(rb'"%s"\s*:\s*(\d{1,7})\b' % key, info[1]) for key in (b"rank", b"world_size")} if info else {}
    )
    if own := numbers.get(b"rank"):
        rank = int(own[1])
    size = numbers.get(b"world_size")
    base, first = _BASE.search(head), _FIRST_TIME.search(head)
    ns = round(float(first[1]) * 1000) + (int(base[1]) if base else 0) if first else 0
    ns = ns if ns > _EPOCH_NS else 0
    return _Stated(file, rank, int(size[1]) if size else 0, ns, ns)


def _groups(files: Sequence[Path]) -> list[list[_Stated]]:
    """Divide files into runs, in the order of time; each joins the first run that it fits."""
    groups: list[list[_Stated]] = []
    for file in sorted(map(_stated, files), key=lambda one: (one.begin_ns, one.path)):
        own = next((group for group in groups if _fits(file, group)), None)
        if own is None:
            groups.append([file])
        else:
            own.append(file)
    return groups


def _fits(file: _Stated, group: Sequence[_Stated]) -> bool:
    """Return whether a file can be of the run of others."""
    first = group[0]
    sizes = {one.world_size for one in (file, *group) if one.world_size}
    ranks = [one.rank for one in group]
    if kind_of(file.path.name) != kind_of(first.path.name) or len(sizes) > 1 or (sizes and len(group) >= max(sizes)):
        return False
    if file.rank is not None and file.rank in ranks:
        return False
    stated = file.rank is not None and None not in ranks
    if not (file.begin_ns and first.begin_ns):
        return stated and _stem(file.path) == _stem(first.path)
    gap = file.begin_ns - max(one.end_ns for one in group)
    return gap <= (_APART_NS if stated else _TOGETHER_NS)


def _stem(path: Path) -> str:
    return _NUMBER.sub("", path.name)


def _named(folder: Path, group: Sequence[_Stated], alone: bool) -> Iterator[FoundRun]:
    """Yield the run of some files, by what opens it; each file on its own where no pattern fits these alone."""
    files = sorted(str(one.path) for one in group)
    if alone:
        yield FoundRun(str(folder), tuple(files))
    elif len(files) == 1 or not (pattern := _pattern(files)):
        yield from (FoundRun(file, (file,)) for file in files)
    else:
        yield FoundRun(pattern, tuple(files))


def _pattern(files: Sequence[str]) -> str:
    """Return a glob that fits these files alone; empty without one."""
    first, last = min(files), max(files)
    start = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    shortest = min(map(len, files)) - start
    end = 0
    while end < shortest and len({file[-end - 1] for file in files}) == 1:
        end += 1
    pattern = f"{glob.escape(first[:start])}*{glob.escape(first[len(first) - end :])}"
    return pattern if sorted(glob.glob(pattern)) == [*files] else ""


def _is_one_run(runs: Sequence[FoundRun]) -> bool:
    """Return whether the folders of several machines hold one run: some of its ranks each, at the same time."""
    if len(runs) < 2:
        return False
    parts = [[_stated(Path(file)) for file in run.files] for run in runs]
    every = [one for part in parts for one in part]
    ranks, sizes = [one.rank for one in every], {one.world_size for one in every}
    if None in ranks or len({*ranks}) < len(ranks) or len(sizes) != 1 or 0 in sizes:
        return False
    times = [one.begin_ns for one in every]
    return all(len(part) < max(sizes) for part in parts) and min(times) > 0 and max(times) - min(times) <= _APART_NS

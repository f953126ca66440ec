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

from dptrace.readers.discovery import MAX_LEVELS, is_confined, kind_of, may_be_trace
from dptrace.readers.formats import BASELINE, FORMATS
from dptrace.readers.heads import Stated, head, stated
from dptrace.readers.run_file import RUN_FILE
from dptrace.readers.source import Source
from dptrace.readers.storage import is_archive
from dptrace.readers.windows import windows_of

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
    start = head(Source(str(file)), 1 << 12)
    if start.startswith(BASELINE):
        return False
    # A file that is cut or empty counts by its name: reading it says what is wrong.
    named = re.search("trace|rank|worker", file.name.lower())
    return bool(named or re.search(rb'"traceEvents"|"schemaVersion"|"deviceProperties"|"ph"\s*:', start))


def _is_single(file: Path) -> bool:
    """Return whether a file is a run, or several, on its own: an archive or a baseline."""
    if is_archive(file.name):
        return True
    return file.suffix == ".json" and head(Source(str(file)), len(BASELINE)).startswith(BASELINE)


def _traces_below(folder: Path, levels: int) -> list[Path]:
    patterns = [os.path.join(glob.escape(str(folder)), *"*" * level) for level in range(1, levels + 1)]
    paths = (Path(path) for pattern in patterns for path in sorted(glob.glob(pattern)))
    return [path for path in paths if path.is_file() and is_confined(path) and _is_loose_trace(path)]


def _groups(files: Sequence[Path]) -> list[list[Stated]]:
    """Divide files into runs, in the order of time; each joins the first run that it fits."""
    groups: list[list[Stated]] = []
    for file in sorted((stated(Source(str(file))) for file in files), key=lambda one: (one.begin_ns, one.file.address)):
        own = next((group for group in groups if _fits(file, group)), None)
        if own is None:
            groups.append([file])
        else:
            own.append(file)
    return groups


def _fits(file: Stated, group: Sequence[Stated]) -> bool:
    """Return whether a file can be of the run of others."""
    first = group[0]
    sizes = {one.world_size for one in (file, *group) if one.world_size}
    ranks = [one.rank for one in group]
    if kind_of(file.file.name) != kind_of(first.file.name) or len(sizes) > 1 or (sizes and len(group) >= max(sizes)):
        return False
    if file.rank is not None and file.rank in ranks:
        return False
    stated = file.rank is not None and None not in ranks
    if not (file.begin_ns and first.begin_ns):
        return stated and _stem(file.file) == _stem(first.file)
    gap = file.begin_ns - max(one.end_ns for one in group)
    return gap <= (_APART_NS if stated else _TOGETHER_NS)


def _stem(file: Source) -> str:
    return _NUMBER.sub("", file.name)


def _named(folder: Path, group: Sequence[Stated], alone: bool) -> Iterator[FoundRun]:
    """Yield the run of some files, by what opens it; each file on its own where no pattern fits these alone."""
    files = sorted(one.file.address for one in group)
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
    parts = [[stated(Source(file)) for file in run.files] for run in runs]
    every = [one for part in parts for one in part]
    ranks, sizes = [one.rank for one in every], {one.world_size for one in every}
    if None in ranks or len({*ranks}) < len(ranks) or len(sizes) != 1 or 0 in sizes:
        return False
    times = [one.begin_ns for one in every]
    return all(len(part) < max(sizes) for part in parts) and min(times) > 0 and max(times) - min(times) <= _APART_NS

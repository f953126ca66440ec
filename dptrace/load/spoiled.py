"""Ranks that would spoil what is said of the others: files that are cut, steps that are not marked, ranks to ignore."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import median
from dptrace.core.notes import MARKS, Note
from dptrace.core.units import listed, plural, ranks_text
from dptrace.errors import UsageError
from dptrace.load.stored_file import RankFile
from dptrace.readers.discovery import Sources
from dptrace.readers.source import Source, file_name, rank_in_name

Value = TypeVar("Value")
_WHOLE = 0.9
"""Share of the intervals that a step usually has from which one of a cut file is taken for whole."""
_FEW = 0.25
"""Share of all ranks up to which they are named as those that limit what is said of the others."""


def without_ignored(sources: Sources, ignored: Collection[int]) -> Sources:
    """Leave out the files whose names say that they are of an ignored rank, unread.

    Raises:
        UsageError: no file is left.
    """
    if not ignored:
        return sources
    kept = tuple(file for file in sources.files if rank_in_name(file.address) not in ignored)
    _refuse_none(kept, ignored)
    named = {rank_in_name(file.address) for file in sources.files} & set(ignored)
    notes = (*sources.notes, *_left_out(named))
    return replace(sources, files=kept, named=frozenset(file for file in sources.named if file in kept), notes=notes)


def without_ignored_files(
    sources: Sources, found: Mapping[int, RankFile | Value], ignored: Collection[int]
) -> tuple[Sources, dict[int, RankFile | Value]]:
    """Leave out files that say in them that they are of an ignored rank.

    Raises:
        UsageError: no file is left.
    """
    if not ignored:
        return sources, {**found}
    ranks = {index: _rank(file) for index, file in found.items() if isinstance(file, RankFile)}
    left_out = {index for index, rank in ranks.items() if rank in ignored}
    kept = [index for index in range(len(sources.files)) if index not in left_out]
    _refuse_none(kept, ignored)
    files = tuple(sources.files[index] for index in kept)
    notes = (*sources.notes, *_left_out({ranks[index] for index in left_out}))
    return replace(sources, files=files, notes=notes), {place: found[index] for place, index in enumerate(kept)}


def _left_out(ranks: Collection[int | None]) -> list[str]:
    known = sorted(rank for rank in ranks if rank is not None)
    return [f"Left out on request: {ranks_text(known)}."] if known else []


def _rank(file: RankFile) -> int | None:
    return file.rank if file.rank is not None else rank_in_name(file.path)


def _refuse_none(kept: Sequence[Source | int], ignored: Collection[int]) -> None:
    if not kept:
        raise UsageError(f"--ignore {listed([str(rank) for rank in sorted(ignored)])} leaves no rank of the run.")


def only_whole_steps(file: RankFile) -> tuple[tuple[DeviceFigures, ...], list[Note]]:
    """Return the devices of a file; of one that is cut, without the last steps, if these lack work, and a note on them.

    A step lacks work where it has fewer intervals than steps of the file usually have.
    """
    if not any(note.is_cut for note in file.damage):
        return file.devices, []
    kept, left_out = list[DeviceFigures](), dict[str, None]()
    for device in file.devices:
        timeline = device.timeline
        steps = len(timeline.windows)
        count = np.bincount(timeline.step[timeline.step >= 0], minlength=steps)
        whole = np.flatnonzero(count >= _WHOLE * median(count)) if steps > 1 else np.arange(steps)
        number = int(whole[-1]) + 1 if len(whole) else steps
        left_out |= dict.fromkeys(timeline.windows.names[number:])
        kept.append(device.first_steps(number))
    text = "left out {}, which the missing part of the file has work of."
    return tuple(kept), [Note(text, (listed([*left_out]),), file_name(file.path))] if left_out else []


def has_whole_steps(file: RankFile) -> bool:
    """Whether a device has steps all of whose collectives are recorded, as in a file that is not cut."""
    timelines = [device.timeline for device in only_whole_steps(file)[0]]
    incomplete = [one for one in timelines if {*one.windows.names} <= {*one.incomplete_steps} != set()]
    return not timelines or len(incomplete) < len(timelines)


def spoiling(ranks: Sequence[int], files: Sequence[RankFile]) -> Iterator[Note]:
    """Yield a note on the few ranks that limit what is said of the others; none where many do.

    Args:
        ranks: of each file.
    """
    unmarked = [any(MARKS in device.split.lacks for device in file.devices) for file in files]
    cut = [any(note.is_cut for note in file.damage) for file in files]
    for which, one, several in (
        (unmarked, "its steps are not marked", "their steps are not marked"),
        (cut, "its file is cut", "their files are cut"),
    ):
        found = sorted({rank for rank, spoils in zip(ranks, which, strict=True) if spoils})
        if not 0 < len(found) <= max(1, _FEW * len(files)) or len(found) == len(files):
            continue
        first = next(file_name(file.path) for file, spoils in zip(files, which, strict=True) if spoils)
        where = first if len(found) == 1 else f"{first} and {plural(len(found) - 1, 'more file')}"
        why, leaves = (one, "leaves it out") if len(found) == 1 else (several, "leave them out")
        options = " ".join(f"--ignore {rank}" for rank in found[:4]) + (" …" if found[4:] else "")
        who = f"{ranks_text(found, capital=True)} ({where})"
        yield Note(f"{who}: {why}, which limits what can be said of the others; {options} {leaves}.")

"""From what the user names to a run: its files found, read and put in order, and all that is to be said of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.text import legible
from dptrace.errors import DptraceError
from dptrace.load.local import gather
from dptrace.load.options import Reading
from dptrace.load.rank_file import RankFile
from dptrace.readers.sources.discovery import Sources, assign_ranks, find
from dptrace.readers.sources.url import shown
from dptrace.run.run import Run
from dptrace.timeline.collectives import communication_names

__all__ = ["open_run"]

Progress = Callable[[int, int, str], None]
_ELSEWHERE = re.compile(r"\d+ of \d+ ranks are here; copy the others' traces beside them\.")
"""The recorder's note on a machine that shares no folder with the others (dptrace.record.launch.manifest)."""


def open_run(paths: Sequence[str], reading: Reading | None = None, progress: Progress | None = None) -> Run:
    """Read a run; see :func:`dptrace.open`.

    Args:
        progress: called before the first file and after each with the number done, the number in all, and the name
            of the file that was done (of the first: that is begun).
    """
    reading = reading or Reading()
    communication_names((), reading.comm_patterns)  # a bad pattern is told before a long read
    sources = find(paths)
    files, notes = _read_all(sources, reading, progress)
    ranks, guesses = assign_ranks(files)
    pairs = sorted(zip(ranks, files, strict=True), key=lambda pair: pair[0])
    devices = tuple(device.of_rank(rank) for rank, file in pairs for device in file.devices)
    devices = _whole_steps(devices, sources.info)
    world_size = max([file.world_size for file in files] + [max(ranks) + 1])
    # Damage first: it bears on every figure.
    notes = [damage for file in files for damage in file.damage] + notes
    notes += [
        *_contradictions(ranks, [file.world_size for file in files]),
        *_recorded(sources.info),
        *guesses,
        *_missing(ranks, world_size),
    ]
    timelines = tuple(device.timeline for device in devices)
    notes += [note for timeline in timelines for note in timeline.notes]
    if all(timeline.on_cpu for timeline in timelines):
        gloo = ", communication is gloo's" if any(timeline.collectives for timeline in timelines) else ""
        notes.append(f"No GPU work here: compute is the CPU's operators{gloo}.")
    return Run(
        legible(" ".join(map(shown, paths))),
        timelines,
        sources.info,
        tuple(_grouped(notes)),
        world_size,
        devices,
        reading.figures_only,
        sources,
    )


def _whole_steps(devices: tuple[DeviceFigures, ...], info: dict[str, Any]) -> tuple[DeviceFigures, ...]:
    """Leave out the step in which the training ended or failed, where run.json counts only those before it."""
    told = info.get("ranks")
    whole = {
        entry["rank"]: entry["recorded_steps"]
        for entry in (told if isinstance(told, list) else [])
        if isinstance(entry, dict) and type(entry.get("rank")) is int and type(entry.get("recorded_steps")) is int
    }
    return tuple(device.first_steps(whole.get(device.timeline.rank, 0)) for device in devices)


def _read_all(sources: Sources, reading: Reading, progress: Progress | None) -> tuple[list[RankFile], list[str]]:
    """Read the files; one that can't be read is an error if the user named it, else a note."""
    results: dict[int, RankFile | DptraceError] = {}
    count = len(sources.files)
    if progress is not None and count:
        progress(0, count, sources.files[0].name)
    for index, result in gather(sources.files, reading):
        results[index] = result
        if isinstance(result, DptraceError) and _matters(result, index, sources, reading):
            raise result
        if progress is not None:
            progress(len(results), count, sources.files[index].name)
    ordered = [results[index] for index in range(count)]
    notes = [*sources.notes, *(f"Left out: {result}" for result in ordered if isinstance(result, DptraceError))]
    files = [result for result in ordered if isinstance(result, RankFile)]
    if not files:
        raise DptraceError("None of the files is a trace that can be read:\n" + "\n".join(notes))
    return files, notes


def _matters(error: DptraceError, index: int, sources: Sources, reading: Reading) -> bool:
    """Tell whether an error in one file is one of the whole reading."""
    alone = len(sources.files) == 1
    return reading.strict or alone or sources.files[index] in sources.named or error.exit_code != DptraceError.exit_code


def _grouped(notes: Sequence[str]) -> list[str]:
    """Say once what holds for many files: notes that differ only in file and numbers become one."""
    groups: dict[str, list[str]] = {}
    for note in notes:
        file, _, text = note.partition(": ")
        groups.setdefault(re.sub(r"[\d,]+", "#", text) if text else file, []).append(note)
    return [
        group[0] if len(group) == 1 else f"{group[0]} Likewise in {len(group) - 1} more files."
        for group in groups.values()
    ]


def _recorded(info: dict[str, Any]) -> list[str]:
    """Give what the recorder itself noted, and that the run failed, if it did."""
    told = info.get("notes")
    notes = [note for note in told if isinstance(note, str)] if isinstance(told, list) else []
    # True where it was written; whether traces are missing here is told by those that are here.
    notes = [note for note in notes if not _ELSEWHERE.fullmatch(note)]
    failure = info.get("failure")
    if info.get("status") == "failed":
        why = failure.get("message") if isinstance(failure, dict) else None
        notes.insert(0, f"The recording failed, so this is what was kept of it: {why or 'the reason is not known'}.")
    return notes


def _contradictions(ranks: Sequence[int], worlds: Sequence[int]) -> list[str]:
    """Say where files can't be of one job, by what they tell of it."""
    told = sorted({world for world in worlds if world})
    if len(told) > 1:
        sizes = " and ".join(map(str, told))
        return [f"The files tell of jobs of {sizes} ranks: they are not of one run."]
    outside = [rank for rank in ranks if told and rank >= told[0]]
    return [f"Rank {outside[0]} is none of a job of {told[0]} ranks: are the files of one run?"] if outside else []


def _missing(ranks: Sequence[int], world_size: int) -> list[str]:
    absent = world_size - len(set(ranks))
    if not absent:
        return []
    here = set(ranks)
    first = list(islice((rank for rank in range(world_size) if rank not in here), 8))
    listed = ", ".join(map(str, first)) + (f" and {absent - len(first):,} more" if absent > len(first) else "")
    word = "rank" if absent == 1 else "ranks"
    return [f"The job had {world_size} ranks; without a trace here: {word} {listed}."]

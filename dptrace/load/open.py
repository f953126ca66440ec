"""From what the user names to a run: its files found, read and put in order, and all that is to be said of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.text import sanitize
from dptrace.errors import DptraceError
from dptrace.load.local import read_files
from dptrace.load.options import ReadOptions
from dptrace.load.rank_file import RankFile
from dptrace.readers.communication import communication_names
from dptrace.readers.sources.discovery import Sources, assign_ranks, find
from dptrace.readers.sources.url import redact
from dptrace.run.run import Run

__all__ = ["open_run"]

Progress = Callable[[int, int, str], None]
_ELSEWHERE = re.compile(r"\d+ of \d+ ranks are here; copy the others' traces beside them\.")
"""The recorder's note on a machine that shares no folder with the others (dptrace.record.launch.manifest)."""


def open_run(paths: Sequence[str], read_options: ReadOptions | None = None, progress: Progress | None = None) -> Run:
    """Read a run; see :func:`dptrace.open`.

    Args:
        progress: called before the first file and after each with the number done, the number in all, and the name
            of the file that was done (of the first: that is begun).
    """
    read_options = read_options or ReadOptions()
    communication_names((), read_options.comm_patterns)  # a bad pattern is told before a long read
    sources = find(paths)
    files, notes = _read_all(sources, read_options, progress)
    ranks, guesses = assign_ranks(files)
    pairs = sorted(zip(ranks, files, strict=True), key=lambda pair: pair[0])
    devices = tuple(device.with_rank(rank) for rank, file in pairs for device in file.devices)
    devices = _drop_unfinished_steps(devices, sources.metadata)
    world_size = max([file.world_size for file in files] + [max(ranks) + 1])
    # Damage first: it bears on every figure.
    notes = [damage for file in files for damage in file.damage] + notes
    notes += [
        *_contradictions(ranks, [file.world_size for file in files]),
        *_recorder_notes(sources.metadata),
        *guesses,
        *_missing(ranks, world_size),
    ]
    timelines = tuple(device.timeline for device in devices)
    notes += [note for timeline in timelines for note in timeline.notes]
    if all(timeline.on_cpu for timeline in timelines):
        gloo = ", communication is gloo's" if any(timeline.collectives for timeline in timelines) else ""
        notes.append(f"No GPU work here: compute is the CPU's operators{gloo}.")
    return Run(
        sanitize(" ".join(map(redact, paths))),
        timelines,
        sources.metadata,
        tuple(_merge_notes(notes)),
        world_size,
        devices,
        read_options.figures_only,
        sources,
    )


def _drop_unfinished_steps(devices: tuple[DeviceFigures, ...], info: dict[str, Any]) -> tuple[DeviceFigures, ...]:
    """Leave out the step in which the training ended or failed, where run.json counts only those before it."""
    rank_entries = info.get("ranks")
    whole = {
        entry["rank"]: entry["recorded_steps"]
        for entry in (rank_entries if isinstance(rank_entries, list) else [])
        if isinstance(entry, dict) and type(entry.get("rank")) is int and type(entry.get("recorded_steps")) is int
    }
    return tuple(device.first_steps(whole.get(device.timeline.rank, 0)) for device in devices)


def _read_all(
    sources: Sources, read_options: ReadOptions, progress: Progress | None
) -> tuple[list[RankFile], list[str]]:
    """Read the files; one that can't be read is an error if the user named it, else a note."""
    results: dict[int, RankFile | DptraceError] = {}
    count = len(sources.files)
    if progress is not None and count:
        progress(0, count, sources.files[0].name)
    for index, result in read_files(sources.files, read_options):
        results[index] = result
        if isinstance(result, DptraceError) and _is_fatal(result, index, sources, read_options):
            raise result
        if progress is not None:
            progress(len(results), count, sources.files[index].name)
    ordered = [results[index] for index in range(count)]
    notes = [*sources.notes, *(f"Left out: {result}" for result in ordered if isinstance(result, DptraceError))]
    files = [result for result in ordered if isinstance(result, RankFile)]
    if not files:
        raise DptraceError("None of the files is a trace that can be read:\n" + "\n".join(notes))
    return files, notes


def _is_fatal(error: DptraceError, index: int, sources: Sources, read_options: ReadOptions) -> bool:
    """Tell whether an error in one file is one of the whole reading."""
    alone = len(sources.files) == 1
    return (
        read_options.strict
        or alone
        or sources.files[index] in sources.named
        or error.exit_code != DptraceError.exit_code
    )


def _merge_notes(notes: Sequence[str]) -> list[str]:
    """Say once what holds for many files: notes that differ only in file and numbers become one."""
    groups: dict[str, list[str]] = {}
    for note in notes:
        file, _, text = note.partition(": ")
        groups.setdefault(re.sub(r"[\d,]+", "#", text) if text else file, []).append(note)
    return [
        group[0] if len(group) == 1 else f"{group[0]} Likewise in {len(group) - 1} more files."
        for group in groups.values()
    ]


def _recorder_notes(info: dict[str, Any]) -> list[str]:
    """Give what the recorder itself noted, and that the run failed, if it did."""
    notes_json = info.get("notes")
    notes = [note for note in notes_json if isinstance(note, str)] if isinstance(notes_json, list) else []
    # True where it was written; whether traces are missing here is told by those that are here.
    notes = [note for note in notes if not _ELSEWHERE.fullmatch(note)]
    failure = info.get("failure")
    if info.get("status") == "failed":
        why = failure.get("message") if isinstance(failure, dict) else None
        notes.insert(0, f"The recording failed, so this is what was kept of it: {why or 'the reason is not known'}.")
    return notes


def _contradictions(ranks: Sequence[int], worlds: Sequence[int]) -> list[str]:
    """Say where files can't be of one job, by what they tell of it."""
    world_sizes = sorted({world for world in worlds if world})
    if len(world_sizes) > 1:
        sizes = " and ".join(map(str, world_sizes))
        return [f"The files tell of jobs of {sizes} ranks: they are not of one run."]
    outside = [rank for rank in ranks if world_sizes and rank >= world_sizes[0]]
    return (
        [f"Rank {outside[0]} is none of a job of {world_sizes[0]} ranks: are the files of one run?"] if outside else []
    )


def _missing(ranks: Sequence[int], world_size: int) -> list[str]:
    absent = world_size - len(set(ranks))
    if not absent:
        return []
    here = set(ranks)
    first = list(islice((rank for rank in range(world_size) if rank not in here), 8))
    listed = ", ".join(map(str, first)) + (f" and {absent - len(first):,} more" if absent > len(first) else "")
    word = "rank" if absent == 1 else "ranks"
    return [f"The job had {world_size} ranks; without a trace here: {word} {listed}."]

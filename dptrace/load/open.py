"""Open a run: find its files, read them, sort them by rank, and collect the notes on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import unique
from dptrace.core.patterns import matches
from dptrace.core.units import plural, sanitize
from dptrace.load.local import read_files
from dptrace.load.options import ReadOptions
from dptrace.load.rank_file import RankFile
from dptrace.load.rereader import FileRereader
from dptrace.readers.communication import communication_names
from dptrace.readers.discovery import assign_ranks, collect, find
from dptrace.readers.source import redact
from dptrace.run.run import Run
from dptrace.timeline.build import NO_GPU_EVENTS
from dptrace.timeline.host_calls import OPERATOR_CALLS
from dptrace.timeline.model import Timeline

__all__ = ["open_run"]

Progress = Callable[[int, int, str], None]
_ELSEWHERE = re.compile(r"\d+ of \d+ ranks are here; (?:add|read) those of other machines .*")
"""The recorder's note on a machine that shares no folder with the others; see dptrace.record.run_folder.manifest."""


def open_run(
    paths: Sequence[str], read_options: ReadOptions | None = None, progress: Progress = lambda done, count, name: None
) -> Run:
    """Read a run; see :func:`dptrace.open`.

    Args:
        progress: called before the first file and after each one, with the number of files done, the number of all
            files, and the name of the file just read (before the first: of the first).
    """
    read_options = read_options or ReadOptions()
    communication_names((), read_options.comm_patterns)  # reports an invalid pattern before a long read
    sources = find(paths)
    files, notes = collect(sources, read_files(sources.files, read_options), read_options.strict, progress)
    ranks, guesses = assign_ranks(files)
    pairs = sorted(zip(ranks, files, strict=True), key=lambda pair: pair[0])
    devices = tuple(device.with_rank(rank) for rank, file in pairs for device in file.devices)
    devices = _drop_unfinished_steps(devices, sources.metadata)
    world_size = max([file.world_size for file in files] + [max(ranks) + 1])
    contradictions = _contradictions(ranks, [file.world_size for file in files])
    # Damage first: it affects every figure.
    notes = [damage for file in files for damage in file.damage] + notes
    notes += [*contradictions, *_recorder_notes(sources.metadata), *guesses]
    # Files of several jobs have no ranks that are missing from the job.
    notes += [] if contradictions else _missing(ranks, world_size)
    timelines = tuple(device.timeline for device in devices)
    notes += [note for timeline in timelines for note in timeline.notes]
    notes += _no_gpu_work(timelines)
    notes += _unmatched_patterns(timelines, read_options.comm_patterns)
    return Run(
        sanitize(" ".join(map(redact, paths))),
        timelines,
        sources.metadata,
        tuple(_merge_notes(notes)),
        world_size,
        devices,
        read_options.figures_only,
        sources,
        None if read_options.figures_only else FileRereader(sources.files, read_options, _operators(files)),
    )


def _operators(files: Sequence[RankFile]) -> dict[tuple[str, str], Any]:
    """Return the operators that were read together with the figures, as the rereader holds them."""
    return {(file.path, OPERATOR_CALLS.name): file.operators for file in files if file.operators is not None}


def _no_gpu_work(timelines: Sequence[Timeline]) -> list[str]:
    """Return a note if the figures are those of CPUs; none if the files' own notes say so."""
    if not all(timeline.on_cpu for timeline in timelines):
        return []
    if all(any(NO_GPU_EVENTS in note for note in timeline.notes) for timeline in timelines):
        return []
    gloo = " and communication is gloo" if any(timeline.collectives for timeline in timelines) else ""
    return [f"No GPU work here: compute is CPU operators{gloo}."]


def _unmatched_patterns(timelines: Sequence[Timeline], patterns: Sequence[str]) -> list[str]:
    """Return a note for each pattern of further communication kernels that fits no kernel: it may be misspelled."""
    if not patterns:
        return []
    kernels = sorted({t.names[name] for t in timelines if not t.on_cpu for name in unique(t.name).tolist()})
    unmatched = [p for p in patterns if not any(matches(p, kernels, "--comm-pattern", re.IGNORECASE))]
    return [f"--comm-pattern {sanitize(pattern)!r} fits no kernel." for pattern in unmatched]


def _drop_unfinished_steps(devices: tuple[DeviceFigures, ...], metadata: dict[str, Any]) -> tuple[DeviceFigures, ...]:
    """Drop the step in which training ended or failed, which ``recorded_steps`` in run.json does not count."""
    rank_entries = metadata.get("ranks")
    complete_steps = {
        entry["rank"]: entry["recorded_steps"]
        for entry in (rank_entries if isinstance(rank_entries, list) else [])
        if isinstance(entry, dict) and type(entry.get("rank")) is int and type(entry.get("recorded_steps")) is int
    }
    return tuple(device.first_steps(complete_steps.get(device.timeline.rank, 0)) for device in devices)


def _merge_notes(notes: Sequence[str]) -> list[str]:
    """Merge notes that differ only in the file and in numbers into one."""
    groups: dict[str, list[str]] = {}
    for note in notes:
        file, _, text = note.partition(": ")
        groups.setdefault(re.sub(r"[\d,]+", "#", text) if text else file, []).append(note)
    return [
        group[0] if len(group) == 1 else f"{group[0]} The same holds for {plural(len(group) - 1, 'more file')}."
        for group in groups.values()
    ]


def _recorder_notes(metadata: dict[str, Any]) -> list[str]:
    """Return the recorder's notes in run.json, and a note if the recording failed."""
    notes_json = metadata.get("notes")
    notes = [note for note in notes_json if isinstance(note, str)] if isinstance(notes_json, list) else []
    # It holds on the machine that wrote it; here, the ranks that were found show which are missing.
    notes = [note for note in notes if not _ELSEWHERE.fullmatch(note)]
    failure = metadata.get("failure")
    if metadata.get("status") == "failed":
        why = failure.get("message") if isinstance(failure, dict) else None
        notes.insert(0, f"The recording failed and may be incomplete: {why or 'unknown reason'}.")
    return notes


def _contradictions(ranks: Sequence[int], world_sizes_of_files: Sequence[int]) -> list[str]:
    """Return a note where the world sizes and ranks of the files show that they are not of one job."""
    world_sizes = sorted({world_size for world_size in world_sizes_of_files if world_size})
    if len(world_sizes) > 1:
        sizes = " and ".join(map(str, world_sizes))
        return [f"The files are from different jobs, with world sizes {sizes}. Open each run on its own."]
    outside = [rank for rank in ranks if world_sizes and rank >= world_sizes[0]]
    text = "Rank {} is outside world size {}: check that all files are from one run."
    return [text.format(outside[0], world_sizes[0])] if outside else []


def _missing(ranks: Sequence[int], world_size: int) -> list[str]:
    present = set(ranks)
    absent = world_size - len(present)
    if not absent:
        return []
    first = list(islice((rank for rank in range(world_size) if rank not in present), 8))
    listed = ", ".join(map(str, first)) + (f" and {absent - len(first):,} more" if absent > len(first) else "")
    word = "rank" if absent == 1 else "ranks"
    return [f"The job had {plural(world_size, 'rank')}; no trace was read for {word} {listed}."]

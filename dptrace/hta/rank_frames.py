"""Read the files of a run into event frames, by rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dptrace.errors import DptraceError, TraceError
from dptrace.hta.event_frame import ArgColumn, EventFrame, read_event_frame
from dptrace.readers.sources.discovery import Sources, assign_ranks
from dptrace.readers.sources.source import Source

__all__ = ["RankFrames", "read_ranks"]


@dataclass(frozen=True, slots=True)
class RankFrames:
    """Frames and their sources, in rank order."""

    files: dict[int, EventFrame]
    sources: dict[int, Source]
    notes: tuple[str, ...]
    """What was missing, left out, dropped or inferred, a sentence each."""


def read_ranks(found: Sources, arguments: Sequence[ArgColumn], round_out: bool, strict: bool = False) -> RankFrames:
    """Read the files that ``discovery.find`` found.

    Args:
        strict: treat damage, and a file that is not a trace, as an error instead of a note.

    Raises:
        DptraceError: a file that the user named cannot be read, no file can, or two files have the same rank.
    """
    files: list[tuple[Source, EventFrame]] = []
    notes = list(found.notes)
    for file in found.files:
        try:
            files.append((file, _read(file, arguments, round_out, strict)))
        except DptraceError as error:
            if strict or file in found.named or len(found.files) == 1 or error.exit_code != DptraceError.exit_code:
                raise
            notes.append(f"Left out: {error}")
    if not files:
        raise DptraceError("No file is a readable trace:\n" + "\n".join(notes))
    ranks, guesses = assign_ranks([frames for _, frames in files])
    notes += [note for _, frames in files for note in frames.damage]
    pairs = sorted(zip(ranks, files, strict=True), key=lambda pair: pair[0])
    return RankFrames(
        {rank: frames for rank, (_, frames) in pairs},
        {rank: source for rank, (source, _) in pairs},
        (*notes, *guesses),
    )


def _read(source: Source, arguments: Sequence[ArgColumn], round_out: bool, strict: bool) -> EventFrame:
    frames = read_event_frame(source, arguments, round_out)
    if strict and frames.damage:
        raise TraceError(f"{frames.path}: damaged, and --strict refuses damaged files: {' '.join(frames.damage)}")
    return frames

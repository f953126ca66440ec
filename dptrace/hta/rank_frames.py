"""Read the files of a run into event frames, by rank."""

from __future__ import annotations

from collections.abc import Sequence

from dptrace.core.subprocess_pool import run_parallel
from dptrace.hta.event_frame import ArgColumn, EventFrame, read_event_frame
from dptrace.readers.discovery import Sources, assign_ranks, collect, refuse_damage
from dptrace.readers.source import Source

__all__ = ["read_ranks"]


def read_ranks(
    found: Sources, arguments: Sequence[ArgColumn], round_out: bool, strict: bool = False
) -> tuple[dict[int, EventFrame], list[str]]:
    """Read the files that ``discovery.find`` found.

    Args:
        strict: treat damage, and a file that is not a trace, as an error instead of a note.

    Returns:
        The frames by rank, in order, and a sentence on what was missing, left out, dropped or inferred.

    Raises:
        DptraceError: a file that the user named cannot be read, no file can, or two files have the same rank.
    """

    def read(file: Source) -> EventFrame:
        frames = read_event_frame(file, arguments, round_out)
        if strict:
            refuse_damage(frames.path, frames.damage)
        return frames

    files, notes = collect(found, run_parallel(read, found.files, jobs=1), strict)
    ranks, guesses = assign_ranks(files)
    notes += [*(note for file in files for note in file.damage), *guesses]
    return dict(sorted(zip(ranks, files, strict=True), key=lambda pair: pair[0])), notes

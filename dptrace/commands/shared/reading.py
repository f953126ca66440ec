"""Read a run for a command: with progress, and only the selected ranks and steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dptrace.commands.shared.options import Selection
from dptrace.commands.shared.output import NORMAL, VERBOSE
from dptrace.commands.shared.progress import progress
from dptrace.core.units import sanitize
from dptrace.load.options import ReadOptions
from dptrace.readers.source import is_url

if TYPE_CHECKING:
    from dptrace.run.run import Run

__all__ = ["GAINS_HINT", "gains_wanted", "open_with_progress", "with_gains"]

GAINS_HINT = "For what a step would gain without each finding, add --gains: it replays the run."


def open_with_progress(
    paths: Sequence[str], read_options: ReadOptions, verbosity: str = NORMAL, selection: Selection | None = None
) -> Run:
    """Read a run and keep what is selected; a terminal shows the progress after a second."""
    # Before NumPy is imported: its linear algebra, which reading does not need, starts a thread per core, and these
    # spin for a tenth of a second. A library may not decide that for its caller; a command may.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from dptrace.load.open import open_run

    with progress("Reading", verbosity) as show:

        def file_done(done: int, total: int, name: str) -> None:
            show(done / total, name)
            if verbosity == VERBOSE and done:
                click.echo(sanitize(f"Read {name} ({done} of {total})"), err=True)

        run = open_run(paths, read_options, file_done)
    return run.select(selection.ranks, selection.steps) if selection is not None else run


def gains_wanted(gains: bool | None, paths: Sequence[str]) -> bool:
    """Return whether to compute what findings gain: as the user says, else where reading the files again is quick."""
    if gains is not None:
        return gains
    if any(is_url(path) for path in paths):
        return False
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from dptrace.load.open import is_small
    from dptrace.readers.discovery import find

    return is_small(find(paths).files)


def with_gains(run: Run, verbosity: str = NORMAL) -> Run:
    """Return the run whose findings say what a step would gain without each."""
    from dptrace.replay.gains import with_gains as gained

    with progress("Replaying", verbosity) as show:
        return gained(run, lambda fraction: show(fraction, ""))

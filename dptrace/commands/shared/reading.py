"""Read a run for a command: with progress, and only the selected ranks and steps."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from dptrace.commands.shared.options import Selection, group
from dptrace.commands.shared.output import NORMAL, VERBOSE, progress
from dptrace.core.units import sanitize
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions
from dptrace.readers.source import is_url
from dptrace.run.selection import ranks_of, steps_of

if TYPE_CHECKING:
    from dptrace.run.run import Run


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
    from dptrace.replay import gains

    with progress("Replaying", verbosity) as show:
        return gains.with_gains(run, lambda fraction: show(fraction, ""))


# The two sides of ``dptrace diff``: A and B, or several recordings each with --before and --after.


Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_SIDES = ("--before", "--after")


class SidesCommand(click.Command):
    """A command whose --before and --after take all arguments up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each of its values, as click expects it."""
        spread: list[str] = []
        option = ""
        for arg in args:
            if arg.startswith("-") and arg != "-":
                option = arg if arg in _SIDES else ""
                spread.append(arg)
            else:
                spread += [option, arg] if option and spread[-1] != option else [arg]
        return super().parse_args(ctx, spread)


@dataclass(frozen=True)
class SideOptions:
    """The recordings of both sides, each with what to keep of it."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    selections: tuple[Selection, Selection]
    """Of A and of B."""
    named: bool
    """Whether the sides were given with --before and --after."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments that name the same sides again."""
        if not self.named:
            return (*self.before, *self.after)
        return ("--before", *self.before, "--after", *self.after)


def side_options(function: Decorated) -> Decorated:
    """Add A, B, --before, --after and the selections of ranks and steps, as one argument *sides*."""

    @functools.wraps(function)
    def with_sides(
        *args: Any,
        a: str | None,
        b: str | None,
        before: tuple[str, ...],
        after: tuple[str, ...],
        ranks: str | None,
        steps: str | None,
        before_steps: str | None,
        after_steps: str | None,
        **rest: Any,
    ) -> Any:
        recordings = _recordings(a, b, before, after)
        if steps is not None and (before_steps is not None or after_steps is not None):
            raise UsageError(
                "--steps chooses the steps of both sides; give either it or --before-steps, --after-steps."
            )
        kept = None if ranks is None else ranks_of(ranks)
        chosen = [
            steps_of(text, option) if (text := own if own is not None else steps) is not None else None
            for own, option in ((before_steps, "--before-steps"), (after_steps, "--after-steps"))
        ]
        _check_overlap(*recordings, chosen, bool(before))
        selections = Selection(kept, chosen[0]), Selection(kept, chosen[1])
        return function(*args, sides=SideOptions(*recordings, selections, bool(before)), **rest)

    options = group(
        click.argument("a", metavar="[A]", required=False),
        click.argument("b", metavar="[B]", required=False),
        click.option("--before", multiple=True, metavar="RUN...", help="Recordings before the change, instead of A."),
        click.option("--after", multiple=True, metavar="RUN...", help="Recordings after the change, instead of B."),
        click.option("--ranks", metavar="LIST", help="Only these ranks: 0,1 or 0-3."),
        click.option("--steps", metavar="A:B", help="Only these steps, by their numbers in the trace: 4:6 or 4."),
        click.option("--before-steps", metavar="A:B", help="Only these steps of A; with --after-steps, B's."),
        click.option("--after-steps", metavar="A:B", help="Only these steps of B."),
    )
    return cast(Decorated, options(with_sides))


def _recordings(
    a: str | None, b: str | None, before: tuple[str, ...], after: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not before and not after:
        if a is None or b is None:
            raise UsageError(f"Missing argument '{'A' if a is None else 'B'}': name two runs, or --before and --after.")
        return (a,), (b,)
    if a is not None:
        raise UsageError(f"{a}: name two runs, or all recordings with --before and --after, not both.")
    if not before or not after:
        given, missing = ("--before", "--after") if before else ("--after", "--before")
        raise UsageError(f"{given} needs {missing}: name the recordings of the other side.")
    return before, after


def _check_overlap(
    before: tuple[str, ...], after: tuple[str, ...], chosen: list[tuple[int, int] | None], named: bool
) -> None:
    """Refuse a recording that is given twice, unless each side has other steps of it."""
    for side, option in ((before, "--before"), (after, "--after")):
        if len({_place(path) for path in side}) < len(side):
            raise UsageError(f"{option}: a recording is given twice; a copy adds no evidence.")
    same = {_place(path) for path in before} & {_place(path) for path in after}
    first, last = chosen
    apart = first is not None and last is not None and (first[1] < last[0] or last[1] < first[0])
    if same and not apart and (named or first != last):
        shared = next(path for path in after if _place(path) in same)
        raise UsageError(
            f"{shared} is on both sides: leave it out of one, or compare parts of it, for example "
            "--before-steps 4:9 --after-steps 10:15."
        )


def _place(path: str) -> str:
    return path if is_url(path) else str(Path(path).resolve())

"""Read a run for a command: with progress, and only the selected ranks and steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace as replace_field

from dptrace.commands.shared.options import Selection, field_of, group
from dptrace.commands.shared.output import NORMAL, VERBOSE, print_notes, progress, quoted_paths
from dptrace.core.units import sanitize
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions
from dptrace.readers.source import STDIN, Source, is_url
from dptrace.run.selection import ranks_of, steps_of

if TYPE_CHECKING:
    from dptrace.run.run import Run
    from dptrace.timeline.host_calls import SecondPass


def open_with_progress(
    paths: Sequence[str],
    read_options: ReadOptions,
    verbosity: str = NORMAL,
    selection: Selection | None = None,
    replayed: bool = False,
    reread: Sequence[SecondPass[Any]] = (),
    all_ranks: bool = True,
    may_be_known: bool = False,
) -> Run:
    """Read a run and keep what is selected; a terminal shows the progress after a second.

    Args:
        replayed: whether the run is replayed next: files are parsed once, and it is said if memory may not suffice.
        may_be_known: whether findings are all that is asked of the replay: :func:`with_findings` says it if they are
            not known from before.
        reread: what is read of each file next: of a replay and on a cluster, by the processes that read the file.
        all_ranks: whether every rank is replayed: of many, those that are not need no second reading.
    """
    # Before NumPy is imported: its linear algebra, which reading does not need, starts a thread per core, and these
    # spin for a tenth of a second. A library may not decide that for its caller; a command may.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from dptrace.load.open import open_run
    from dptrace.readers.discovery import find

    sources = find(paths) if replayed else None
    also = reread if replayed or read_options.dask is not None else ()
    if sources is not None:
        also = _to_replay(sources.files, reread, all_ranks, read_options)
        if not may_be_known:
            _say_memory(sources.files, all_ranks)
    read_options = replace(read_options, prefetch=(*read_options.prefetch, *also))
    with progress("Reading", verbosity) as show:

        def file_done(done: int, total: int, name: str) -> None:
            show(done / total, name)
            if verbosity == VERBOSE and done:
                click.echo(sanitize(f"Read {name} ({done} of {total})"), err=True)

        run = open_run(paths, read_options, file_done, sources)
    return run.select(selection.ranks, selection.steps) if selection is not None else run


open_to_find = partial(open_with_progress, all_ranks=False, may_be_known=True)
"""Read a run for :func:`with_findings`."""


def _to_replay(
    files: Sequence[Source], reread: Sequence[SecondPass[Any]], all_ranks: bool, read_options: ReadOptions
) -> Sequence[SecondPass[Any]]:
    """Return what a replay reads of each file.

    Of many ranks, which of them are replayed is known once all are read: the cache keeps the events of those that are
    read anyway.
    """
    from dptrace.replay.graph.events import RANK_EVENTS
    from dptrace.replay.representatives import MOST_REPLAYED

    if all_ranks or len(files) <= MOST_REPLAYED:
        return (RANK_EVENTS, *reread)
    return (replace_field(RANK_EVENTS, if_parsed=True),) if read_options.cache and read_options.dask is None else ()


def _say_memory(files: Sequence[Source], all_ranks: bool = False) -> None:
    """Say what a replay of the files needs, on a machine that may be too small for it."""
    from dptrace.load.open import memory_warning
    from dptrace.replay.representatives import MOST_REPLAYED

    if warning := memory_warning(files, len(files) if all_ranks else 2 * MOST_REPLAYED):
        print_notes((warning,))


def with_findings(run: Run, verbosity: str = NORMAL, compute: bool = False) -> Run:
    """Return a run after its findings, or those on its compute, were found; a terminal shows the progress."""
    from dptrace.replay.findings import are_known, compute_findings_of, findings_of

    if run.sources is not None and not are_known(run, compute):
        _say_memory(run.sources.files)
    with progress("Replaying", verbosity) as show:
        findings_of(run, lambda fraction: show(fraction, ""))
        if compute:
            compute_findings_of(run)
    return run


# The two sides of ``dptrace diff``: A and B, or several recordings each with --before and --after, or a baseline as A.


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
        ctx.allow_extra_args = True
        more = super().parse_args(ctx, spread)
        if more and not ctx.resilient_parsing:
            sides = ctx.params["sides"]
            runs = (quoted_paths([run]) for run in (sides.a, sides.b, *more) if run is not None)
            raise UsageError(
                f"{more[0]}: two runs are compared. For more on one axis: dptrace view {' --against '.join(runs)}. For "
                "several recordings of each side: --before and --after."
            )
        return more


@dataclass(frozen=True, slots=True)
class Sides:
    """A and B as they were typed: the recordings of both sides, and what to keep of them."""

    a: str | None = None
    b: str | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    ranks: frozenset[int] | None = None
    steps: tuple[int, int] | None = None
    before_steps: tuple[int, int] | None = None
    after_steps: tuple[int, int] | None = None
    baseline: str | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments that name the same sides again."""
        before, after = self.recordings()
        of_baseline = () if self.baseline is None else ("--baseline", self.baseline)
        several = bool(self.before or self.after)
        return ("--before",) * bool(self.before) + before + of_baseline + ("--after",) * several + after

    def recordings(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the recordings of A and of B; none of A where it is a baseline.

        Raises:
            UsageError: a side is missing, or named twice.
        """
        a, b, before, after = self.a, self.b, self.before, self.after
        if (before or after) and a is not None:
            raise UsageError(f"{a}: name two runs, or all recordings with --before and --after, not both.")
        if self.baseline is not None and (before or b is not None):
            raise UsageError(f"--baseline {self.baseline} is A: name B alone, as one run or with --after.")
        if before and not after:
            raise UsageError("--before needs --after: name the recordings of the other side.")
        if after:
            return before, after
        if a is None:
            raise UsageError("Missing argument 'A': name two runs, or --before and --after, or one and a baseline.")
        return ((), (a,)) if b is None else ((a,), (b,))

    def selections(self) -> tuple[Selection, Selection]:
        """Return what to keep of A and of B.

        Raises:
            UsageError: a recording is given twice, or steps contradict each other.
        """
        if self.steps is not None and (self.before_steps is not None or self.after_steps is not None):
            raise UsageError(
                "--steps chooses the steps of both sides; give either it or --before-steps, --after-steps."
            )
        if not self.recordings()[0] and (self.ranks or self.steps or self.before_steps):
            raise UsageError(
                "A baseline has the ranks and steps that it was saved with: give --ranks and --steps to dptrace "
                "baseline save. --after-steps chooses steps of the other side."
            )
        if sum(self.recordings(), ()).count(STDIN) > 1:
            raise UsageError("Standard input (-) can be given once only: save one of the two as a file, and name that.")
        steps = self.before_steps or self.steps, self.after_steps or self.steps
        _check_overlap(*self.recordings(), steps, bool(self.before))
        return Selection(self.ranks, steps[0]), Selection(self.ranks, steps[1])


def _steps(option: str, text: str) -> Any:
    chosen = field_of("sides", Sides())
    return click.option(option, type=lambda given: steps_of(given, option), metavar="A:B", help=text, **chosen)


_OF_SIDES = field_of("sides", Sides())
_BEFORE, _AFTER = (f"Recordings {when} the change, instead of {x}." for when, x in (("before", "A"), ("after", "B")))
side_options = group(
    click.argument("a", metavar="[A]", required=False, **_OF_SIDES),
    click.argument("b", metavar="[B]", required=False, **_OF_SIDES),
    click.option("--before", multiple=True, metavar="RUN...", help=_BEFORE, **_OF_SIDES),
    click.option("--after", multiple=True, metavar="RUN...", help=_AFTER, **_OF_SIDES),
    click.option(
        "--baseline", metavar="NAME", help="Baseline, or its file, instead of A. [the one in use]", **_OF_SIDES
    ),
    click.option("--ranks", type=ranks_of, metavar="LIST", help="Only these ranks: 0,1 or 0-3.", **_OF_SIDES),
    _steps("--steps", "Only these steps, by their numbers in the trace: 4:6 or 4."),
    _steps("--before-steps", "Only these steps of A; with --after-steps, B's."),
    _steps("--after-steps", "Only these steps of B."),
)
"""A, B, --before, --after, --baseline and what to keep of them, as one argument *sides*."""


def _check_overlap(
    before: tuple[str, ...], after: tuple[str, ...], chosen: tuple[tuple[int, int] | None, ...], named: bool
) -> None:
    """Refuse a recording that is given twice, unless each side has other steps of it."""
    for side, option in ((before, "--before"), (after, "--after")):
        refuse_twice(side, f"{option}: ")
    same = {_place(path) for path in before} & {_place(path) for path in after}
    first, last = chosen
    apart = first is not None and last is not None and (first[1] < last[0] or last[1] < first[0])
    if same and not apart and (named or first != last):
        shared = next(path for path in after if _place(path) in same)
        raise UsageError(
            f"{shared} is on both sides: leave it out of one, or compare parts of it, for example "
            "--before-steps 4:9 --after-steps 10:15."
        )


def refuse_twice(paths: Sequence[str], what: str = "") -> None:
    """Refuse a recording that is given twice, before any is read."""
    for number, path in enumerate(paths):
        if _place(path) in map(_place, paths[:number]):
            raise UsageError(f"{what}{path}: a recording is given twice; a copy adds no evidence.")


def _place(path: str) -> str:
    return path if is_url(path) else str(Path(path).resolve())

"""Arguments and options that several verbs share, each declared once."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import click

from dptrace.commands.shared.output import NORMAL, QUIET, VERBOSE, OutputFile
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

__all__ = [
    "RenamedOption",
    "Selection",
    "check_machines",
    "force_option",
    "json_option",
    "machine_options",
    "output_option",
    "parse_ranks",
    "parse_steps",
    "quiet_option",
    "reading_options",
    "run_argument",
    "selection_options",
    "strict_option",
    "verbosity_options",
]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class RenamedOption(click.Option):
    """An option that also works under its former name, which --help does not show."""

    def __init__(self, *args: Any, old_name: str, **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.old_name = old_name

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Register both names."""
        shown = self.opts
        self.opts = [*shown, self.old_name]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


def _add(function: Callable[..., Any], *options: Callable[..., Any]) -> Any:
    """Add options in the order in which --help lists them."""
    for option in reversed(options):
        function = option(function)
    return function


def run_argument(function: Decorated) -> Decorated:
    """Add the argument RUN…: a run folder, a trace, several, a folder, a glob, an archive or URLs of traces."""
    return click.argument("paths", metavar="RUN...", nargs=-1, required=True, type=click.Path())(function)


def strict_option(function: Decorated) -> Decorated:
    """Add --strict."""
    text = "Turn every warning about truncated or damaged data into an error."
    return click.option("--strict", is_flag=True, help=text)(function)


def reading_options(function: Decorated) -> Decorated:
    """Add the options on how a run is read, as one argument *read_options*."""

    @functools.wraps(function)
    def with_reading(
        *args: Any, comm_patterns: tuple[str, ...], strict: bool, cache: bool, jobs: int | None, **rest: Any
    ) -> Any:
        return function(*args, read_options=ReadOptions(comm_patterns, strict, cache, jobs), **rest)

    return cast(
        Decorated,
        _add(
            with_reading,
            click.option(
                "--comm-pattern",
                "comm_patterns",
                multiple=True,
                metavar="REGEX",
                help="Also count kernels with a matching name as communication. May be given several times.",
            ),
            strict_option,
            click.option(
                "--no-cache", "cache", flag_value=False, default=True, help="Neither use nor write the cache."
            ),
            click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes that read. [automatic]"),
        ),
    )


def quiet_option(function: Decorated) -> Decorated:
    """Add -q alone, as the argument *verbosity*, to a verb that has no details to print."""
    option = click.option(
        "-q",
        "--quiet",
        "verbosity",
        flag_value=QUIET,
        default=NORMAL,
        help="Print only the answer: no progress, no hints.",
    )
    return option(function)


def verbosity_options(function: Decorated) -> Decorated:
    """Add -q and -v, as the argument *verbosity*."""
    verbose = click.option("-v", "--verbose", "verbosity", flag_value=VERBOSE, help="Print each file as it is read.")
    return quiet_option(verbose(function))


def json_option(function: Decorated) -> Decorated:
    """Add --json, as the argument *as_json*."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(function)


def force_option(function: Decorated) -> Decorated:
    """Add --force."""
    return click.option("--force", is_flag=True, help="Overwrite existing files.")(function)


def output_option(function: Decorated) -> Decorated:
    """Add -o and --force, to a verb whose answer goes to the terminal otherwise."""
    text = "Write to this file instead of the terminal."
    return cast(
        Decorated, _add(function, click.option("-o", "--output", type=OutputFile(dash=True), help=text), force_option)
    )


def machine_options(function: Decorated) -> Decorated:
    """Add --nnodes, --node-rank and --rdzv-endpoint."""
    return cast(
        Decorated,
        _add(
            function,
            click.option(
                "--nnodes", type=click.IntRange(1), default=1, metavar="N", help="Machines; start this command on each."
            ),
            click.option("--node-rank", type=click.IntRange(0), metavar="N", help="Number of this machine, from 0."),
            click.option("--rdzv-endpoint", metavar="HOST:PORT", help="Address at which machine 0 listens."),
        ),
    )


def check_machines(options: dict[str, Any]) -> None:
    """Refuse values of :func:`machine_options` that do not fit together.

    Raises:
        UsageError: an option is missing or out of range.
    """
    nnodes, node_rank, endpoint = options["nnodes"], options["node_rank"], options["rdzv_endpoint"]
    if nnodes == 1 and (node_rank or endpoint):
        raise UsageError("--node-rank and --rdzv-endpoint are for several machines: add --nnodes.")
    if nnodes > 1 and (node_rank is None or endpoint is None):
        raise UsageError("--nnodes needs --node-rank (0 on the first machine) and its --rdzv-endpoint HOST:PORT.")
    if node_rank is not None and node_rank >= nnodes:
        raise UsageError(f"--node-rank {node_rank}: must be from 0 to {nnodes - 1} with --nnodes {nnodes}.")


@dataclass(frozen=True, slots=True)
class Selection:
    """The ranks and steps to keep of a run; None keeps all."""

    ranks: frozenset[int] | None = None
    steps: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        return self != Selection()


def selection_options(function: Decorated) -> Decorated:
    """Add --ranks and --steps, as one argument *selection*."""

    @functools.wraps(function)
    def with_selection(*args: Any, ranks: str | None, steps: str | None, **rest: Any) -> Any:
        selection = Selection(
            parse_ranks(ranks) if ranks is not None else None, parse_steps(steps) if steps is not None else None
        )
        return function(*args, selection=selection, **rest)

    return cast(
        Decorated,
        _add(
            with_selection,
            click.option("--ranks", metavar="LIST", help="Only these ranks: 0,1 or 0-3."),
            click.option("--steps", metavar="A:B", help="Only these steps, by their numbers in the trace: 4:6 or 4."),
        ),
    )


def parse_ranks(text: str) -> frozenset[int]:
    """Parse ``0,2`` or ``0-3,8``.

    Raises:
        UsageError: the text is neither.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"--ranks {text}: expected numbers and ranges, for example 0,1 or 0-3.")
        first, last = int(match[1]), int(match[2] or match[1])
        ranks |= set(range(first, last + 1))
    return frozenset(ranks)


def parse_steps(text: str) -> tuple[int, int]:
    """Parse ``4`` or ``4:6``: the first and the last step, both included, by their numbers in the trace.

    Raises:
        UsageError: the text is neither.
    """
    match = re.fullmatch(r"\s*(\d{1,12})(?::(\d{1,12}))?\s*", text)
    if not match or int(match[2] or match[1]) < int(match[1]):
        raise UsageError(f"--steps {text}: expected the first and the last number, for example 4:6, or one, 4.")
    return int(match[1]), int(match[2] or match[1])

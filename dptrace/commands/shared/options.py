"""Arguments and options that several verbs share, each declared once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.numbers import Amount, Whole
from dptrace.commands.shared.output import NORMAL, QUIET, VERBOSE
from dptrace.core.numbers import AMOUNT
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions
from dptrace.run.selection import ranks_of, steps_of

if TYPE_CHECKING:
    from dptrace.run.run import Run


Decorator = Callable[[Any], Any]
"""Adds options to the function below it."""


class Toggle(click.Option):
    """An option with a --no- form, which --help lists as one: --[no-]gains."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the two columns of --help."""
        record = super().get_help_record(ctx)
        return None if record is None else (f"--[no-]{self.opts[0][2:]}", record[1])


def group(*options: Decorator) -> Decorator:
    """Return a decorator that adds several options, in the order in which --help lists them."""

    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def field_of(argument: str, default: Any) -> dict[str, Any]:
    """Return the attributes of an option that sets the field of its name in the dataclass *argument* of the verb."""

    def set_field(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        ctx.params[argument] = replace(ctx.params.get(argument, default), **{str(param.name): value})

    return {"callback": set_field, "expose_value": False}


run_argument = click.argument("paths", metavar="RUN...", nargs=-1, required=True, type=click.Path())
"""RUN…: a run folder, a trace, several, a folder, a glob, an archive or URLs of traces."""

_STRICT = "Turn every warning about truncated or damaged data into an error."
strict_option = click.option("--strict", is_flag=True, help=_STRICT)

_PATTERN = "Also count kernels with a matching name as communication; repeatable."
_PHASE_LABELS = "Count work under labels that match as a phase, 'REGEX=backward'; repeatable."
_STEP_RANGE = "Take the ranges with this name as the steps: NVTX's, or record_function's."
_IGNORE = "Leave a rank out, such as one whose file is damaged; repeatable."
_WINDOW = "Of the windows of a schedule that repeats, the N-th; else all are one run."
window_option = click.option("--window", type=Whole(1), metavar="N", help=_WINDOW)
"""--window alone, as the argument *window*."""
_DASK = "Read on a Dask cluster: tcp://scheduler:8786, or 'local' for one here."
_READ = field_of("read_options", ReadOptions())
reading_options = group(
    click.option("--comm-pattern", "comm_patterns", multiple=True, metavar="REGEX", help=_PATTERN, **_READ),
    click.option("--phase-labels", multiple=True, metavar="RULE", help=_PHASE_LABELS, **_READ),
    click.option("--step-range", metavar="NAME", default="", help=_STEP_RANGE, **_READ),
    click.option("--ignore", multiple=True, type=Whole(0), metavar="RANK", help=_IGNORE, **_READ),
    click.option("--window", type=Whole(1), metavar="N", help=_WINDOW, **_READ),
    click.option("--strict", is_flag=True, help=_STRICT, **_READ),
    click.option(
        "--no-cache", "cache", flag_value=False, default=True, help="Neither use nor write the cache.", **_READ
    ),
    click.option("--jobs", type=Whole(1), metavar="N", help="Processes that read. [automatic]", **_READ),
    click.option("--dask", metavar="ADDRESS", help=_DASK, **_READ),
)
"""The options on how a run is read, as one argument *read_options*."""

_QUIET = "Print only the answer: no progress, no hints."
quiet_option = click.option("-q", "--quiet", "verbosity", flag_value=QUIET, default=NORMAL, help=_QUIET)
"""-q alone, as the argument *verbosity*, for a verb that has no details to print."""

_VERBOSE = "Print each file as it is read."
verbosity_options = group(quiet_option, click.option("-v", "--verbose", "verbosity", flag_value=VERBOSE, help=_VERBOSE))
"""-q and -v, as the argument *verbosity*."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
_NO_ALIGN = "Leave each rank on its own clock, as recorded, and correct none."
align_option = click.option("--no-align", "align", flag_value=False, default=True, help=_NO_ALIGN, **_READ)
"""Whether clocks that are off are corrected, wherever ranks are compared, drawn or exported; part of *read_options*."""
force_option = click.option("--force", is_flag=True, help="Overwrite existing files.")


class _Machines(Whole):
    """A number of machines; torchrun's MIN:MAX is refused with the reason."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and re.fullmatch(r"\d+:\d+", value):
            self.fail(
                f"{value} is elastic, and a recording has the same ranks throughout. Give the number of machines, such "
                f"as --nnodes {value.rpartition(':')[2]}; or let torchrun start the ranks, each of which records "
                f"itself until it restarts them: dptrace record torchrun --nnodes {value} … train.py.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


_NNODES = "Machines; start this command on each."
machine_options = group(
    click.option("--nnodes", type=_Machines(1), default=1, metavar="N", help=_NNODES),
    click.option("--node-rank", type=Whole(0), metavar="N", help="Number of this machine, from 0."),
    click.option("--rdzv-endpoint", metavar="HOST:PORT", help="Address at which machine 0 listens."),
)


def given_options() -> set[str]:
    """Return the names of the parameters that the command line sets."""
    context = click.get_current_context()
    on_command_line = click.core.ParameterSource.COMMANDLINE
    return {
        str(param.name)
        for param in context.command.params
        if context.get_parameter_source(str(param.name)) is on_command_line
    }


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


_SELECTION = field_of("selection", Selection())
_STEPS = "Only these steps, by their numbers in the trace: 4:6 or 4."
selection_options = group(
    click.option("--ranks", type=ranks_of, metavar="LIST", help="Only these ranks: 0,1 or 0-3.", **_SELECTION),
    click.option("--steps", type=steps_of, metavar="A:B", help=_STEPS, **_SELECTION),
)
"""--ranks and --steps, as one argument *selection*."""

run_options = group(run_argument, selection_options)
opening_options = group(reading_options, verbosity_options)


# Options on what a step computes, where run.json does not say it: parameters, tokens, samples, and the GPU's peak.


_AMOUNT = Amount(AMOUNT)
workload_options = group(
    click.option("--params", "parameters", type=_AMOUNT, metavar="N", help="Parameters of the whole model, like 7B."),
    click.option("--tokens", type=_AMOUNT, metavar="N", help="Tokens of one step, over all ranks, like 4M."),
    click.option("--samples", type=_AMOUNT, metavar="N", help="Samples of one step, over all ranks."),
    click.option("--peak-tflops", type=_AMOUNT, metavar="N", help="Dense peak of one GPU in TFLOP/s, for MFU."),
)
"""--params, --tokens, --samples and --peak-tflops."""


def with_workload(run: Run, **values: float | None) -> Run:
    """Return the run with what the options say of a step: the arguments of :data:`workload_options`."""
    if all(value is None for value in values.values()):
        return run
    from dptrace.run.utilization import Workload

    return replace(run, workload=Workload(**values))

"""The options of ``dptrace record`` that say when to record, for how long, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dptrace.commands.shared.numbers import NumberType, Whole
from dptrace.commands.shared.options import Toggle, group
from dptrace.errors import UsageError
from dptrace.record.launch.monitor import request_window
from dptrace.record.options.catalog import TrainerOptions
from dptrace.record.run_folder import RunFolder

_SECONDS = 1e9
"""Most seconds that an option may name: 30 years."""

window_options = group(
    click.option(
        "--duration",
        type=NumberType(above=0, most=_SECONDS),
        metavar="S",
        help="Record about S seconds instead of --steps.",
    ),
    click.option("--stop", is_flag=True, help="End the training after the recording; by default, it continues."),
    click.option("--repeat", type=Whole(1), default=1, metavar="N", help="Record N runs: NAME, NAME-2 ..."),
    click.option(
        "--every", type=Whole(1), metavar="N", help="With --repeat: steps from the start of one run to the next."
    ),
    click.option(
        "--trigger",
        metavar="FILE|SIGUSR2",
        help="Record only when FILE appears, which is then deleted, or on the signal.",
    ),
    click.option("--attach", metavar="RUN", help="Ask a running dptrace record -o RUN to record now, and return."),
    click.option(
        "--use-script-profiler",
        is_flag=True,
        help="Record with the script's own torch.profiler: its first trace becomes the run.",
    ),
    click.option("--light", is_flag=True, help="Record kernels and communication only: no operators, no shapes."),
    click.option(
        "--shapes/--no-shapes",
        default=None,
        cls=Toggle,
        help="Record the shapes of operators on GPUs, for FLOPs. [default: yes, but with --light]",
    ),
    click.option("--memory", is_flag=True, help="Also record each allocation and free, for dptrace analyze --memory."),
    click.option("--modules", is_flag=True, help="Mark each module's forward, so that dptrace kernels shows layers."),
    click.option(
        "--timeout",
        type=NumberType(0, _SECONDS),
        metavar="S",
        help="End a job in which a rank makes no step for S seconds. [with --mode: 1800]",
    ),
)


_EXCLUDED: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "mode",
        ("duration", "stop", "every", "trigger", "repeat"),
        "is for a script of your own: a trainer of dptrace ends when it is recorded.",
    ),
    ("mode", ("use_script_profiler",), "is for a script that uses torch.profiler; a trainer of dptrace does not."),
    (
        "use_script_profiler",
        ("steps", "warmup", "wait", "duration", "trigger", "light", "shapes", "memory", "modules", "repeat"),
        "is for dptrace's profiler; with --use-script-profiler, the schedule in the script decides.",
    ),
    ("light", ("modules",), "finds a module's backward by its operators, which --light leaves out; choose one."),
    ("light", ("shapes",), "records the inputs of operators, which --light leaves out; choose one."),
    ("duration", ("steps",), "is a number of steps, and --duration one of seconds: choose one."),
    ("trigger", ("wait",), "counts steps from the beginning; with --trigger, recording begins on demand."),
    ("trigger", ("every", "repeat"), "is not for --trigger, which records on demand, as often as you ask."),
    ("trigger", ("stop",), "ends the training after the recording; with --trigger, another one may follow."),
)
"""With an option, others that would have no effect, and why."""


def check_windows(mode: str | None, options: dict[str, Any]) -> None:
    """Check that the options can be combined.

    Raises:
        UsageError: they cannot; the message says which.
    """
    given = {name for name, value in options.items() if value and (name != "repeat" or value > 1)}
    given |= {"mode"} if mode is not None else set()
    for option, others, why in _EXCLUDED:
        for other in others:
            if option in given and other in given:
                raise UsageError(f"--{other.replace('_', '-')} {why}")
    if "every" in given and "repeat" not in given:
        raise UsageError("--every is the distance between several recordings: add --repeat N.")
    if "repeat" in given and "every" not in given:
        raise UsageError("--repeat needs --every N: the steps from the start of one recording to that of the next.")
    defaults, trigger = TrainerOptions(), options["trigger"]
    length = (options["warmup"] or defaults.warmup) + (options["steps"] or defaults.steps)
    if "every" in given and "duration" not in given and options["every"] < length:
        raise UsageError(f"--every {options['every']}: one recording takes {length} steps with its warm-up.")
    if trigger is not None and (not trigger or (trigger.startswith("SIG") and trigger != "SIGUSR2")):
        raise UsageError(f"--trigger {trigger}: give SIGUSR2, or the name of a file.")


def window_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``Launch`` that the options stand for."""
    asked = {name: options[name] for name in ("steps", "warmup", "wait", "light", "memory", "modules", "shapes")}
    asked["shapes"] = asked["shapes"] is not False
    return {
        "schedule": asked | {"duration_s": options["duration"], "every": options["every"] or 0},
        **{name: options[name] for name in ("repeat", "stop", "trigger", "use_script_profiler")},
        "timeout_s": options["timeout"],
    }


def attach(run: str, mode: str | None, script: tuple[str, ...]) -> None:
    """Ask the ``dptrace record`` that writes to *run* for a recording.

    Raises:
        UsageError: something else is given too, or no such job is running.
    """
    if mode is not None or script:
        raise UsageError("--attach asks a job that is running; leave --mode and the script out.")
    request_window(RunFolder(Path(run)))
    click.echo(f"Asked for a recording: it will be in {run} or, if that is taken, in {run}-2, {run}-3 ...", err=True)

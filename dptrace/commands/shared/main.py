"""The command line: a group whose verbs are imported only when they run, and that turns our errors into a line."""

from __future__ import annotations

import importlib
import io
import os
import sys

import click

from dptrace.core.text import sanitize
from dptrace.errors import DptraceError
from dptrace.version import __version__

__all__ = ["COMMANDS", "cli", "main"]

COMMANDS = {
    "record": "Record a training run: one Kineto trace per rank.",
    "analyze": "Split each step: forward, backward, exposed and overlapped communication, idle.",
    "view": "Draw the per-GPU Gantt timeline, in the browser or in the terminal.",
    "report": "Write all of it on one page, to attach to a ticket.",
    "diff": "Compare two runs: what moved, by how much, and whether it is noise.",
    "hta": "Run an analysis of Holistic Trace Analysis on it.",
    "export": "Merge all ranks into one trace for Perfetto or Chrome.",
    "bench": "Train in many ways, and compare: epoch time, speedup, communication.",
    "sweep": "Train with an option's values in turn, and tell which is best: bucket caps, batches.",
    "links": "Measure what connects the ranks: latency and bandwidth of each collective.",
    "doctor": "Check torch, GPUs and NCCL, and say what will work.",
    "cp": "Copy a trainer here, to edit it.",
    "completion": "Print the shell's completion script.",
}
"""Verbs with their one-line help, told here so that ``--help`` imports none of them."""


class _WrongUse(click.ClickException):
    """One of our errors that is the caller's, shown as click shows errors: one line, no traceback, exit code 2."""

    exit_code = 2


class LazyGroup(click.Group):
    """Import a verb only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = importlib.import_module(f"dptrace.commands.{name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(f"{error.message} The commands are {', '.join(COMMANDS)}.", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except DptraceError as error:
            kind = _WrongUse if error.exit_code == _WrongUse.exit_code else click.ClickException
            raise kind(sanitize(str(error))) from error
        except BrokenPipeError:
            # click would make it exit code 1.
            _forget_output()
            ctx.exit(0)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="dptrace")
def cli() -> None:
    """Where does the time of a multi-GPU training step go?

    \b
    dptrace record --mode interleaved --gpus 4     # one trace per rank, in runs/
    dptrace analyze runs/interleaved               # the split, per rank and step
    dptrace view runs/interleaved                  # the Gantt page
    dptrace export runs/interleaved -o all.pftrace # one file for ui.perfetto.dev
    """


def main() -> None:
    """Run the command line, and give the shell its exit code: 130 after Ctrl-C, 1 where the output can't be written.

    A closed pipe (``dptrace analyze RUN | head``) is no error.
    """
    # Closed by the shell (`>&-`): what is said goes nowhere.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - for as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no sign for µ must not end the command
    try:
        code = cli.main(prog_name="dptrace", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        code = 130
    except BrokenPipeError:
        _forget_output()
        code = 0
    except OSError as error:
        _forget_output()
        click.echo(f"Error: the output can't be written: {error.strerror or error}.", err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _forget_output() -> None:
    """Let what is still to be flushed at exit go nowhere: it can't go where it should."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

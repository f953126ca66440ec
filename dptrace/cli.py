"""The command line: a group whose verbs are imported only when they run, and that turns our errors into a line."""

from __future__ import annotations

import importlib
import sys

import click

from dptrace import __version__
from dptrace.errors import DptraceError

__all__ = ["COMMANDS", "cli", "main"]

COMMANDS = {
    "record": "Record a training run: one Kineto trace per rank.",
    "analyze": "Split each step: forward, backward, exposed and overlapped communication, idle.",
    "view": "Draw the per-GPU Gantt timeline, in the browser or in the terminal.",
    "export": "Merge all ranks into one trace for Perfetto or Chrome.",
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
            raise kind(str(error)) from error


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
    """Run the command line; a closed pipe (``dptrace analyze RUN | head``) is no error."""
    try:
        cli(prog_name="dptrace")
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)

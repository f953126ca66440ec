"""The command line: a group that imports a verb only when it runs, and prints errors as one line."""

from __future__ import annotations

import errno
import importlib
import inspect
import io
import os
import sys

import click

from dptrace.core.files import command_files, ensure_home, unreadable
from dptrace.core.termination import Terminated, end_on_signals, end_retries
from dptrace.core.units import for_terminal, nearest, sanitize
from dptrace.errors import DptraceError
from dptrace.version import __version__

_LOOK, _RECORD, _COMPARE = "Look at a run", "Record and measure", "Compare runs"
_PLAN, _MAINTAIN = "Plan and predict", "Maintain"
COMMANDS = {
    "analyze": (_LOOK, "Split each step: forward, backward, exposed and overlapped communication, idle."),
    "view": (_LOOK, "Draw the per-GPU Gantt chart, in the browser or in the terminal."),
    "report": (_LOOK, "Write findings, charts and tables as one page, to attach to a ticket."),
    "kernels": (_LOOK, "List what the GPUs compute: kernels, operators, shapes, modules."),
    "critical-path": (_LOOK, "Find the chain that sets the length of a step, across ranks."),
    "hta": (_LOOK, "Run an analysis of Holistic Trace Analysis."),
    "export": (_LOOK, "Merge all ranks into one trace for Perfetto or Chrome."),
    "flight": (_LOOK, "Find out which rank makes a job hang, from flight recorder dumps."),
    "record": (_RECORD, "Record a training run: one Kineto trace per rank."),
    "watch": (_RECORD, "Watch every step of a whole run: who is late, and since when."),
    "bench": (_RECORD, "Benchmark ways to train: epoch time, speedup, communication."),
    "sweep": (_RECORD, "Train with several values of an option, and find the best one."),
    "links": (_RECORD, "Measure latency and bandwidth between the ranks, for each collective."),
    "cp": (_RECORD, "Copy a trainer here, to edit it."),
    "diff": (_COMPARE, "Compare two runs: what changed, by how much, and whether it is noise."),
    "baseline": (_COMPARE, "Keep the figures of recordings, for diff to compare later ones with."),
    "history": (_COMPARE, "Show the runs of a job over time, and from which run on it was slower."),
    "log": (_COMPARE, "Log a run's figures and pages to wandb, MLflow or TensorBoard."),
    "whatif": (_PLAN, "Predict what a step would take if something were different, by replaying it."),
    "advise": (_PLAN, "Choose a way to train, and what to change, with what each gains."),
    "predict": (_PLAN, "Predict a step on any number of GPUs: its time, its memory, what is fastest."),
    "explain": (_PLAN, "Show a collective or a way to train in parallel, step by step, with its cost."),
    "doctor": (_MAINTAIN, "Check torch, GPUs and NCCL, and what will work."),
    "cache": (_MAINTAIN, "Show or clear the cache of parsed traces."),
    "completion": (_MAINTAIN, "Print the shell's completion script."),
    "schema": (_MAINTAIN, "Print the JSON schema of what a verb prints with --json."),
    "mcp": (_MAINTAIN, "Serve runs to an agent, over the Model Context Protocol."),
}
"""Verbs, each with its heading in ``--help`` and a line of help; they stand here so that ``--help`` imports none."""
_FORMER = {"memory": ("predict", "--memory")}
"""Former verbs, which still work, and what they are now."""

ENVIRONMENT = {
    "DPTRACE_CACHE": "Cache folder [default: see dptrace cache].",
    "DPTRACE_GZIP_LIMIT": "Factor by which a gzip file may grow when unpacked [200]; 0: no limit.",
    "HTA_DISABLE_NS_ROUNDING": "1 keeps fractions of µs in --hta-compat, as in HTA.",
    "COLUMNS": "Width of tables [default: the terminal's; 132 in a pipe or file].",
    "NO_COLOR": "Print without colors.",
    "CUDA_VISIBLE_DEVICES": "GPUs that record, bench, sweep and links use; empty for the CPU.",
    "OMP_NUM_THREADS": "CPU threads of each rank that they start [default: cores / ranks].",
    "OPENBLAS_NUM_THREADS": "Threads of NumPy's linear algebra while traces are read [1].",
    "LOGLEVEL": "Set it to see torchrun's own error messages.",
}
"""Environment variables that a user may set, with what each does."""

EXIT_CODES = {
    "0": "success",
    "1": "bad input, or a file that can't be read or written",
    "2": "wrong use: an option, argument or command",
    "3": "a limit of diff --fail-if is exceeded",
    "130": "interrupted with Ctrl-C",
    "143": "ended by SIGTERM (129: by SIGHUP)",
}


class _UsageFault(click.ClickException):
    """An error about wrong use, shown as click shows errors: one line, no traceback, exit code 2."""

    exit_code = 2


class LazyGroup(click.Group):
    """A group that imports a verb only when it runs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # "help VERB" is what many type first, and "help help" is help.
        asked = [*(arg for arg in args if arg != "help"), "--help"]
        return super().parse_args(ctx, asked if args[:1] == ["help"] else args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None

        command = importlib.import_module(f"dptrace.commands.{name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        # Below the options, where the last lines of a long help are.
        about, mark, examples = inspect.cleandoc(command.help or "").partition("\b\nExamples:\n")
        if mark:
            command.help, command.epilog = about, mark + examples
        for param in command.params:
            if isinstance(param.type, click.Path):
                param.type.readable = False  # what can't be read is bad input, not wrong use: reading it says so
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in _FORMER:
            args = [*_FORMER[args[0]], *args[1:]]
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(_unknown_command(args[0]), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading in dict.fromkeys(heading for heading, _ in COMMANDS.values()):
            with formatter.section(heading):
                formatter.write_dl([(verb, line) for verb, (group, line) in COMMANDS.items() if group == heading])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, rows in (("Environment variables", ENVIRONMENT), ("Exit codes", EXIT_CODES)):
            with formatter.section(heading):
                formatter.write_dl(list(rows.items()))

    def invoke(self, ctx: click.Context) -> object:
        try:
            with command_files():
                return super().invoke(ctx)
        except DptraceError as error:
            fault = click.ClickException(sanitize(str(error)))
            setattr(fault, "exit_code", error.exit_code)  # noqa: B010  # click types it as the class's
            raise fault from error
        except BrokenPipeError:
            # click would make it exit code 1.
            _discard_output()
            ctx.exit(0)
        except OSError as error:
            if isinstance(error, PermissionError) and error.filename:
                raise click.ClickException(sanitize(unreadable(error.filename, error))) from error
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise _UsageFault(f"{sanitize(str(error.filename))[:80]}…: the name is too long for a file.") from error


def _unknown_command(name: str) -> str:
    return f"No such command {sanitize(name)!r}.{nearest(name, COMMANDS)} The commands are {', '.join(COMMANDS)}."


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="dptrace")
def cli() -> None:
    """Find out where the time of a multi-GPU training step goes.

    \b
    dptrace record --mode interleaved --gpus 4     # one trace per rank, in runs/
    dptrace analyze runs/interleaved               # the split, per rank and step
    dptrace view runs/interleaved                  # the Gantt page
    dptrace export runs/interleaved -o all.pftrace # one file for ui.perfetto.dev
    dptrace help analyze                           # what a command does, and its options
    """
    columns = os.environ.get("COLUMNS", "")
    if not (columns.isdecimal() and int(columns)):
        os.environ.pop("COLUMNS", None)  # in no columns nothing would be printed


def main() -> None:
    """Run the command line and exit with its code: 130 after Ctrl-C, 143 after SIGTERM, 1 for an unwritable output.

    A closed pipe (``dptrace analyze RUN | head``) is not an error.
    """
    try:
        end_on_signals()
        ensure_home()
        _open_streams()
        try:
            code = cli.main(prog_name="dptrace", standalone_mode=False)
            sys.stdout.flush()
        except click.ClickException as error:
            shown = io.StringIO()
            error.show(shown)
            click.echo(for_terminal(shown.getvalue()), err=True)
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            click.echo("Interrupted.", err=True)
            code = 130
        except BrokenPipeError:
            _discard_output()
            code = 0
        except OSError as error:
            _discard_output()
            click.echo(f"Error: the output can't be written: {error.strerror or error}.", err=True)
            code = 1
    except Terminated as ended:
        end_retries()  # a further one, raised after this block, would end in a traceback
        _discard_output()  # the reader of a pipe may be gone, or may have stopped reading
        code = ended.exit_code
    finally:
        end_retries()
    sys.exit(code if isinstance(code, int) else 0)


def _open_streams() -> None:
    """Let the streams take all that a command prints."""
    # Closed by the shell (`>&-`): what a command prints fails to be written, and messages are discarded.
    sys.stdout = sys.stdout or open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115 - as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that can't show µ must not end the command


def _discard_output() -> None:
    """Discard what is still to be flushed at exit: it can't be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

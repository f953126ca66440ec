"""The help of ``dptrace record``: what concerns a user's own script first, the trainers' options on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from dptrace.commands.shared.options import RenamedOption
from dptrace.record.options.catalog import OPTIONS
from dptrace.record.options.modes import FAMILIES, MODES

__all__ = ["SCRIPT_OPTIONS", "RecordCommand", "trainers_help_option"]

SCRIPT_OPTIONS = ("steps", "warmup", "wait", "out")
"""The trainers' options that apply to a user's script too."""

_HEADINGS = {
    "first": "What to record",
    "end": "When to stop",
    "again": "Recording again, or on demand",
    "recording": "What to write",
    "machines": "Several machines",
    "faults": "When a rank fails",
    "trainers": "dptrace's own trainers instead of a script",
    "other": "Other",
}
_TRAINER_HEADINGS = {
    "first": "Model",
    "training": "How to train",
    "ddp": "DDP",
    "parallel": "Shards, tensors, pipelines and experts",
    "recording": "What to write",
    "faults": "Checkpoints",
}
_GROUPS = {
    **dict.fromkeys(("gpus", "steps", "warmup", "wait", "duration"), "first"),
    **dict.fromkeys(("light", "shapes", "modules", "memory", "use_script_profiler"), "first"),
    **dict.fromkeys(("stop", "timeout"), "end"),
    **dict.fromkeys(("trigger", "repeat", "every", "attach"), "again"),
    **dict.fromkeys(("out", "force", "links"), "recording"),
    **dict.fromkeys(("nnodes", "node_rank", "rdzv_endpoint"), "machines"),
    "max_restarts": "faults",
    **dict.fromkeys(("mode", "help_trainers"), "trainers"),
}
"""The heading of each option of ``--help``. Those that are not here, and not the trainers', are under "Other"."""
_TRAINER_GROUPS = {option.field: option.group for option in OPTIONS if option.field not in SCRIPT_OPTIONS}

_PROGRAMS = (
    "[OPTIONS] SCRIPT [ARGUMENTS]...",
    "[OPTIONS] -m MODULE [ARGUMENTS]...",
    "[OPTIONS] python|torchrun|accelerate launch ... SCRIPT [ARGUMENTS]...",
    "[OPTIONS] --mode MODE [TRAINER OPTIONS]",
)
_TRAINERS = _PROGRAMS[-1]
_PICTURE = """\
step      0             3              13
          | warm-up     | recorded     | written; training continues
          '- --warmup 3 '- --steps 10 -'
profiler    prepares      on             off and on alternately: its overhead
"""
_EXAMPLES = (
    "dptrace record --gpus 4 --steps 5 train.py --epochs 1",
    "dptrace record --gpus 4 -m pkg.train --epochs 1",
    "dptrace record torchrun --nproc-per-node 4 train.py",
)
_TRAINER_EXAMPLES = (
    "dptrace record --mode interleaved --gpus 4",
    "dptrace record --mode ddp --gpus 2 --model small --bucket-cap-mb 4",
)


class RecordCommand(click.Command):
    """A command that ends its options at ``-m``, and whose help has headings, a picture and examples."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options; what follows the script's name or ``-m`` is the script's."""
        return super().parse_args(ctx, self._end_options_at_module(args))

    def _end_options_at_module(self, args: list[str]) -> list[str]:
        takes_value = {
            name: not (isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count))
            for parameter in self.params
            for name in (*parameter.opts, *parameter.secondary_opts, *_old_names(parameter))
        }
        position = 0
        while position < len(args) and args[position].startswith("-") and args[position] not in ("-", "--"):
            word = args[position]
            if word.startswith("-m"):
                return [*args[:position], "--", *([word] if word == "-m" else ["-m", word[2:]]), *args[position + 1 :]]
            position += 1
            # -o NAME and --output NAME, but not -oNAME, --output=NAME or -q; in -qo NAME the last letter decides.
            last = word if word.startswith("--") else f"-{word[-1]}"
            position += takes_value.get(last, False) and (
                word.startswith("--") or not self._has_value(word, takes_value)
            )
        return args

    @staticmethod
    def _has_value(word: str, takes_value: dict[str, bool]) -> bool:
        """Return whether a group of short options contains the value of one of them, as in ``-oNAME``."""
        return any(takes_value.get(f"-{letter}", False) for letter in word[1:-1])

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line per way to name what is recorded."""
        for number, program in enumerate(_PROGRAMS):
            formatter.write_usage(ctx.command_path, program, None if number == 0 else " " * len("Usage: "))

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description and the picture."""
        super().format_help_text(ctx, formatter)
        with formatter.section("Which steps are recorded, by default"):
            formatter.write("".join(f"  {line}\n" for line in _PICTURE.splitlines()))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under headings, without those of the trainers."""
        self._format_options(ctx, formatter, trainers=False)

    def format_trainers(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of the trainers: their modes, options and examples."""
        formatter.write_usage(ctx.command_path, _TRAINERS)
        for family, heading in FAMILIES.items():
            rows = [(name, mode.description) for name, mode in MODES.items() if mode.family == family]
            with formatter.section(heading):
                formatter.write_dl(rows)
        self._format_options(ctx, formatter, trainers=True)
        _write_examples(formatter, _TRAINER_EXAMPLES)

    def _format_options(self, ctx: click.Context, formatter: click.HelpFormatter, trainers: bool) -> None:
        headings = _TRAINER_HEADINGS if trainers else _HEADINGS
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in headings.values()}
        for parameter in self.get_params(ctx):
            name = parameter.name or ""
            row = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if row is None or (name in _TRAINER_GROUPS) != trainers:
                continue
            groups[headings[_TRAINER_GROUPS[name] if trainers else _GROUPS.get(name, "other")]].append(row)
        for heading, rows in groups.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        _write_examples(formatter, _EXAMPLES)


def _old_names(parameter: click.Parameter) -> list[str]:
    return [parameter.old_name] if isinstance(parameter, RenamedOption) else []


def _write_examples(formatter: click.HelpFormatter, examples: Sequence[str]) -> None:
    with formatter.section("Examples"):
        formatter.write("".join(f"  {example}\n" for example in examples))


def _show(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        assert isinstance(ctx.command, RecordCommand)
        formatter = ctx.make_formatter()
        ctx.command.format_trainers(ctx, formatter)
        click.echo(formatter.getvalue().rstrip("\n"), color=ctx.color)
        ctx.exit()


def trainers_help_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--help-trainers``."""
    text = f"Show the {len(MODES)} modes and the trainers' options, and exit."
    return click.option("--help-trainers", is_flag=True, is_eager=True, expose_value=False, callback=_show, help=text)(
        function
    )

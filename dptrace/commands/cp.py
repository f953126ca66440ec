"""``dptrace cp``: a copy of a trainer, to edit."""

from __future__ import annotations

from pathlib import Path

import click

from dptrace.commands.shared.options import force_option, quiet_option
from dptrace.commands.shared.output import print_hint
from dptrace.errors import UsageError
from dptrace.record.options.modes import complete_mode, trainer


@click.command()
@click.argument("mode", shell_complete=complete_mode)
@click.argument("target", type=click.Path(path_type=Path), default=".", required=False)
@force_option
@quiet_option
def command(mode: str, target: Path, force: bool, verbosity: str) -> None:
    """Copy the trainer of MODE to TARGET (a folder or a file name) [default: the current folder], to edit it.

    The copy runs with torchrun and with dptrace record, whose --help-trainers lists the modes.

    \b
    Example:
      dptrace cp naive . && dptrace record --gpus 2 -o runs/my-naive ./naive.py
    """
    from dptrace.core.files import atomic_write, check_output, note_inputs

    source = trainer(mode)
    note_inputs([source])
    path = target / source.name if target.is_dir() else target
    if path.suffix != ".py":
        raise UsageError(f"{target}: is neither an existing folder nor a name that ends in .py.")
    check_output(path, force)
    with atomic_write(path) as temporary:
        temporary.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    print_hint(f"Wrote {path}.", verbosity)
    prefix = "" if len(path.parts) > 1 else "./"
    print_hint(f"Next: dptrace record --gpus 2 -o runs/my-{path.stem} {prefix}{path}", verbosity)

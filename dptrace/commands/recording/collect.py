"""``dptrace collect``: one run folder from the parts that several machines have recorded."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from dptrace.commands.shared.options import force_option, quiet_option
from dptrace.commands.shared.output import QUIET
from dptrace.core.text import sanitize
from dptrace.core.units import plural

_SHOWN = 8


@click.command()
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
@click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=click.Path(path_type=Path))
@force_option
@quiet_option
def command(destination: Path, sources: tuple[Path, ...], force: bool, verbosity: str) -> None:
    """Gather the parts of one run from SRC... in the run folder DEST.

    Machines that share no folder each keep their own ranks. SRC is such a run folder, copied here, a folder that holds
    several, or a tar or zip archive of them. Parts of different jobs are refused.

    \b
    Example:
      scp -r host1:runs/ddp from-host1
      dptrace collect runs/both runs/ddp from-host1
      dptrace analyze runs/both
    """
    from dptrace.record.collect.collect import collect

    run = collect(destination, sources, force)
    if verbosity == QUIET:
        return
    for note in run["notes"]:
        click.echo(f"! {sanitize(str(note))}", err=True)
    folder = shlex.quote(sanitize(run["folder"]))
    click.echo(f"Wrote {folder}: {plural(len(run['ranks']), 'rank')}{_missing(run)}.", err=True)
    click.echo(f"Next: dptrace analyze {folder}\n      dptrace view {folder}", err=True)


def _missing(run: dict[str, Any]) -> str:
    """Return which ranks of the job are in no part; "" if all are there."""
    here = {entry["rank"] for entry in run["ranks"]}
    world_size = run.get("world_size")
    count = world_size - len(here) if isinstance(world_size, int) else 0
    if count <= 0 or not isinstance(world_size, int):
        return ""
    numbers = [str(rank) for rank in range(min(world_size, len(here) + _SHOWN)) if rank not in here][:_SHOWN]
    more = f" and {count - len(numbers)} more" if count > len(numbers) else ""
    return f" of {world_size}; missing: {', '.join(numbers)}{more}"

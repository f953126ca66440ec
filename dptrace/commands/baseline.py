"""``dptrace baseline``: keep the figures of recordings, to compare later ones with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.answer import JSON, TEXT, Answer, Destination, answer_options, refuse
from dptrace.commands.shared.options import (
    Selection,
    reading_options,
    selection_options,
    verbosity_options,
    with_workload,
    workload_options,
)
from dptrace.commands.shared.output import print_hint, print_notes
from dptrace.commands.shared.reading import open_with_progress, refuse_twice
from dptrace.core.files import check_output, make_folder
from dptrace.core.units import byte_size, milliseconds
from dptrace.errors import DptraceError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.comparison.baseline import Baseline

_FOLDER = ".dptrace/baselines"


@click.command()
@click.argument("action", type=click.Choice(["save", "list", "use"]))
@click.argument("name", required=False)
@click.argument("paths", metavar="[RUN]...", nargs=-1, type=click.Path())
@click.option("--folder", type=click.Path(path_type=Path), default=_FOLDER, help=f"Of baselines. [{_FOLDER}]")
@selection_options
@answer_options()
@workload_options
@reading_options
@verbosity_options
def command(
    action: str,
    name: str | None,
    paths: tuple[str, ...],
    folder: Path,
    selection: Selection,
    to: Destination,
    read_options: ReadOptions,
    verbosity: str,
    **workload: float | None,
) -> None:
    """Keep the figures of recordings in one small file, and compare later recordings with it.

    save NAME RUN... writes .dptrace/baselines/NAME.json: each RUN is one recording, and three or more show how
    recordings of the same code differ. use NAME chooses the baseline that dptrace diff compares with where A is not
    named. list shows what is there, and which is in use. The file holds the figures of each step, collectives and
    kernels, not the traces: it can be committed, or kept in a CI server's cache. Of a watched run (dptrace watch), it
    keeps the summary, and dptrace diff compares another watched run with that.

    \b
    Examples:
      dptrace baseline save main runs/main-1 runs/main-2 runs/main-3
      dptrace baseline use main
      dptrace baseline list
      dptrace diff runs/branch --fail-if 'wall > +3%'
      dptrace baseline save main runs/new --force
    """
    from dptrace.comparison import baseline

    refuse(
        (
            (action != "list" and name is None, f"Missing argument 'NAME': dptrace baseline {action} NAME."),
            (action == "list" and name is not None, f"{name}: dptrace baseline list takes no name."),
            (action == "save" and not paths, f"Missing argument 'RUN': dptrace baseline save {name} RUN..."),
            (action != "save" and paths, f"{''.join(paths[:1])}: dptrace baseline {action} takes no run."),
        )
    )
    if action == "list":
        readable, damaged = {}, []
        for path in baseline.saved(folder):
            try:
                readable[path] = baseline.read(path)
            except DptraceError as error:
                damaged.append(f"Left out: {error} Delete the file, or save the baseline again with --force.")
        to.write(_answer(readable, folder))
        print_notes(damaged)
        return
    path = baseline.path_of(str(name), folder)
    if action == "use":
        found = baseline.read(baseline.find(str(name), folder))
        baseline.use(path)
        to.write(_answer({path: found}, folder))
        return
    refuse_twice(paths)
    make_folder(folder)
    check_output(path, to.force)
    to.write(_answer({path: _save(path, paths, selection, workload, read_options, verbosity)}, folder))
    if to.on_terminal and baseline.in_use(folder) != name:
        print_hint(f"Next: dptrace baseline use {name}", verbosity)


def _save(
    path: Path,
    paths: tuple[str, ...],
    selection: Selection,
    workload: dict[str, float | None],
    read_options: ReadOptions,
    verbosity: str,
) -> Baseline:
    """Write the figures of recordings, or the summary of a watched run."""
    from dptrace.comparison import baseline, watches
    from dptrace.readers.formats import is_watched

    if not any(map(is_watched, paths)):
        runs = [with_workload(open_with_progress((p,), read_options, verbosity, selection), **workload) for p in paths]
        return baseline.save(path, runs)
    chosen = bool(selection) or any(value is not None for value in workload.values())
    refuse(
        (
            (len(paths) > 1, f"{paths[0]}: a baseline holds one watched run, or recordings alone."),
            (chosen, f"{paths[0]} is a watched run, whose summary is kept as it is."),
        )
    )
    return baseline.save_watched(path, watches.read_summary(paths[0]))


def _answer(baselines: dict[Path, Baseline], folder: Path) -> Answer:
    """Return a row for each baseline."""
    from dptrace.comparison.baseline import in_use

    used = in_use(folder)
    rows: list[dict[str, Any]] = [one.summary(path) | {"in_use": path.stem == used} for path, one in baselines.items()]

    def tables(console: Console) -> None:
        from dptrace.viewers.base.table import TextTable, print_text_table

        cells = []
        for row in rows:
            counts = (str(row[name]) for name in ("recordings", "steps", "ranks"))
            name = f"{row['name']} ◀ in use" if row["in_use"] else row["name"]
            when = row["saved"][:16].replace("T", " ")
            cells.append((name, when, *counts, milliseconds(row["wall_ns"]), byte_size(row["bytes"])))
        columns = "baseline", "saved, UTC", "recordings", "steps", "ranks", "step ms", "size"
        note = "" if rows else "None yet: dptrace baseline save NAME RUN..."
        print_text_table(TextTable(columns, tuple(cells), 2, note), f"Baselines in {folder}", console)

    return Answer({TEXT: tables, JSON: lambda: {"schema": 1, "folder": str(folder), "baselines": rows}})

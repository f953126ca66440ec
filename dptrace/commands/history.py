"""``dptrace history``: the runs of a job over time, and from which run on it was slower or faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dptrace.commands.shared.answer import Answer, Destination, answer_options
from dptrace.commands.shared.options import opening_options
from dptrace.commands.shared.output import print_hint, print_notes, quoted_paths
from dptrace.commands.shared.reading import open_with_progress, refuse_twice
from dptrace.core.units import listed, plural
from dptrace.errors import DptraceError, UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from dptrace.comparison.history import History
    from dptrace.run.run import Run


@click.command()
@click.argument("paths", metavar="FOLDER...", nargs=-1, required=True, type=click.Path())
@answer_options("html", csv="Print CSV: a row for each run, times in ns.")
@opening_options
def command(paths: tuple[str, ...], to: Destination, read_options: ReadOptions, verbosity: str) -> None:
    """Show the runs in FOLDER in the order of time, and from which run on a step takes longer or shorter.

    FOLDER holds runs: run folders, archives, or baselines (dptrace baseline save), which keep the figures without the
    traces. Several arguments are one run each. A run from which on the step or a part of it has another level is
    marked, with what moved and what changed in its setup. Runs of different scripts, models, GPUs or numbers of ranks
    are listed apart.

    \b
    Examples:
      dptrace history runs
      dptrace history runs -o trend.html
      dptrace history .dptrace/baselines --json | jq '.series[0].changes'
      dptrace history nightly/2026-11-*
    """
    from dptrace.comparison.history import history
    from dptrace.comparison.sides import copies

    runs: list[tuple[Run, str]] = []
    left_out = []
    refuse_twice(paths)
    candidates = _candidates(paths)
    for path in candidates:
        try:
            runs += _opened(path, read_options, verbosity)
        except DptraceError as error:
            if path in paths or isinstance(error, UsageError):
                raise
            left_out.append(str(error))
    if candidates != [*paths]:
        # A folder may hold a run and its archive, or a run in two baselines.
        found = copies([run for run, _ in runs])
        left_out += [f"{runs[one][0].path}: a copy of {runs[first][0].path}." for one, first in found.items()]
        runs = [run for number, run in enumerate(runs) if number not in found]
    if not runs:
        raise DptraceError(
            "\n".join((f"{paths[0]}: holds no run; name the folder that holds the run folders.", *left_out[:1]))
        )
    to.write(_answer(history([run for run, _ in runs], [when for _, when in runs])))
    notes = [f"Left out: {text}" for text in left_out]
    if unsaid := [run.path for run, _ in runs if not run.metadata.get("created")]:
        notes.append(f"{plural(len(unsaid), 'run')} recorded when their files were changed, as far as known: ")
        notes[-1] += f"{listed(unsaid)} (a run.json would say it)."
    print_notes(notes)
    if to.on_terminal:
        print_hint(f"Next: dptrace history {quoted_paths(paths)} -o trend.html", verbosity)


def _candidates(paths: tuple[str, ...]) -> list[str]:
    """Return what may be a run: the entries of one folder that is no run itself, or all arguments."""
    from dptrace.readers.discovery import RUN_FILE

    folder = Path(paths[0])
    if len(paths) > 1 or not folder.is_dir() or (folder / RUN_FILE).exists():
        return list(paths)
    return [str(path) for path in sorted(folder.iterdir()) if not path.name.startswith(".") and _may_be_run(path)]


def _may_be_run(path: Path) -> bool:
    from dptrace.readers.storage import is_archive

    return path.is_dir() or is_archive(path.name) or path.suffix == ".json"


def _opened(path: str, read_options: ReadOptions, verbosity: str) -> Iterator[tuple[Run, str]]:
    """Yield the runs of a path, several of a baseline, and when its file was changed."""
    from dptrace.comparison.baseline import is_baseline, read
    from dptrace.comparison.history import file_time

    if is_baseline(Path(path)):
        for run in read(Path(path)).runs(Path(path)):
            yield replace(run, path=f"{Path(path).stem}: {Path(run.path).name}"), file_time(path)
    else:
        yield open_with_progress((path,), replace(read_options, figures_only=True), verbosity), file_time(path)


def _answer(found: History) -> Answer:
    from dptrace.viewers.pages import history

    return Answer(
        lambda console: history.print_history(found, console),
        found.to_dict,
        found.frame,
        lambda: history.document(found),
        markdown=lambda: history.markdown(found),
    )

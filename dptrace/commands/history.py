"""``dptrace history``: the runs in a folder, the worst first, and from which run on a job was slower or faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dptrace.commands.shared.answer import CSV, HTML, JSON, MARKDOWN, TEXT, Answer, Destination, answer_options
from dptrace.commands.shared.options import opening_options
from dptrace.commands.shared.output import print_hint, print_notes, quoted_paths
from dptrace.commands.shared.reading import open_with_progress, refuse_twice
from dptrace.core.files import unreadable
from dptrace.errors import DptraceError, UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from dptrace.comparison.history import History
    from dptrace.readers.runs import FoundRun
    from dptrace.run.run import Run


@click.command()
@click.argument("paths", metavar="FOLDER...", nargs=-1, required=True, type=click.Path())
@answer_options(HTML, csv="Print CSV: a row for each run, times in ns.")
@opening_options
def command(paths: tuple[str, ...], to: Destination, read_options: ReadOptions, verbosity: str) -> None:
    """List the runs in FOLDER, the worst first, and from which run on a step takes longer or shorter.

    FOLDER holds runs: run folders, trace files, archives, or baselines (dptrace baseline save), which keep the figures
    without the traces. Trace files that lie side by side are of one run if they are its ranks and were recorded
    together. Several arguments are one run each. The worst run is the one whose devices compute for the smallest share
    of a step. In the order of time, a run from which on the step or a part of it has another level is marked, with what
    moved and what changed in its setup. Runs of different scripts, models, GPUs or numbers of ranks are listed apart.

    Of watched runs (dptrace watch), the medians of all their steps are compared, and who was late is shown.

    \b
    Examples:
      dptrace history runs
      dptrace history runs -o runs.html
      dptrace history .dptrace/baselines --json | jq '.series[0].changes'
      dptrace history nightly/2026-11-*
    """
    from dptrace.comparison.history import history
    from dptrace.comparison.sides import copies

    refuse_twice(paths)
    if watched := _watched(paths):
        _show_watched(watched, to)
        return
    runs: list[tuple[Run, str]] = []
    left_out = []
    candidates, in_folder = _candidates(paths)
    if read_options.window is not None:
        # Reading says how many windows there are where none has this number.
        candidates = [one for one in candidates if one.window in (None, read_options.window)] or candidates[:1]
    for found in candidates:
        try:
            runs += _opened(found, read_options, verbosity)
        except DptraceError as error:
            if not in_folder or isinstance(error, UsageError):
                raise
            left_out.append(str(error))
    if in_folder:
        # A folder may hold a run and its archive, or a run in two baselines.
        same = copies([run for run, _ in runs])
        left_out += [f"{runs[one][0].path}: a copy of {runs[first][0].path}." for one, first in same.items()]
        runs = [run for number, run in enumerate(runs) if number not in same]
    if not runs:
        raise DptraceError(
            "\n".join((f"{paths[0]}: holds no run; name the folder that holds the run folders.", *left_out[:1]))
        )
    shown = history([run for run, _ in runs], [when for _, when in runs])
    to.write(_answer(shown))
    print_notes([f"Left out: {text}" for text in left_out])
    if to.on_terminal:
        worst = shown.worst_first[0]["run"]
        print_hint(f"Next: dptrace history {quoted_paths(paths)} -o runs.html", verbosity)
        if len(runs) > 1 and Path(worst).exists():
            print_hint(f"The worst: dptrace analyze {quoted_paths([worst])}", verbosity)


def _watched(paths: tuple[str, ...]) -> list[str]:
    """Return the watched runs that are named, or that a folder without other runs holds; none if they are recordings.

    Raises:
        UsageError: some are watched, others not.
    """
    from dptrace.readers.formats import is_watched

    found = [path for path in paths if is_watched(path)]
    if found and len(found) < len(paths):
        other = next(path for path in paths if path not in found)
        raise UsageError(f"{found[0]} is a watched run, {other} a recording: list those of one kind.")
    if found or len(paths) > 1 or not Path(paths[0]).is_dir():
        return found
    try:
        entries = [entry for entry in sorted(Path(paths[0]).iterdir()) if entry.name[0] != "."]
    except OSError as error:
        raise DptraceError(unreadable(Path(paths[0]), error)) from None
    kinds = [is_watched(entry) for entry in entries]
    return [*map(str, entries)] if kinds and all(kinds) else []


def _show_watched(folders: list[str], to: Destination) -> None:
    from dptrace.comparison import watches

    to.refuse_besides_words("a history of watched runs")
    content = watches.history(folders)
    to.write(
        Answer(
            {
                TEXT: lambda console: console.print(watches.history_text(content), highlight=False, soft_wrap=True),
                JSON: lambda: content,
            }
        )
    )


def _candidates(paths: tuple[str, ...]) -> tuple[list[FoundRun], bool]:
    """Return what may be a run, and whether that is what one folder holds; else all arguments are."""
    from dptrace.readers.runs import FoundRun, runs_in

    folder = Path(paths[0])
    if len(paths) > 1 or not folder.is_dir():
        return [FoundRun(path, (path,)) for path in paths], False
    try:
        found = runs_in(folder)
        whole = [run.path for run in found] == [str(folder)]
        # A recording that ended before it wrote a trace is named, too.
        dirs = [] if whole else [str(entry) for entry in sorted(folder.iterdir()) if entry.is_dir()]
    except OSError as error:
        raise DptraceError(unreadable(folder, error)) from None
    empty = [one for one in dirs if not any(Path(one) in (Path(run.path), *Path(run.path).parents) for run in found)]
    return [*found, *(FoundRun(one, ()) for one in empty if not Path(one).name.startswith("."))], not whole


def _opened(found: FoundRun, read_options: ReadOptions, verbosity: str) -> Iterator[tuple[Run, str]]:
    """Yield the runs of a path, several of a baseline, and when its files were written."""
    from dptrace.comparison.baseline import is_baseline, read
    from dptrace.comparison.history import file_time

    path, written, window = found.path, file_time(found.files), found.window
    if is_baseline(Path(path)):
        for run in read(Path(path)).runs(Path(path)):
            yield replace(run, path=f"{Path(path).stem}: {Path(run.path).name}"), written
    else:
        chosen = replace(read_options, figures_only=True, window=read_options.window or window)
        opened = open_with_progress((path,), chosen, verbosity)
        yield replace(opened, path=f"{opened.path} --window {window}") if window else opened, written


def _answer(found: History) -> Answer:
    from dptrace.viewers.pages import history

    return Answer(
        {
            TEXT: lambda console: history.print_history(found, console),
            JSON: found.to_dict,
            CSV: found.frame,
            HTML: lambda: history.document(found),
            MARKDOWN: lambda: history.markdown(found),
        }
    )

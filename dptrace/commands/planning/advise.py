"""``dptrace advise``: which way to train, and what to change, with what each gains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.planning.description_options import description_of, description_options, refuse_reading_options
from dptrace.commands.shared.options import (
    Selection,
    force_option,
    given_options,
    json_option,
    reading_options,
    selection_options,
    verbosity_options,
)
from dptrace.commands.shared.output import (
    OutputFile,
    check_answer,
    emit,
    json_text,
    print_hint,
    print_notes,
    print_tables,
)
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from rich.console import Console

_EXAMPLES = """\b
Examples:
  dptrace advise --params 70B --gpus 64 --seq 4096 --batch 512   # what fits, is fastest, is to change
  dptrace advise --params 7B --gpus 8 --gpu a100-40 --link nvlink3 --all
  dptrace advise --params 7B --gpus 8 --strategy ddp             # the checklists for your own plan
  dptrace advise --params 70B --gpus 64 -o advice.html           # a page: steps and memory side by side
  dptrace advise runs/ddp                                        # a recording: findings and replays
"""
_PAGES, _PICTURES = (".html",), (".svg", ".png")
_SHARE = "Share of the GPU's peak that computation reaches. [by its matrices]"
_LINKS = "Measured links (dptrace links -o FILE) instead of nominal ones."
_ALL = "Show every plan and item, the sources of rules, and how gains were computed."


@click.command(epilog=_EXAMPLES)
@click.argument("run", metavar="[RUN]", required=False, type=click.Path())
@description_options
@click.option("--mfu", type=click.FloatRange(0, 1, min_open=True), metavar="SHARE", help=_SHARE)
@click.option("--links", type=click.Path(path_type=Path), metavar="FILE", help=_LINKS)
@selection_options
@reading_options
@click.option("--all", "every", is_flag=True, help=_ALL)
@json_option
@click.option("-o", "--output", type=OutputFile(), help="Write a page (.html), a chart (.svg, .png), or the text.")
@force_option
@verbosity_options
def command(
    run: str | None,
    links: Path | None,
    selection: Selection,
    read_options: ReadOptions,
    every: bool,
    as_json: bool,
    output: Path | None,
    force: bool,
    verbosity: str,
    **described: Any,
) -> None:
    """Choose a way to train, and what to change: the field's rules of thumb with the numbers that decide.

    For a description (the options of dptrace predict), all combinations of data, tensor, pipeline and expert
    parallelism, sharding, recomputation and micro-batches are compared: what fits, how long a step takes, and why the
    others lose.
    The checklists then say what each change gains; with --strategy they are about that plan. For a recording, dptrace
    says what limits its step and what to change, with gains from its findings and from replays.
    """
    _check(output, force, as_json, recorded=run is not None)
    if run is not None:
        content = _recorded(run, {*described, "links"}, selection, read_options, verbosity)
    else:
        content = _described(described, links)
    _write(content, every, as_json, output, verbosity)
    print_notes(content["assumptions"])


def _check(output: Path | None, force: bool, as_json: bool, recorded: bool) -> None:
    """Refuse files that would be overwritten, or hold something else than their names say."""
    check_answer(output, force, as_json, draws=(*_PAGES, *_PICTURES))
    if recorded and output is not None and output.suffix in (*_PAGES, *_PICTURES):
        raise UsageError(f"{output}: the advice on a recording is tables; name a .txt file, or add --json.")


def _recorded(
    run: str, described: set[str], selection: Selection, read_options: ReadOptions, verbosity: str
) -> dict[str, Any]:
    if extra := sorted(given_options() & described):
        raise UsageError(f"--{extra[0].replace('_', '-')} describes a training; a recording describes itself.")
    from dptrace.commands.shared.progress import progress
    from dptrace.commands.shared.reading import open_with_progress
    from dptrace.replay.advice.recorded_report import recorded_advice

    opened = open_with_progress((run,), read_options, verbosity, selection)
    with progress("Replaying", verbosity) as show:
        return recorded_advice(opened, lambda fraction: show(fraction, ""))


def _described(described: dict[str, Any], links: Path | None) -> dict[str, Any]:
    refuse_reading_options()
    from dptrace.model.advice.advice_report import advice_report

    description = description_of(described)
    if links is not None:
        from dptrace.commands.planning.measured_links import with_measured_links

        description = with_measured_links(description, links)
    return advice_report(description)


def _write(content: dict[str, Any], every: bool, as_json: bool, output: Path | None, verbosity: str) -> None:
    if as_json:
        emit(json_text(content), output)
    elif output is not None and output.suffix in _PAGES:
        from dptrace.commands.shared.pages import write_page
        from dptrace.viewers.planning.advise_page import document

        write_page(output, lambda: document(content), verbosity)
    elif output is not None and output.suffix in _PICTURES:
        from dptrace.commands.planning.picture import write_drawing
        from dptrace.viewers.planning.advise_charts import steps_chart

        write_drawing(steps_chart(content), output)
    else:
        print_tables(lambda console: _print(content, every, console), output)
    if output is not None and (as_json or output.suffix not in _PAGES):
        print_hint(f"Wrote {output}.", verbosity)


def _print(content: dict[str, Any], every: bool, console: Console) -> None:
    from dptrace.viewers.base.table import print_text_table
    from dptrace.viewers.planning.advise_table import advise_facts, advise_tables, recommendation

    said = [*advise_facts(content), *(recommendation(content) if "candidates" in content else [])]
    for line in said:
        console.print(line, markup=False)
    for title, table in advise_tables(content, every):
        console.print()
        print_text_table(table, title, console)

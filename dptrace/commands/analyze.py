"""``dptrace analyze``: the split of each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.answer import CSV, JSON, MARKDOWN, TEXT, Answer, Destination, answer_options, refuse
from dptrace.commands.shared.numbers import Whole
from dptrace.commands.shared.options import (
    Selection,
    align_option,
    group,
    opening_options,
    run_options,
    with_workload,
    workload_options,
)
from dptrace.commands.shared.output import print_hint, print_notes, progress, quoted_run
from dptrace.commands.shared.reading import open_to_find, with_findings
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from dptrace.run.run import Run
    from dptrace.timeline.host_calls import SecondPass


_sections = group(
    *(
        click.option(f"--{name}", "sections", flag_value=name, multiple=True, help=f"Print {what}.")
        for name, what in {
            "findings": "all findings, with ranges and where to look",
            "split": "the step of each rank; with --all, each of its steps",
            "communication": "collectives by kind: exposed, waiting, transfer",
            "idle": "causes of idle time, and a pipeline's bubble",
            "facts": "what the recorder noted: memory, mesh, experts",
            "notes": "notes on what is missing, inferred or unknown",
        }.items()
    )
)


@click.command()
@run_options
@click.option("--all", "all_rows", is_flag=True, help="Print all sections, each table in full.")
@_sections
@click.option("--collectives", is_flag=True, help="Print a row for each collective; as a table, or with --csv.")
@click.option("--memory", is_flag=True, help="Print memory: peaks, what was alive at them; with --json, add it.")
@answer_options(
    csv="Print a CSV row for each rank and step (times in ns).",
    markdown="Print the headline, findings, ranks and kernels as Markdown of at most 60 lines.",
)
@click.option("--limit", type=Whole(1), metavar="N", help="Findings, and rows of each table, of --markdown. [8]")
@click.option("--hta-compat", "as_hta", is_flag=True, help="HTA's temporal breakdown and overlap, as HTA defines them.")
@align_option
@workload_options
@opening_options
def command(
    paths: tuple[str, ...],
    selection: Selection,
    all_rows: bool,
    sections: tuple[str, ...],
    collectives: bool,
    memory: bool,
    to: Destination,
    limit: int | None,
    as_hta: bool,
    read_options: ReadOptions,
    verbosity: str,
    **workload: float | None,
) -> None:
    """Split each step of RUN: forward, backward, optimizer, exposed and overlapped communication, idle.

    RUN is a run folder, a trace file, several files (one for each rank), a folder or a glob of traces. The parts of
    a step add up to its wall time exactly; overlapped communication runs under compute and is listed separately.

    \b
    Examples:
      dptrace analyze runs/interleaved
      dptrace analyze runs/ddp --ranks 0-3 --steps 4:6 --all
      dptrace analyze runs/ddp --findings
      dptrace analyze rank0.json.gz rank1.json.gz --csv > split.csv
      dptrace analyze runs/llama --params 7B --tokens 4M
      dptrace analyze runs/ddp --json | jq '.ranks[0].total'
      dptrace analyze runs/ddp --markdown --limit 3
      dptrace analyze runs/ddp --memory
      dptrace analyze s3://bucket/run --dask tcp://scheduler:8786
    """
    align = read_options.align
    others = collectives or memory or (sections and "findings" not in sections)
    has_findings = not (to.only(CSV) or as_hta or (others and not to.has(JSON)))
    short = to.has(MARKDOWN) and not (all_rows or sections or collectives or memory or as_hta)
    refuse(_contradictions(to, sections, collectives, memory, as_hta, align))
    refuse([(limit is not None and not short, _NOTHING_TO_LIMIT)])
    if as_hta:
        if selection or any(workload.values()) or read_options != ReadOptions(strict=read_options.strict):
            raise UsageError(_HTA_ALONE)
        _write_hta_compat(paths, to, all_rows, read_options.strict)
        return
    # Figures suffice for rows of steps and collectives, but for some steps', which are computed from the intervals.
    figures_only = selection.steps is None and not (memory or sections) and not has_findings
    read_options = replace(read_options, figures_only=figures_only)
    reread = _memory_readings() if memory else ()
    run = open_to_find(paths, read_options, verbosity, selection, has_findings, reread)
    run = with_workload(run, **workload)
    run = with_findings(run, verbosity) if has_findings else run
    answer = (
        _memory_answer(run, all_rows) if memory else _answer(_compared(run, verbosity), all_rows, collectives, sections)
    )
    to.write(_with_markdown(answer, run, limit) if short else answer)
    if not to.as_text:
        from dptrace.run.shared_clock import times_note

        print_notes((*run.notes, *times_note(run)) if collectives else run.notes)
    if to.on_terminal:
        print_hint(f"Next: dptrace view {quoted_run(paths, read_options)}{' --view memory' * memory}", verbosity)


_HTA_ALONE = "--hta-compat can be combined with --json, --csv, --all, --strict and -o only."
_MEMORY_ALONE = "--memory prints tables of its own; leave --collectives and --hta-compat out."
_NOTHING_TO_LIMIT = "--limit is for --markdown, without --all, --collectives, --memory and --hta-compat."
_NOTHING_TO_ALIGN = "--no-align only changes times and figures across ranks; leave it out here."


def _contradictions(
    to: Destination, sections: Sequence[str], collectives: bool, memory: bool, as_hta: bool, align: bool
) -> Iterator[tuple[bool, str]]:
    other = not to.as_text or collectives or memory or as_hta
    yield (
        bool(sections) and other,
        f"--{''.join(sections[:1])} is a section of the text: combine it with other sections and --all only.",
    )
    yield as_hta and collectives, _HTA_ALONE
    yield to.only(JSON) and collectives, "--json already contains the collectives; leave --collectives out."
    yield memory and (collectives or as_hta), _MEMORY_ALONE
    across_ranks = collectives or not (to.only(CSV) or as_hta or (memory and not to.has(JSON)))
    yield not align and not across_ranks, _NOTHING_TO_ALIGN


def _write_hta_compat(paths: tuple[str, ...], to: Destination, all_rows: bool, strict: bool) -> None:
    from dptrace.hta.definitions import COMPATIBLE_WITH, hta_compat
    from dptrace.readers.discovery import find

    with progress("Reading", to.verbosity, measured=False):
        compat = hta_compat(find(paths), strict)

    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.data_frame import print_frame

        print_frame(compat.frame, f"HTA {COMPATIBLE_WITH}'s temporal breakdown and overlap", console, all_rows)

    to.write(Answer({TEXT: tables, JSON: compat.to_dict, CSV: lambda: compat.frame}))
    print_notes(compat.notes)


def _compared(run: Run, verbosity: str) -> Run:
    """Return the run after its analysis across ranks, which takes a while for thousands of them."""
    with progress("Comparing ranks", verbosity, measured=False):
        _ = run.cross_rank
    return run


def _memory_readings() -> tuple[SecondPass[Any], ...]:
    from dptrace.analysis.memory.usage import MEMORY

    return (MEMORY,)


def _answer(run: Run, all_rows: bool, collectives: bool, sections: Sequence[str]) -> Answer:
    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.screen import print_screen
        from dptrace.viewers.terminal.summary import print_collectives, print_run

        if collectives:
            print_collectives(run, console, all_rows)
        elif all_rows or sections:
            print_run(run, console, all_rows, sections)
        else:
            print_screen(run, console)

    def calls() -> pd.DataFrame:
        from dptrace.run.shared_clock import collectives_on_one_clock

        return collectives_on_one_clock(run)

    def data() -> dict[str, Any]:
        from dptrace.replay.findings import to_dict

        return to_dict(run)

    return Answer({TEXT: tables, JSON: data, CSV: calls if collectives else run.steps})


def _with_markdown(answer: Answer, run: Run, limit: int | None) -> Answer:
    from dptrace.viewers.pages.markdown import LIMIT, document

    return answer | {MARKDOWN: lambda: document(run, limit or LIMIT)}


def _memory_answer(run: Run, all_rows: bool) -> Answer:
    from dptrace.core.table import frame
    from dptrace.replay.findings import to_dict
    from dptrace.run.columns import MEMORY_PEAKS
    from dptrace.run.memory import device_reports, peak_rows
    from dptrace.viewers.base.memory_table import print_memory

    return Answer(
        {
            TEXT: lambda console: print_memory(run, console, all_rows),
            JSON: lambda: to_dict(run, memory=True),
            CSV: lambda: frame(peak_rows(device_reports(run)), MEMORY_PEAKS),
        }
    )

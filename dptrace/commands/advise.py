"""``dptrace advise``: which way to train, and what to change, with what each gains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.plan_options import plan_of, plan_options, refuse_description, write_plan
from dptrace.commands.shared.answer import HTML, PNG, SVG, Destination, answer_options
from dptrace.commands.shared.options import (
    Selection,
    reading_options,
    selection_options,
    verbosity_options,
)
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
_ALL = "Show every plan and item, the sources of rules, and how gains were computed."


@click.command(epilog=_EXAMPLES)
@click.argument("run", metavar="[RUN]", required=False, type=click.Path())
@plan_options
@selection_options
@reading_options
@click.option("--all", "every", is_flag=True, help=_ALL)
@answer_options(HTML, SVG, PNG)
@verbosity_options
def command(
    run: str | None,
    links: Path | None,
    selection: Selection,
    read_options: ReadOptions,
    every: bool,
    to: Destination,
    verbosity: str,
    **described: Any,
) -> None:
    """Choose a way to train, and what to change: the field's rules of thumb with the numbers that decide.

    For a description (the options of dptrace predict), all combinations of data, tensor, pipeline and expert
    parallelism, sharding, recomputation and micro-batches are compared: what fits, how long a step takes, and why the
    others lose.
    The checklists then say what each change gains; with --strategy they are about that plan. For a recording, dptrace
    says what limits its step, then its findings as analyze lists them, then what other changes gain by replay.
    """
    if run is None:
        from dptrace.model.planning.reports import advice_report

        write_plan(advice_report(plan_of(described, links)), to, every)
        return
    to.refuse_besides_words("the advice on a recording")
    refuse_description()
    _advise_on(run, selection, read_options, to, every, verbosity)


def _advise_on(
    path: str, selection: Selection, read_options: ReadOptions, to: Destination, every: bool, verbosity: str
) -> None:
    from dptrace.commands.shared.output import progress
    from dptrace.commands.shared.reading import open_with_progress
    from dptrace.replay.advice import advised_findings, recorded_advice

    run = open_with_progress((path,), read_options, verbosity, selection, replayed=True, all_ranks=False)
    with progress("Replaying", verbosity) as show:
        content = recorded_advice(run, lambda fraction: show(fraction, ""))

    def findings(console: Console) -> None:
        from dptrace.viewers.terminal.split import findings_list

        listed, on_compute = advised_findings(run)
        console.print("", findings_list(listed, run.on_cpu, run.is_limited), sep="\n")
        if on_compute:
            console.print("", findings_list(on_compute, about=" on compute, after these"), sep="\n")

    write_plan(content, to, every, findings)

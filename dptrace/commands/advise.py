"""``dptrace advise``: which way to train, and what to change, with what each gains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    says what limits its step and what to change, with gains from its findings and from replays.
    """
    if run is not None:
        to.refuse_besides_words("the advice on a recording")
        content = _recorded(run, selection, read_options, verbosity)
    else:
        from dptrace.model.planning.reports import advice_report

        content = advice_report(plan_of(described, links))
    write_plan(content, to, every)


def _recorded(run: str, selection: Selection, read_options: ReadOptions, verbosity: str) -> dict[str, Any]:
    refuse_description()
    from dptrace.commands.shared.output import progress
    from dptrace.commands.shared.reading import open_with_progress
    from dptrace.replay.advice import recorded_advice

    opened = open_with_progress((run,), read_options, verbosity, selection, replayed=True, all_ranks=False)
    with progress("Replaying", verbosity) as show:
        return recorded_advice(opened, lambda fraction: show(fraction, ""))

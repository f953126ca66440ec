"""``dptrace memory``: what a training takes on each GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.plan_options import description_of, memory_options, refuse_description
from dptrace.commands.shared.answer import Answer, Destination, answer_options
from dptrace.commands.shared.options import given_options, quiet_option
from dptrace.commands.shared.output import print_notes

if TYPE_CHECKING:
    from rich.console import Console


_EXAMPLES = """\b
Examples:
  dptrace memory --params 7e9
  dptrace memory --params 70B --gpus 64 --strategy 3d --tp 8 --pp 4 --recompute selective
  dptrace memory --layers 96 --hidden 12288 --heads 96 --batch 1 --gpus 1 --json
  dptrace memory runs/fsdp                        # a recording: what its ranks held, next to the formulas
"""


@click.command(epilog=_EXAMPLES)
@click.argument("run", metavar="[RUN]", required=False, type=click.Path())
@memory_options
@answer_options()
@quiet_option
def command(run: str | None, to: Destination, verbosity: str, **described: Any) -> None:
    """Compute the memory of a training: state, activations, what each GPU holds, and whether it fits.

    Describe the model by its parameters or its shape. State is counted by the number types and the optimizer, 16 bytes
    a parameter for Adam in mixed precision; activations by the formulas of Korthikanti et al. (arXiv 2205.05198).
    With the folder of a recording, its measured figures are listed next to the expected ones.
    """
    if run is not None:
        from dptrace.commands.recorded_plan import recorded_memory

        refuse_description(but=("gpu", "gpu_memory"))
        content = recorded_memory(run, described["gpu"] if "gpu" in given_options() else None, described["gpu_memory"])
    else:
        from dptrace.model.planning.reports import memory_report

        content = memory_report(description_of(described))
    to.write(Answer(lambda console: _print(content, console), lambda: content))
    print_notes(content["assumptions"])


def _print(content: dict[str, Any], console: Console) -> None:
    from dptrace.viewers.base.table import print_text_table
    from dptrace.viewers.planning import tables

    if "recorded" in content:
        print_text_table(tables.recorded_table(content), tables.recorded_title(content), console)
        if "in_flight" in content["recorded"]:
            print_text_table(tables.in_flight_table(content), "Micro-batches in flight", console)
        return
    for line in tables.memory_facts(content):
        console.print(line, markup=False)
    console.print()
    print_text_table(tables.memory_table(content), "Memory of a GPU", console)
    console.print()
    print_text_table(tables.strategies_table(content), "By strategy", console)

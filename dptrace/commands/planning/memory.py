"""``dptrace memory``: what a training takes on each GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.planning.description_options import description_of, memory_options
from dptrace.commands.shared.options import given_options, json_option, output_option, quiet_option
from dptrace.commands.shared.output import check_answer, emit, json_text, print_hint, print_notes, print_tables
from dptrace.errors import UsageError

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
@click.option("--cpu-offload", is_flag=True, help="Shards and optimizer are in the CPU's memory (fsdp, hsdp, zero3).")
@json_option
@output_option
@quiet_option
def command(run: str | None, as_json: bool, output: Path | None, force: bool, verbosity: str, **described: Any) -> None:
    """Compute the memory of a training: state, activations, what each GPU holds, and whether it fits.

    Describe the model by its parameters or its shape. State is counted by the number types and the optimizer, 16 bytes
    a parameter for Adam in mixed precision; activations by the formulas of Korthikanti et al. (arXiv 2205.05198).
    With the folder of a recording, its measured figures are listed next to the expected ones.
    """
    check_answer(output, force, as_json)
    if run is not None:
        from dptrace.commands.planning.recording import recorded_memory

        if extra := sorted(given_options() & set(described) - {"gpu", "gpu_memory"}):
            raise UsageError(f"--{extra[0].replace('_', '-')} describes a training; a recording describes itself.")
        content = recorded_memory(run, described["gpu"] if "gpu" in given_options() else None, described["gpu_memory"])
    else:
        from dptrace.model.planning.memory_report import memory_report

        content = memory_report(description_of(described))
    if as_json:
        emit(json_text(content), output)
    else:
        print_tables(lambda console: _print(content, console), output)
    print_notes(content["assumptions"])
    if output is not None:
        print_hint(f"Wrote {output}.", verbosity)


def _print(content: dict[str, Any], console: Console) -> None:
    from dptrace.viewers.base.table import print_text_table
    from dptrace.viewers.planning import memory_table

    if "recorded" in content:
        print_text_table(memory_table.recorded_table(content), memory_table.recorded_title(content), console)
        if "in_flight" in content["recorded"]:
            print_text_table(memory_table.in_flight_table(content), "Micro-batches in flight", console)
        return
    for line in memory_table.memory_facts(content):
        console.print(line, markup=False)
    console.print()
    print_text_table(memory_table.memory_table(content), "Memory of a GPU", console)
    console.print()
    print_text_table(memory_table.strategies_table(content), "By strategy", console)

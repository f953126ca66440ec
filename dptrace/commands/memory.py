"""``dptrace memory``: what a training takes on each GPU."""

from __future__ import annotations

from typing import Any

import click

from dptrace.commands.plan_options import description_of, memory_options, refuse_description, write_plan
from dptrace.commands.shared.answer import Destination, answer_options
from dptrace.commands.shared.options import given_options, quiet_option

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
    write_plan(content, to)

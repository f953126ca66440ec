"""``dptrace predict``: the time of a step on any number of GPUs, and the memory that it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from dptrace.commands.plan_options import (
    description_of,
    plan_of,
    plan_options,
    predict_message,
    refuse_description,
    refuse_timed,
    write_plan,
)
from dptrace.commands.shared.answer import HTML, PNG, SVG, Destination, answer_options
from dptrace.commands.shared.numbers import Amount, NumberType
from dptrace.commands.shared.options import (
    Selection,
    given_options,
    reading_options,
    selection_options,
    verbosity_options,
)
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

_EXAMPLES = """\b
Examples:
  dptrace predict --params 7e9 --gpus 8 --gpu h100 --link nvlink4 --strategy ddp
  dptrace predict --params 70B --gpus 64 --seq 4096 --batch 512    # each strategy: what fits, is fastest
  dptrace predict --params 70B --gpus 64 --strategy 3d --tp 8 --pp 2 --json
  dptrace predict --params 7e9 --gpus 64 -o plan.html              # a page with charts and tables
  dptrace predict --memory --params 7e9                            # what each GPU holds: does it fit?
  dptrace predict --bytes 208MB --gpus 4 --link 5us:25GB/s         # one message, by each collective
  dptrace predict runs/ddp                                         # a recording, on 1 to 1,024 ranks
  dptrace predict runs/ddp -o roofline.html                        # its steps on the communication roofline
  dptrace predict --memory runs/fsdp                               # what its ranks held, and should
"""
_MEMORY = "Instead of its time, each GPU's memory, and whether it fits: .txt, .md, .json."
_BYTES = "Instead of a training, one message by every collective: 208MB (of 10⁶ bytes)."
_GAMMA = "Picoseconds to add a byte, with --bytes. [0; of --links as measured]"


@click.command(epilog=_EXAMPLES)
@click.argument("run", metavar="[RUN]", required=False, type=click.Path())
@plan_options
@click.option("--memory", is_flag=True, help=_MEMORY)
@click.option("--bytes", "message_bytes", type=Amount(), metavar="SIZE", help=_BYTES)
@click.option("--gamma", type=NumberType(), metavar="PS", help=_GAMMA)
@click.option("--tokens", type=Amount(), metavar="N", help="Tokens to train on: adds the days that it takes.")
@selection_options
@reading_options
@answer_options(HTML, SVG, PNG)
@verbosity_options
def command(
    run: str | None,
    links: Path | None,
    memory: bool,
    message_bytes: float | None,
    gamma: float | None,
    tokens: float | None,
    selection: Selection,
    read_options: ReadOptions,
    to: Destination,
    verbosity: str,
    **described: Any,
) -> None:
    """Predict a training step: computation, communication, what is exposed, throughput, and scaling to 1,024 GPUs.

    Without --strategy, all combinations of parallelism, sharding and schedules are compared, as dptrace advise does it;
    the fastest plan that fits into the GPUs is shown. With it, degrees that are not given, the micro-batch and
    recomputation are chosen.
    With the folder of a recorded data-parallel training, its own times are predicted for other numbers of ranks. The
    assumptions are printed with it; docs/guides/plan.md compares predictions with published measurements.

    --memory counts state by the number types and the optimizer, 16 bytes a parameter for Adam in mixed precision, and
    activations by the formulas of Korthikanti et al. (arXiv 2205.05198). With the folder of a recording, its measured
    figures are listed next to the expected ones.
    """
    if memory:
        content = _memory(run, to, described)
    elif run is not None:
        content = _recorded(run, selection, read_options, verbosity)
    elif message_bytes is not None:
        content = predict_message(described, links, message_bytes, gamma)
    else:
        if gamma is not None:
            raise UsageError(f"--gamma {gamma:g}: is for one message; add --bytes.")
        from dptrace.model.planning.reports import predict_report

        content = predict_report(plan_of(described, links), tokens)
    write_plan(content, to)


def _memory(run: str | None, to: Destination, described: dict[str, Any]) -> dict[str, Any]:
    refuse_timed()
    to.refuse_besides_words("the memory of a training")
    if run is None:
        from dptrace.model.planning.reports import memory_report

        return memory_report(description_of(described))
    from dptrace.commands.recorded_plan import recorded_memory

    refuse_description(but=("gpu", "gpu_memory"))
    return recorded_memory(run, described["gpu"] if "gpu" in given_options() else None, described["gpu_memory"])


def _recorded(run: str, selection: Selection, read_options: ReadOptions, verbosity: str) -> dict[str, Any]:
    from dptrace.commands.recorded_plan import predict_recording
    from dptrace.commands.shared.reading import open_with_progress

    refuse_description()
    read_options = replace(read_options, figures_only=selection.steps is None)
    return predict_recording(open_with_progress((run,), read_options, verbosity, selection), run)

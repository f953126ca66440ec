"""Options on what a step computes, where run.json does not say it: parameters, tokens, samples, and the GPU's peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dptrace.commands.shared.numbers import Amount
from dptrace.commands.shared.options import group
from dptrace.core.numbers import AMOUNT

if TYPE_CHECKING:
    from dptrace.run.run import Run

__all__ = ["WORKLOAD_OPTIONS", "with_workload", "workload_options"]

WORKLOAD_OPTIONS = ("parameters", "tokens", "samples", "peak_tflops")
"""The names of the arguments that :data:`workload_options` passes."""


_AMOUNT = Amount(AMOUNT)
workload_options = group(
    click.option("--params", "parameters", type=_AMOUNT, metavar="N", help="Parameters of the whole model, like 7B."),
    click.option("--tokens", type=_AMOUNT, metavar="N", help="Tokens of one step, over all ranks, like 4M."),
    click.option("--samples", type=_AMOUNT, metavar="N", help="Samples of one step, over all ranks."),
    click.option("--peak-tflops", type=_AMOUNT, metavar="N", help="Dense peak of one GPU in TFLOP/s, for MFU."),
)
"""--params, --tokens, --samples and --peak-tflops."""


def with_workload(run: Run, **values: float | None) -> Run:
    """Return the run with what the options say of a step: any of WORKLOAD_OPTIONS."""
    if all(value is None for value in values.values()):
        return run
    from dataclasses import replace

    from dptrace.run.utilization import Workload

    return replace(run, workload=Workload(**values))

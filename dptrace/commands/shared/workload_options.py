"""Options on what a step computes, where run.json does not say it: parameters, tokens, samples, and the GPU's peak."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.options import group

if TYPE_CHECKING:
    from dptrace.run.run import Run

__all__ = ["WORKLOAD_OPTIONS", "Count", "with_workload", "workload_options"]

_POWERS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_FORM = re.compile(r"(\d{1,15}(?:\.\d{1,9})?(?:[eE]\+?\d{1,2})?)\s*([KMBGT]?)", re.IGNORECASE)

WORKLOAD_OPTIONS = ("parameters", "tokens", "samples", "peak_tflops")
"""The names of the arguments that :data:`workload_options` passes."""


class Count(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases of click only
    """A positive number, also with a suffix: 7B, 4M, 1.5e9."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number."""
        if isinstance(value, float):
            return value
        match = _FORM.fullmatch(str(value).strip())
        number = float(match[1]) * _POWERS[match[2].upper()] if match else 0.0
        if not 0 < number < 1e30:
            self.fail(f"{value!r} is not a positive number; write it as 7e9, 7B or 350M.", param, ctx)
        return number


workload_options = group(
    click.option("--params", "parameters", type=Count(), metavar="N", help="Parameters of the whole model, like 7B."),
    click.option("--tokens", type=Count(), metavar="N", help="Tokens of one step, over all ranks, like 4M."),
    click.option("--samples", type=Count(), metavar="N", help="Samples of one step, over all ranks."),
    click.option("--peak-tflops", type=Count(), metavar="N", help="Dense peak of one GPU in TFLOP/s, for MFU."),
)
"""--params, --tokens, --samples and --peak-tflops."""


def with_workload(run: Run, **values: float | None) -> Run:
    """Return the run with what the options say of a step: any of WORKLOAD_OPTIONS."""
    if all(value is None for value in values.values()):
        return run
    from dataclasses import replace

    from dptrace.run.utilization import Workload

    return replace(run, workload=Workload(**values))

"""A measured data-parallel step on other numbers of ranks, between no overlap and full overlap.

Without overlap a step takes T_compute/N + T_all-reduce, with full overlap the longer of the two (the GPU workshop on
data parallelism, chart 2; the data-parallel page, "Overlap comm with compute"). An all-reduce among N ranks sends
2(N-1)/N of the gradients from each, so its time is measured time × the ratio of these shares.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dptrace.model.scaling import amdahl_ceiling, communication_fraction, gustafson_efficiency, parallel_fraction

__all__ = ["MeasuredStep", "StepBounds", "measured_scaling", "step_bounds"]


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """The mean step of a recorded data-parallel training, in seconds."""

    ranks: int
    compute_s: float
    communication_s: float
    """All communication of a rank without its waiting for others, hidden or not."""
    exposed_s: float
    rest_s: float
    """Idle time, copies and waiting."""
    samples: float
    """Of all ranks, in a step."""

    @property
    def step_s(self) -> float:
        """Return the length of the step."""
        return self.compute_s + self.exposed_s + self.rest_s


class StepBounds(msgspec.Struct, frozen=True):
    """The step on a number of ranks, without overlap and with all that is possible."""

    serial_s: float
    overlapped_s: float

    @property
    def saved_s(self) -> float:
        """Return what overlap can save: the shorter of computation and communication."""
        return self.serial_s - self.overlapped_s


def step_bounds(compute_s: float, communication_s: float, rest_s: float = 0.0) -> StepBounds:
    """Return both bounds.

    >>> step_bounds(0.003, 0.031).saved_s, step_bounds(0.05, 0.094).saved_s
    (0.003, 0.05)
    """
    overlapped = max(compute_s, communication_s)
    shorter = min(compute_s, communication_s)
    return StepBounds(overlapped + shorter + rest_s, overlapped + rest_s)


def measured_scaling(step: MeasuredStep, counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Predict the step on other numbers of ranks, with a fixed batch for each rank and for all of them."""
    whole = step.compute_s * step.ranks
    fraction = parallel_fraction(whole, step.exposed_s)
    serial = communication_fraction(step.exposed_s, step.step_s)
    measured = 1 - 1 / step.ranks
    rows = []
    for ranks in counts:
        share = (1 - 1 / ranks) / measured if step.ranks > 1 else 0.0
        communication = step.communication_s * share
        weak = step_bounds(step.compute_s, communication, step.rest_s)
        strong = step_bounds(whole / ranks, communication, step.rest_s)
        alone = step.compute_s + step.rest_s
        rows.append(
            {
                "gpus": ranks,
                "communication_s": communication,
                "weak_serial_s": weak.serial_s,
                "weak_overlapped_s": weak.overlapped_s,
                "weak_samples_per_s": step.samples / step.ranks * ranks / weak.overlapped_s,
                "weak_efficiency": alone / weak.overlapped_s,
                "strong_serial_s": strong.serial_s,
                "strong_overlapped_s": strong.overlapped_s,
                "strong_samples_per_s": step.samples / strong.overlapped_s,
                "strong_efficiency": (whole + step.rest_s) / ranks / strong.overlapped_s,
                "amdahl_ceiling": amdahl_ceiling(fraction, ranks),
                "gustafson_efficiency": gustafson_efficiency(serial, ranks),
            }
        )
    return rows

"""What the ranks of a recorded training hold by the formulas, as the mean over the ranks.

Which part of the model a rank holds depends on the mode (see dptrace.record.options.modes): all of it, a shard, the
shares of the split layers, or its stages. Means need no knowledge of where a stage or a shard ends.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import msgspec

from dptrace.model.scaling import amdahl_ceiling, communication_fraction, gustafson_efficiency, parallel_fraction
from dptrace.model.training.memory import StateBytes


class RecordedModel(msgspec.Struct, frozen=True):
    """How many numbers a model trains, and how many of them can be divided."""

    parameters: float
    split: float = 0.0
    """Of them, those in layers that tensor parallelism splits."""
    experts: float = 0.0
    """Of them, those of experts that ranks share out."""
    expert_split: float = 0.0
    """Of those, the ones in layers that tensor parallelism splits."""


class RecordedTraining(msgspec.Struct, frozen=True, kw_only=True):
    """How a recorded training was spread over its ranks."""

    mode: str
    replicated: bool
    """Whether every rank holds the whole model, its gradients and the state of its optimizer."""
    ranks: int
    number_bytes: int
    """Of a parameter, its gradient, and each number of the optimizer."""
    optimizer_numbers: float
    """That the optimizer keeps for each parameter."""
    ranks_per_node: int | None = None
    tensor: int = 2
    stages: int = 2
    expert: int = 1
    """Ranks that share out the experts, on a mesh."""


def mean_state(model: RecordedModel, training: RecordedTraining) -> StateBytes | None:
    """Return the bytes of the mean rank, without padding; None for a mode whose formula is not known."""
    held = _held_shares(model, training)
    if held is None:
        return None
    one = training.number_bytes * model.parameters
    parameters, gradients, optimizer = held
    return StateBytes(one * parameters, one * gradients, one * optimizer * training.optimizer_numbers)


def _held_shares(model: RecordedModel, training: RecordedTraining) -> tuple[float, float, float] | None:
    """Return the shares of parameters, gradients and optimizer state that a rank holds."""
    mode, ranks = training.mode, training.ranks
    if training.replicated:
        return 1.0, 1.0, 1.0
    if mode in ("zero1", "zero2"):
        return 1.0, 1.0 if mode == "zero1" else 1 / ranks, 1 / ranks
    split, experts = model.split / model.parameters, model.experts / model.parameters
    tensor = training.tensor
    split_experts = model.expert_split / model.parameters * (1 / tensor - 1)
    alike = {
        "fsdp": 1 / ranks,
        "hsdp": 1 / (training.ranks_per_node or max(1, ranks // 2)),
        "tp": 1 - split + split / ranks,
        "tp-sp": 1 - split + split / ranks,
        "dp-tp": 1 - split + split / training.tensor,
        "pp": 1 / ranks,
        "3d": (1 - split + split / training.tensor) / training.stages,
        "moe": 1 - experts * (1 - 1 / ranks),
        "4d": (1 - experts + split * (1 / tensor - 1) + (experts + split_experts) / training.expert) / training.stages,
    }.get(mode)
    return None if alike is None else (alike, alike, alike)


def decoder_split(layers: int, hidden: int) -> float:
    """Return the parameters in the split layers of a decoder, without what every rank keeps: norms, ends, row biases.

    >>> decoder_split(4, 128)
    790016
    """
    return layers * (12 * hidden * hidden + 7 * hidden)


def expert_split(hidden: int) -> float:
    """Return the parameters of an expert's split layers: all but the bias of the second.

    >>> expert_split(128)
    131584
    """
    return 8 * hidden * hidden + 4 * hidden


def perceptron_split(widths: tuple[int, ...]) -> float:
    """Return the parameters in the split layers of a perceptron: of each pair, all but the second's bias."""
    layers = list(pairwise(widths))
    pairs = zip(layers[::2], layers[1::2], strict=False)
    return sum(first[0] * first[1] + first[1] + second[0] * second[1] for first, second in pairs)


def block_activations(blocks: int, width: int, batch: float, number_bytes: int = 4, every: int = 0) -> float:
    """Return the bytes that forward keeps of blocks of a normalization and two layers, and the scores in float32.

    Of each block the inputs of the normalization and of both layers; of one that is recomputed only its own input.

    >>> block_activations(8, 784, 64) / (4 * 64 * 784), block_activations(8, 784, 64, every=1) / (4 * 64 * 784)
    (25.0, 9.0)

    Args:
        every: of how many blocks one is recomputed; 0 for none.
    """
    again = math.ceil(blocks / every) if every else 0
    return batch * width * ((3 * blocks - 2 * again) * number_bytes + max(4, number_bytes))


# A measured data-parallel step on other numbers of ranks, between no overlap and full overlap.
#
# Without overlap a step takes T_compute/N + T_all-reduce, with full overlap the longer of the two (the GPU workshop on
# data parallelism, chart 2; the data-parallel page, "Overlap comm with compute"). An all-reduce among N ranks sends
# 2(N-1)/N of the gradients from each, so its time is measured time × the ratio of these shares.


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

    >>> round(step_bounds(0.003, 0.031).saved_s, 3), round(step_bounds(0.05, 0.094).saved_s, 3)
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
        row: dict[str, Any] = {"gpus": ranks, "communication_s": communication}
        for name, bounds, samples, ideal_s in (
            ("weak", weak, step.samples / step.ranks * ranks, alone),
            ("strong", strong, step.samples, (whole + step.rest_s) / ranks),
        ):
            row |= {f"{name}_serial_s": bounds.serial_s, f"{name}_overlapped_s": bounds.overlapped_s}
            row[f"{name}_samples_per_s"] = samples / bounds.overlapped_s
            row[f"{name}_efficiency"] = ideal_s / bounds.overlapped_s
        row["amdahl_ceiling"] = amdahl_ceiling(fraction, ranks)
        rows.append(row | {"gustafson_efficiency": gustafson_efficiency(serial, ranks)})
    return rows

"""The communication roofline: how much is computed for each byte that is sent, against what GPU and link can do.

From the guide "Distributed Training", section 6, with its formulas and right rates: the GPU's dense peak, and one
direction of the link. CCR is FLOPs over bytes of a step; the ridge is peak over bandwidth; below it, communication
limits. The all-reduce of DDP sends about two bytes for each byte of the gradients.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dptrace.model.training.communication.network import Link

__all__ = ["REGIMES", "RooflineLevel", "ccr", "crossover_bytes", "level", "level_dict", "reduce_seconds"]

REGIMES = (
    (0.2, "far below the ridge", "four times the batch or more, accumulation, or compressed gradients"),
    (0.8, "communication-bound", "a larger batch, or overlap"),
    (1.2, "near the ridge", "a slightly larger batch"),
    (float("inf"), "compute-bound", "faster kernels; the link suffices"),
)
"""Up to which share of the ridge a regime reaches, its name, and what helps (the guide, sections 6.6)."""


class RooflineLevel(msgspec.Struct, frozen=True):
    """One link of the roofline, and where a training lies on it."""

    link: str
    bytes_per_s: float
    ridge: float
    """FLOPs for each byte above which the GPU limits."""
    ccr: float
    """FLOPs of the step for each byte over this link."""
    ratio: float
    """CCR / ridge."""
    regime: str
    advice: str
    efficiency: float
    """Share of the peak that communication allows without overlap being any better: min(1, ratio)."""
    critical_batch: float
    """Samples of a GPU at which the ridge is reached."""
    crossover_bytes: float
    """n*: the message that takes as long as the latency."""


def ccr(flops: float, sent_bytes: float) -> float:
    """Return the computation for each byte that is communicated.

    >>> ccr(6 * 175e9 * 2048, 2 * 175e9 * 2)
    3072.0
    """
    return flops / sent_bytes


def level(link: Link, peak_flops: float, ratio_of_step: float, samples: float) -> RooflineLevel:
    """Return where a step lies on the roofline of one link.

    Args:
        peak_flops: of one GPU.
        ratio_of_step: its CCR.
        samples: of one GPU, in a step.
    """
    ridge = peak_flops / link.bytes_per_s
    ratio = ratio_of_step / ridge
    _, regime, advice = next(known for known in REGIMES if ratio < known[0])
    return RooflineLevel(
        link.name,
        link.bytes_per_s,
        ridge,
        ratio_of_step,
        ratio,
        regime,
        advice,
        min(1.0, ratio),
        samples / ratio,
        crossover_bytes(link),
    )


def crossover_bytes(link: Link) -> float:
    """Return n* = alpha/beta, the message size at which latency and transfer take equally long.

    >>> crossover_bytes(Link("NVLink 4", 1e-6, 450e9))
    450000.0
    """
    return link.alpha_s * link.bytes_per_s


def reduce_seconds(size: float, ranks: int, memory_bytes_per_s: float) -> float:
    """Return gamma's part of a ring all-reduce: adding (P-1)/P of the tensor, which reads two numbers and writes one.

    On a GPU the additions run at the memory's bandwidth (the guide, section 5.5).
    """
    return 3 * size * (ranks - 1) / ranks / memory_bytes_per_s


def level_dict(found: RooflineLevel) -> dict[str, Any]:
    """Return a level as a table."""
    return {name: getattr(found, name) for name in found.__struct_fields__}

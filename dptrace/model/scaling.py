"""Scaling formulas: speedup, efficiency, Amdahl's ceiling, Gustafson's efficiency."""

from __future__ import annotations

__all__ = [
    "amdahl_ceiling",
    "communication_fraction",
    "efficiency",
    "gustafson_efficiency",
    "parallel_fraction",
    "speedup",
]


def speedup(single_s: float, parallel_s: float) -> float:
    """Return how many times faster the run is than one GPU."""
    return single_s / parallel_s


def efficiency(single_s: float, parallel_s: float, gpus: int) -> float:
    """Return the share of the ideal, linear speedup."""
    return speedup(single_s, parallel_s) / gpus


def parallel_fraction(single_s: float, communication_s: float) -> float:
    """Return Amdahl's f, the parallel share of the work; communication is the serial share.

    f = T_single / (T_single + T_communication), both of one epoch (or one step): the estimate from blocking data
    parallelism, where computing and communicating are separate phases. (GPU workshop on data parallelism, chart 6.)
    """
    return single_s / (single_s + communication_s)


def amdahl_ceiling(fraction: float, gpus: int) -> float:
    """Return the upper limit of the speedup on N GPUs: 1 / ((1 − f) + f/N). (Amdahl 1967.)"""
    return 1 / ((1 - fraction) + fraction / gpus)


def communication_fraction(communication_s: float, wall_s: float) -> float:
    """Return s, the share of a step spent on exposed communication."""
    return communication_s / wall_s


def gustafson_efficiency(fraction: float, gpus: int) -> float:
    """Return the efficiency for a serial share s of the step: 1 − s·(N − 1)/N.

    From Gustafson's scaled speedup S = N − s·(N − 1), divided by N. (Gustafson 1988.)
    """
    return 1 - fraction * (gpus - 1) / gpus

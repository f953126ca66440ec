"""What more GPUs can bring: speedup, efficiency, Amdahl's ceiling, Gustafson's efficiency."""

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
    """Give how many times faster than one GPU."""
    return single_s / parallel_s


def efficiency(single_s: float, parallel_s: float, gpus: int) -> float:
    """Give the share of the ideal, linear speedup that is reached."""
    return speedup(single_s, parallel_s) / gpus


def parallel_fraction(single_s: float, communication_s: float) -> float:
    """Give Amdahl's f: the share of the work that more GPUs share out, communication being what they do not.

    f = T_single / (T_single + T_communication), both of one epoch (or one step): the estimate from blocking data
    parallelism, where computing and communicating are separate phases. (GPU workshop on data parallelism, chart 6.)
    """
    return single_s / (single_s + communication_s)


def amdahl_ceiling(fraction: float, gpus: int) -> float:
    """Give the most speedup that so many GPUs can bring: 1 / ((1 − f) + f/N). (Amdahl 1967.)"""
    return 1 / ((1 - fraction) + fraction / gpus)


def communication_fraction(communication_s: float, wall_s: float) -> float:
    """Give s, the share of a step that is spent communicating and nothing else."""
    return communication_s / wall_s


def gustafson_efficiency(fraction: float, gpus: int) -> float:
    """Give the efficiency at a serial share s of the step: 1 − s·(N − 1)/N.

    From Gustafson's scaled speedup S = N − s·(N − 1), divided by N. (Gustafson 1988.)
    """
    return 1 - fraction * (gpus - 1) / gpus

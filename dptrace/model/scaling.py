"""Scaling formulas: speedup, efficiency, Amdahl's ceiling, Gustafson's efficiency."""

from __future__ import annotations

import math


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


# The scaling law of the loss: L(N) ∝ N^-α, and how many parameters and tokens a budget is best spent on.
#
# Sources: Kaplan et al. (arXiv 2001.08361), equation 1.1, α = 0.076 for parameters that embed no tokens; Hoffmann et
# al. (arXiv 2203.15556): about 20 tokens for each parameter.


KAPLAN = 0.076
"""The exponent of the loss in the number of parameters, where neither data nor computation limits it."""
_TOKENS_OF_A_PARAMETER = 20.0
"""In the training of least compute for its loss."""
_FLOPS_OF_A_TOKEN = 6.0
"""FLOPs of forward and backward for each parameter and token, without attention's scores."""


def loss_ratio(parameters: float, exponent: float = KAPLAN) -> float:
    """Return the loss of a model with so many times the parameters, as a share of the loss before.

    >>> round(loss_ratio(10), 3)
    0.839
    """
    return float(parameters**-exponent)


def parameter_ratio(loss: float, exponent: float = KAPLAN) -> float:
    """Return how many times the parameters lower the loss to a share of it.

    >>> round(parameter_ratio(0.5))
    9139
    """
    return float(loss ** (-1 / exponent))


def training_flops(parameters: float, tokens: float) -> float:
    """Return the FLOPs of a training: 6·N·D; for experts, N is what a token uses."""
    return _FLOPS_OF_A_TOKEN * parameters * tokens


def best_parameters(flops: float) -> float:
    """Return the number of parameters on which a budget is best spent, with 20 tokens for each.

    >>> round(best_parameters(training_flops(70e9, 1.4e12)) / 1e9)
    70
    """
    return math.sqrt(flops / (_FLOPS_OF_A_TOKEN * _TOKENS_OF_A_PARAMETER))

"""The scaling law of the loss: L(N) ∝ N^-α, and how many parameters and tokens a budget is best spent on.

Sources: Kaplan et al. (arXiv 2001.08361), equation 1.1, α = 0.076 for parameters that embed no tokens; Hoffmann et al.
(arXiv 2203.15556): about 20 tokens for each parameter.
"""

from __future__ import annotations

import math

__all__ = ["KAPLAN", "best_parameters", "loss_ratio", "parameter_ratio", "training_flops"]

KAPLAN = 0.076
"""The exponent of the loss in the number of parameters, where neither data nor computation limits it."""
_TOKENS_OF_A_PARAMETER = 20.0
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

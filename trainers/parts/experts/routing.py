"""Which tokens an expert has room for, and how many each rank sends to it.

An expert takes at most its capacity of the tokens that chose it. All ranks' tokens stand in one queue: first choices
before second ones, as in GShard (arXiv:2006.16668), then the tokens of lower ranks, then earlier tokens. So the same
tokens are dropped on any number of ranks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot

__all__ = ["capacity_of", "choice_counts", "has_room", "kept_counts"]


def capacity_of(factor: float | None, choices: int, experts: int) -> int:
    """Return how many tokens an expert takes: *factor* times an even share of the choices, rounded up.

    Args:
        factor: the capacity factor; None for no limit.
        choices: tokens of all ranks times the experts that each one chooses.

    >>> capacity_of(1.25, 64, 8), capacity_of(None, 64, 8)
    (10, 64)
    """
    return choices if factor is None else math.ceil(round(factor * choices / experts, 6))


def choice_counts(chosen: Tensor, experts: int) -> Tensor:
    """Return how many tokens chose each expert as their first, second … choice: (top_k, experts).

    Args:
        chosen: the experts of each token, best first: (tokens, top_k).
    """
    places = torch.arange(chosen.shape[1], device=chosen.device) * experts
    return torch.bincount((chosen + places).flatten(), minlength=chosen.shape[1] * experts).view(-1, experts)


def _before(counts: Tensor) -> Tensor:
    """Return how many choices of an expert stand before those of a rank: (ranks, top_k, experts), like *counts*."""
    in_order = counts.transpose(0, 1)
    flat = in_order.flatten(0, 1)
    return (flat.cumsum(0) - flat).view_as(in_order).transpose(0, 1)


def kept_counts(counts: Tensor, capacity: int) -> Tensor:
    """Return how many of the choices each expert takes: (ranks, experts).

    Args:
        counts: of each rank, as in :func:`choice_counts`: (ranks, top_k, experts).
    """
    return torch.minimum((capacity - _before(counts)).clamp(min=0), counts).sum(1)


def has_room(chosen: Tensor, counts: Tensor, rank: int, capacity: int) -> Tensor:
    """Return for each choice of this rank's tokens whether the expert takes it, as a mask like *chosen*."""
    # A token's place in the queue of its expert: what other ranks and choices have before this rank's, and this rank's
    # own earlier tokens. Choices a b a of the same rank have the places 0 0 1, moved by what stands before them.
    own = one_hot(chosen, counts.shape[-1])
    place = (_before(counts)[rank] + own.cumsum(0) - own).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    return place < capacity

"""The order in which each rank of a pipeline runs its micro-batches, by schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["ORDERS", "Action", "gpipe", "interleaved", "one_f_one_b", "zero_bubble"]


class Action(NamedTuple):
    """One micro-batch on one chunk of layers of a rank."""

    kind: str
    """``forward``; ``backward`` (with *split_backward* of its input only); ``weight``, the gradient of the weights."""
    micro: int
    chunk: int = 0


Order = list[Action]


def gpipe(rank: int, ranks: int, micro_batches: int, chunks: int) -> Order:
    """All forwards, then all backwards. (Huang et al. 2019.)"""
    forwards = [Action("forward", micro) for micro in range(micro_batches)]
    return forwards + [Action("backward", micro) for micro in range(micro_batches)]


def one_f_one_b(rank: int, ranks: int, micro_batches: int, chunks: int) -> Order:
    """One forward for each rank that follows, then a forward and a backward in turn. (Narayanan et al. 2019.)

    >>> "".join(f"{action.kind[0]}{action.micro} " for action in one_f_one_b(1, 3, 4, 1))
    'f0 f1 b0 f2 b1 f3 b2 b3 '
    """
    return _alternating(
        [Action("forward", m) for m in range(micro_batches)],
        [Action("backward", m) for m in range(micro_batches)],
        ranks - rank - 1,
    )


def interleaved(rank: int, ranks: int, micro_batches: int, chunks: int) -> Order:
    """1F1B over several chunks of layers per rank: P micro-batches on one chunk, then P on the next.

    (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM".)
    """
    forwards, backwards = [], []
    for k in range(micro_batches * chunks):
        micro = k // (ranks * chunks) * ranks + k % ranks
        chunk = k // ranks % chunks
        forwards.append(Action("forward", micro, chunk))
        backwards.append(Action("backward", micro, chunks - 1 - chunk))
    return _alternating(forwards, backwards, 2 * (ranks - rank - 1) + (chunks - 1) * ranks)


def _alternating(forwards: Order, backwards: Order, warm_up: int) -> Order:
    """Put *warm_up* forwards first, then a forward and a backward in turn, then the backwards that are left."""
    ahead = min(warm_up, len(forwards))
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - ahead :]


def zero_bubble(rank: int, ranks: int, micro_batches: int, chunks: int) -> Order:
    """1F1B whose backward is split: the gradient of the weights is postponed, by *rank* micro-batches, to fill gaps.

    This is ZB-H1, which holds no more activations than 1F1B. (Qi et al. 2023, "Zero Bubble Pipeline Parallelism".)
    """
    order = [Action("forward", micro) for micro in range(ranks - rank)]
    forwards = iter(range(ranks - rank, micro_batches))
    for micro in range(micro_batches):
        order.append(Action("backward", micro))
        if micro >= rank:
            order.append(Action("weight", micro - rank))
        order += [Action("forward", following) for following in [next(forwards, None)] if following is not None]
    return order + [Action("weight", micro) for micro in range(micro_batches - rank, micro_batches)]


ORDERS: dict[str, Callable[[int, int, int, int], Order]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zero-bubble": zero_bubble,
}

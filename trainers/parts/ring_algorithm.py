"""The ring all-reduce: who sends which chunk when, and the messages themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Exchange", "exchange", "ring_all_reduce", "rounds"]

Exchange = Callable[[Tensor, Tensor], None]
"""Send the first tensor to the next rank while the second is filled with what the rank before sends."""


def rounds(rank: int, size: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the chunk that a rank sends, the one that it receives, and whether to add what comes to its own.

    Rank r begins with chunk r and in each round passes on what it has just received. After size - 1 rounds of adding,
    chunk r + 1 is complete on rank r; size - 1 further rounds hand the complete chunks on.
    """
    for turn in range(2 * (size - 1)):
        yield (rank - turn) % size, (rank - turn - 1) % size, turn < size - 1


def ring_all_reduce(tensor: Tensor, rank: int, size: int, exchange: Exchange) -> None:
    """Replace a tensor on each rank by the sum over all ranks.

    The chunks of a tensor that does not divide are of two sizes, one element apart; where there are more ranks than
    elements some are empty.

    Args:
        tensor: one dimension, of the same length on all ranks.
        exchange: how messages travel; called in the same order on all ranks.
    """
    chunks = tensor.tensor_split(size)
    came = torch.empty_like(chunks[0])  # the first chunks are the longer ones
    for sent, received, add in rounds(rank, size):
        own = chunks[received]
        if not add:
            exchange(chunks[sent], own)
            continue
        other = came[: len(own)]
        exchange(chunks[sent], other)
        own += other


def exchange(sent: Tensor, received: Tensor) -> None:
    """Send to the next rank of the default group while receiving from the one before.

    Both at once: were all to send first and then to receive, all would wait for a receiver. Empty messages are left
    out on both sides.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    messages = []
    if len(sent):
        messages.append(dist.P2POp(dist.isend, sent, (rank + 1) % size))
    if len(received):
        messages.append(dist.P2POp(dist.irecv, received, (rank - 1) % size))
    if messages:
        for message in dist.batch_isend_irecv(messages):
            message.wait()

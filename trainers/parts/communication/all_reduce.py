"""All-reduces written with send and receive: naive, tree, recursive halving and doubling, hierarchical.

Each replaces a tensor on every rank by the sum over all ranks, for any number of ranks and any length. The ring is in
``collectives.py``. ``dptrace links --algorithms`` times them, and ``dptrace explain`` shows their steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch.distributed as dist
from torch import Tensor

from dptrace.trainers.parts.communication.collectives import Exchange, ring_all_reduce

__all__ = ["halving_doubling_all_reduce", "hierarchical_all_reduce", "naive_all_reduce", "swap", "tree_all_reduce"]

Messages = Sequence[tuple[Tensor, int]]
"""Tensors of one dimension, each with the rank that it goes to or comes from."""
Swap = Callable[[Messages, Messages], None]
"""Send the first messages while receiving the second, and return when all of them have arrived."""


def swap(sent: Messages, received: Messages) -> None:
    """Send and receive in the default group, all at once; empty messages are skipped on both sides."""
    messages = [dist.P2POp(dist.isend, tensor, peer) for tensor, peer in sent if len(tensor)]
    messages += [dist.P2POp(dist.irecv, tensor, peer) for tensor, peer in received if len(tensor)]
    if messages:
        for message in dist.batch_isend_irecv(messages):
            message.wait()


def neighbors(members: Sequence[int], rank: int, swap: Swap) -> Exchange:
    """Return what a ring of some ranks exchanges with: send to the next member, receive from the previous one."""
    place = members.index(rank)
    right, left = members[(place + 1) % len(members)], members[place - 1]
    return lambda sent, received: swap([(sent, right)], [(received, left)])


def naive_all_reduce(tensor: Tensor, rank: int, size: int, swap: Swap, buffer: Tensor) -> None:
    """Let rank 0 receive all tensors, add them and send the sum to every rank.

    Args:
        buffer: as long as the tensor; it is overwritten.
    """
    if rank:
        swap([(tensor, 0)], [])
        swap([], [(tensor, 0)])
        return
    for other in range(1, size):
        swap([], [(buffer, other)])
        tensor += buffer
    swap([(tensor, other) for other in range(1, size)], [])


def tree_all_reduce(tensor: Tensor, rank: int, size: int, swap: Swap, buffer: Tensor) -> None:
    """Sum along a binomial tree to rank 0, and send the sum back along it; arguments as of the naive one."""
    _reduce(tensor, range(size), rank, swap, buffer)
    _broadcast(tensor, range(size), rank, swap)


def hierarchical_all_reduce(
    tensor: Tensor, rank: int, size: int, swap: Swap, buffer: Tensor, ranks_per_node: int
) -> None:
    """Sum in each node along a tree, among the first ranks of the nodes around a ring, and broadcast in each node.

    Args:
        ranks_per_node: consecutive ranks share a node; the last node may have fewer.
    """
    first = rank // ranks_per_node * ranks_per_node
    node, leaders = range(first, min(first + ranks_per_node, size)), range(0, size, ranks_per_node)
    _reduce(tensor, node, rank, swap, buffer)
    if rank == first:
        ring_all_reduce(tensor, leaders.index(rank), len(leaders), neighbors(leaders, rank, swap), buffer)
    _broadcast(tensor, node, rank, swap)


def _reduce(tensor: Tensor, members: Sequence[int], rank: int, swap: Swap, buffer: Tensor) -> None:
    """Sum on the first member: of each two that are left, one sends all it has, and the other adds it."""
    place, distance = members.index(rank), 1
    while distance < len(members):
        if place % (2 * distance):
            swap([(tensor, members[place - distance])], [])
            return
        if place + distance < len(members):
            swap([], [(buffer, members[place + distance])])
            tensor += buffer
        distance *= 2


def _broadcast(tensor: Tensor, members: Sequence[int], rank: int, swap: Swap) -> None:
    """Copy the tensor of the first member to the others: the rounds of the reduction backwards."""
    place, distance = members.index(rank), 1
    while 2 * distance < len(members):
        distance *= 2
    while distance:
        if place % (2 * distance) == distance:
            swap([], [(tensor, members[place - distance])])
        elif place % (2 * distance) == 0 and place + distance < len(members):
            swap([(tensor, members[place + distance])], [])
        distance //= 2


def halving_doubling_all_reduce(tensor: Tensor, rank: int, size: int, swap: Swap, buffer: Tensor) -> None:
    """Exchange halves with partners ever nearer, then all that is finished with partners ever farther (Rabenseifner).

    Where the number of ranks is not a power of two, some ranks hand their tensor to a neighbor before, and get the sum
    after (Thakur, Rabenseifner and Gropp 2005, section 4.5). Arguments as of the naive one.
    """
    extra = size - (1 << (size.bit_length() - 1))
    # Of the first 2·extra ranks the even ones hand over; the odd ones and all further ranks take part.
    paired = rank < 2 * extra
    if paired and rank % 2 == 0:
        swap([(tensor, rank + 1)], [])
        swap([], [(tensor, rank + 1)])
        return
    if paired:
        swap([], [(buffer, rank - 1)])
        tensor += buffer
    active = [other for other in range(size) if other >= 2 * extra or other % 2]
    _halve_and_double(tensor, active, active.index(rank), swap, buffer)
    if paired:
        swap([(tensor, rank - 1)], [])


def _halve_and_double(tensor: Tensor, active: Sequence[int], place: int, swap: Swap, buffer: Tensor) -> None:
    """Reduce and scatter a power of two of chunks, then gather them.

    Of 4 ranks, rank 1 (binary 01) gives chunks 2 and 3 to rank 3 at distance 2, then chunk 0 to rank 0 at distance 1;
    it then holds the sum of chunk 1, gets chunk 0 back, and chunks 2 and 3.
    """
    edges = [0, *accumulate(len(chunk) for chunk in tensor.tensor_split(len(active)))]

    def chunks(first: int, count: int) -> Tensor:
        return tensor[edges[first] : edges[first + count]]

    low, count = 0, len(active)
    while count > 1:
        count //= 2
        upper = bool(place & count)
        given, low = (low, low + count) if upper else (low + count, low)
        kept, partner = chunks(low, count), active[place ^ count]
        arriving = buffer[: len(kept)]
        swap([(chunks(given, count), partner)], [(arriving, partner)])
        kept += arriving
    while count < len(active):
        low, partner = place & ~(count - 1), active[place ^ count]
        swap([(chunks(low, count), partner)], [(chunks(low ^ count, count), partner)])
        count *= 2

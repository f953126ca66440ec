"""Collectives of the trainers: all gradients as one message, the ring all-reduce, and the mesh of nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.profiler import record_function

from dptrace.record import World
from dptrace.record.options.validation import check_nodes

__all__ = [
    "GradientSums",
    "all_gather",
    "coordinates",
    "exchange",
    "flat_gradients",
    "halving_doubling_all_reduce",
    "hierarchical_all_reduce",
    "joint_group",
    "mesh_of_nodes",
    "naive_all_reduce",
    "reduce_scatter",
    "ring_all_reduce",
    "rounds",
    "swap",
    "tree_all_reduce",
]


# torch 2.13 renames them and warns about the older names.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

Exchange = Callable[[Tensor, Tensor], None]
"""Send the first tensor to the next rank while the second receives what the previous rank sends."""


@contextmanager
def flat_gradients(model: nn.Module) -> Iterator[Tensor]:
    """Yield a copy of all gradients in one buffer; on exit, write the buffer back into the gradients.

    A network moves a few large messages faster than many small ones.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    yield flat
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def rounds(rank: int, size: int) -> Iterator[tuple[int, int, bool]]:
    """Yield for each round the chunk to send, the chunk to receive, and whether to add the received one.

    Rank r starts with chunk r and in each round passes on the chunk that it has just received. After size - 1 rounds
    of adding, chunk r + 1 is complete on rank r; in size - 1 more rounds the complete chunks go around.
    """
    for turn in range(2 * (size - 1)):
        yield (rank - turn) % size, (rank - turn - 1) % size, turn < size - 1


def ring_all_reduce(tensor: Tensor, rank: int, size: int, exchange: Exchange, buffer: Tensor | None = None) -> None:
    """Replace a tensor on each rank by the sum over all ranks.

    If the length is not divisible, chunks differ by one element; with more ranks than elements some are empty.

    Args:
        tensor: one dimension, of the same length on all ranks.
        exchange: sends and receives; called in the same order on all ranks.
        buffer: for one chunk, or longer; it is overwritten. By default it is allocated.
    """
    chunks = tensor.tensor_split(size)
    buffer = torch.empty_like(chunks[0]) if buffer is None else buffer  # the first chunks are the longest
    for sent, received, add in rounds(rank, size):
        target = chunks[received]
        arriving = buffer[: len(target)] if add else target
        phase = "reduce-scatter" if add else "all-gather"
        with record_function(f"Ring::{phase} (chunk {sent} out, {received} in)"):  # its name in the trace
            exchange(chunks[sent], arriving)
        if add:
            target += arriving


def exchange(sent: Tensor, received: Tensor) -> None:
    """Send to the next rank of the default group while receiving from the previous one.

    Both at once: if all ranks sent first and received afterwards, all would wait for a receiver. Empty messages are
    skipped on both sides.
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


def mesh_of_nodes(world: World, per_node: int | None) -> DeviceMesh:
    """Return the ranks as a mesh (across, inside) with a row for each node; consecutive ranks share a node.

    Args:
        per_node: ranks of a node; by default those that torchrun started on this machine.

    Raises:
        UsageError: the number of ranks is not divisible by *per_node*.
    """
    per_node = per_node or int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
    check_nodes(world.size, per_node)
    shape = (world.size // per_node, per_node)
    return init_device_mesh(world.device.type, shape, mesh_dim_names=("across", "inside"))


def joint_group(mesh: DeviceMesh, names: Sequence[str]) -> dist.ProcessGroup:
    """Return the ranks that differ from this one in these dimensions of a mesh only; all ranks must call this."""
    inner = [(mesh.mesh_dim_names or ()).index(name) for name in names]
    outer = [dimension for dimension in range(mesh.ndim) if dimension not in inner]
    groups = mesh.mesh.permute(*outer, *inner).reshape(-1, prod(mesh.size(dimension) for dimension in inner))
    group: dist.ProcessGroup = dist.new_subgroups_by_enumeration(groups.tolist())[0]
    return group


def coordinates(mesh: DeviceMesh) -> dict[str, int]:
    """Return the number of this rank in each dimension of a mesh."""
    return {name: mesh.get_local_rank(name) for name in mesh.mesh_dim_names or ()}


# All-reduces written with send and receive: naive, tree, recursive halving and doubling, hierarchical.
#
# Each replaces a tensor on every rank by the sum over all ranks, for any number of ranks and any length. The ring is in
# ``collectives.py``. ``dptrace links --algorithms`` times them, and ``dptrace explain`` shows their steps.


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


# All-reduces of gradients that start while backward goes on with other layers.


class GradientSums:
    """Sums gradients over ranks as soon as they are ready.

    Args:
        complete: says, when a gradient is ready, whether it is that of the whole step, and not of some micro-batches.
    """

    def __init__(self, complete: Callable[[], bool]) -> None:
        self.complete = complete
        self._pending: list[dist.Work] = []

    def add(self, parameters: Iterable[tuple[str, Tensor]], group: dist.ProcessGroup | None) -> None:
        """Sum the gradients of these parameters, by their names, over the ranks of a group, if it has several."""
        if dist.get_world_size(group) == 1:
            return
        for name, parameter in parameters:
            label = f"DP::all_reduce ({name})"  # its name in the trace

            def start(ready: Tensor, label: str = label) -> None:
                if self.complete():
                    with record_function(label):
                        self._pending.append(dist.all_reduce(ready.grad, group=group, async_op=True))

            parameter.register_post_accumulate_grad_hook(start)

    def wait(self) -> None:
        """Wait until all sums are complete."""
        while self._pending:
            self._pending.pop().wait()

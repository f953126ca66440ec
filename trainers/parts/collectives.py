"""Collectives of the trainers: all gradients as one message, the ring all-reduce, and the mesh of nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.profiler import record_function

from dptrace.record import World
from dptrace.record.options.validation import check_nodes

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


def ring_all_reduce(tensor: Tensor, rank: int, size: int, exchange: Exchange) -> None:
    """Replace a tensor on each rank by the sum over all ranks.

    If the length is not divisible, chunks differ by one element; with more ranks than elements some are empty.

    Args:
        tensor: one dimension, of the same length on all ranks.
        exchange: sends and receives; called in the same order on all ranks.
    """
    chunks = tensor.tensor_split(size)
    buffer = torch.empty_like(chunks[0])  # the first chunks are the longest
    for sent, received, add in rounds(rank, size):
        target = chunks[received]
        arriving = buffer[: len(target)] if add else target
        phase = "reduce-scatter" if add else "all-gather"
        with record_function(f"Ring::{phase} (chunk {sent} out, {received} in)"):  # its name in the trace
            exchange(chunks[sent], arriving)
        if add:
            target += arriving


Messages = Sequence[tuple[Tensor, int]]
"""Tensors of one dimension, each with the rank that it goes to or comes from."""


def swap(sent: Messages, received: Messages) -> None:
    """Send and receive in the default group, and return when all messages have arrived.

    All at once: if all ranks sent first and received afterwards, all would wait for a receiver. Empty messages are
    skipped on both sides.
    """
    messages = [dist.P2POp(dist.isend, tensor, peer) for tensor, peer in sent if len(tensor)]
    messages += [dist.P2POp(dist.irecv, tensor, peer) for tensor, peer in received if len(tensor)]
    for message in dist.batch_isend_irecv(messages) if messages else ():
        message.wait()


def exchange(sent: Tensor, received: Tensor) -> None:
    """Send to the next rank of the default group while receiving from the previous one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    swap([(sent, (rank + 1) % size)], [(received, (rank - 1) % size)])


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
    return dist.new_subgroups_by_enumeration(groups.tolist())[0]


def coordinates(mesh: DeviceMesh) -> dict[str, int]:
    """Return the number of this rank in each dimension of a mesh."""
    return {name: mesh.get_local_rank(name) for name in mesh.mesh_dim_names or ()}


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


# Collectives in forward, with others in backward.


class _CustomGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, x: Tensor, forward_op: Callable[[Tensor], Tensor], backward_op: Callable[[Tensor], Tensor]
    ) -> Tensor:
        context.backward_op = backward_op
        return forward_op(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return context.backward_op(gradients[0]), None, None


def custom_gradient(
    x: Tensor, forward_op: Callable[[Tensor], Tensor], backward_op: Callable[[Tensor], Tensor]
) -> Tensor:
    """Apply *forward_op* to the activations in forward, and *backward_op* to their gradients in backward."""
    return _CustomGradient.apply(x, forward_op, backward_op)


def unchanged(x: Tensor) -> Tensor:
    """Return a view of x, since autograd wants another tensor than the one that it gave."""
    return x.view_as(x)

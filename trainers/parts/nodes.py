"""Which ranks share a node, and the collectives inside nodes and between them."""

from __future__ import annotations

import os

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dptrace.record import World
from dptrace.record.options.validation import check_nodes

__all__ = ["Nodes", "mesh_of_nodes"]


def mesh_of_nodes(world: World, per_node: int | None) -> DeviceMesh:
    """Give the ranks as a mesh (across, inside), a row for each node.

    Ranks that follow each other are in one node, as torchrun numbers them.

    Args:
        per_node: ranks of a node; by default those that torchrun started on this machine.

    Raises:
        UsageError: the ranks do not divide into such nodes.
    """
    per_node = per_node or int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
    check_nodes(world.size, per_node)
    shape = (world.size // per_node, per_node)
    return init_device_mesh(world.device.type, shape, mesh_dim_names=("across", "inside"))


class Nodes:
    """The ranks in nodes of equal size: see :func:`mesh_of_nodes`."""

    def __init__(self, world: World, per_node: int | None) -> None:
        # The mesh has a group across nodes for every place in a node; only that of the leaders is used.
        mesh = mesh_of_nodes(world, per_node)
        self.leader = world.rank // mesh.size(1) * mesh.size(1)
        self.leads = world.rank == self.leader
        self.across, self.inside = mesh.get_group("across"), mesh.get_group("inside")

    def reduce_within_node(self, tensor: Tensor) -> None:
        """Sum over the node, on its leader; on the others *tensor* is then of no use."""
        dist.reduce(tensor, self.leader, group=self.inside)

    def all_reduce_across_nodes(self, tensor: Tensor) -> None:
        """Sum over the leaders; the other ranks have nothing to do."""
        if self.leads:
            dist.all_reduce(tensor, group=self.across)

    def broadcast_within_node(self, tensor: Tensor) -> None:
        """Give all ranks of the node what its leader has."""
        dist.broadcast(tensor, self.leader, group=self.inside)

"""Sharded within a node, replicated across nodes: FSDP's many messages stay on fast links (hybrid sharding).

::

    rank 0  rank 1     node 0: the model sharded over two ranks
    rank 2  rank 3     node 1: the same shards again; ranks 0 and 2 all-reduce the gradients of theirs

The ranks form a mesh: each row is a node, and shards the model as in fsdp; ranks of one column hold the same shards.
Gathers and reduce-scatters run within a node; across nodes only the shards' gradients are all-reduced, 1/n of the
model for a node of n. The memory is that of fsdp on one node.

    dptrace record --mode hsdp --gpus 4 --ranks-per-node 2
    torchrun --nproc-per-node 4 hsdp.py --steps 4 --ranks-per-node 2
"""

from __future__ import annotations

from dptrace.record import Options, World
from dptrace.trainers.parts.collectives import coordinates, mesh_of_nodes
from dptrace.trainers.parts.fully_sharded import fully_sharded
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.task import build_task, main


def train(options: Options, world: World) -> None:
    task = build_task(options, world)
    mesh = mesh_of_nodes(world, options.ranks_per_node)
    task.rank_entry["coordinates"] = coordinates(mesh)
    model = fully_sharded(task.model, mesh, options)
    optimizer_wrapper = OptimizerWrapper(model, options)

    with task.record(model) as recording:
        for x, y in task.batches(recording.total_steps):
            loss = task.forward(model, x, y)
            optimizer_wrapper.backward(loss)
            optimizer_wrapper.step()
            recording.step(loss)


if __name__ == "__main__":
    main(train, "hsdp", __doc__)

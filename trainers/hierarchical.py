"""Data parallelism on several machines: the slow links between nodes carry one message for each node, not each GPU.

::

    node 0: rank 1 ──reduce──► rank 0 ◄──all-reduce──► rank 2 ◄──reduce── rank 3 :node 1
            rank 1 ◄─broadcast─ rank 0                 rank 2 ─broadcast─► rank 3

Each node sums its gradients on its first rank; these leaders all-reduce among themselves and broadcast the result in
their nodes. A flat ring of the same ranks would run at the speed of its slowest link.

    dptrace record --mode hierarchical --gpus 4 --ranks-per-node 2
    torchrun --nproc-per-node 4 hierarchical.py --steps 4 --ranks-per-node 2
"""

from __future__ import annotations

import torch.distributed as dist

from dptrace.record import Options, World
from dptrace.trainers.parts.collectives import coordinates, flat_gradients, mesh_of_nodes
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.task import build_task, main


def train(options: Options, world: World) -> None:
    task = build_task(options, world)
    model = task.model
    optimizer_wrapper = OptimizerWrapper(model, options)
    mesh = mesh_of_nodes(world, options.ranks_per_node)
    task.rank_entry["coordinates"] = coordinates(mesh)
    inside, across = mesh.get_group("inside"), mesh.get_group("across")
    leader = world.rank - mesh.get_local_rank("inside")

    with task.record(model) as recording:
        for x, y in task.batches(recording.total_steps):
            loss = task.forward(model, x, y)
            optimizer_wrapper.backward(loss, over=world.size)  # so that the sum over the ranks is the average

            with flat_gradients(model) as gradients:
                dist.reduce(gradients, leader, group=inside)
                if world.rank == leader:
                    dist.all_reduce(gradients, group=across)
                dist.broadcast(gradients, leader, group=inside)

            optimizer_wrapper.step()
            recording.step(loss)


if __name__ == "__main__":
    main(train, "hierarchical", __doc__)

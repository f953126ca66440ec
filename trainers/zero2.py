"""Each rank keeps the gradients and the optimizer state of its shard of every block, and updates it (ZeRO-2).

::

    compute   │ forward │ backward                              │ update shards │              │
    network   │         │    reduce-scatter   reduce-scatter       │            │ all-gathers… │

An all-reduce is a reduce-scatter, which sums one shard on each rank, and an all-gather of these shards. Here the step
lies between the two: as soon as backward has passed a block, its gradients are reduce-scattered and all but this
rank's shard are freed; the rank updates its shard; and the parameters, not the gradients, are gathered. As many bytes
travel as in ddp, and a rank of n keeps 1/n of the gradients and of the optimizer state.

    dptrace record --mode zero2 --gpus 4 --optimizer adamw
    torchrun --nproc-per-node 4 zero2.py --steps 4 --optimizer adamw
"""

from __future__ import annotations

from torch import nn
from torch.distributed import group

from dptrace.record import Options, World, phase
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.sharded import Sharded
from dptrace.trainers.parts.task import build_task, main


def train(options: Options, world: World) -> None:
    task = build_task(options, world)
    model = task.model
    blocks = [Sharded(block, world) for block in model if list(block.parameters())]
    optimizer_wrapper = OptimizerWrapper(
        nn.ParameterList(block.shard for block in blocks), options, shard_group=group.WORLD
    )
    for block in blocks:
        block.gather().wait()  # a checkpoint has restored this rank's shards only

    with task.record(model) as recording:
        for x, y in task.batches(recording.total_steps):
            loss = task.forward(model, x, y)
            optimizer_wrapper.backward(loss, over=world.size)  # so that the sum over the ranks is the average
            with phase("backward"):
                for block in blocks:
                    block.wait()

            optimizer_wrapper.step()
            with phase("optimizer"):
                gathers = [block.gather() for block in blocks]
                for gather in gathers:
                    gather.wait()
            recording.step(loss)


if __name__ == "__main__":
    main(train, "zero2", __doc__)

"""Everything is sharded, also the parameters: each block's are gathered to compute and freed again (FSDP, ZeRO-3).

::

    compute   │         forward 0   forward 1   forward 2 │ backward 2   backward 1   backward 0 │       │ update │
    network   │ gather 0   gather 1   gather 2            │ gather 1 · scatter 2   gather 0 · scatter 1 … │

Each rank keeps 1/n of every block: parameters, gradients, optimizer state. Forward gathers a block's parameters,
computes, and frees what belongs to other ranks; backward gathers them again and reduce-scatters the gradients. That is
1.5 times the communication of ddp for 1/n of the memory; prefetching hides it behind the previous block.

    dptrace record --mode fsdp --gpus 4 --prefetch explicit
    torchrun --nproc-per-node 4 fsdp.py --steps 4 --prefetch explicit
"""

from __future__ import annotations

from torch.distributed.device_mesh import init_device_mesh

from dptrace.record import Options, World
from dptrace.trainers.parts.fully_sharded import fully_sharded
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.task import build_task, main


def train(options: Options, world: World) -> None:
    task = build_task(options, world)
    mesh = init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("shard",))
    model = fully_sharded(task.model, mesh, options)
    optimizer_wrapper = OptimizerWrapper(model, options)

    with task.record(model) as recording:
        for x, y in task.batches(recording.total_steps):
            loss = task.forward(model, x, y)
            optimizer_wrapper.backward(loss)
            optimizer_wrapper.step()
            recording.step(loss)


if __name__ == "__main__":
    main(train, "fsdp", __doc__)

"""Tensor parallelism: every layer is split, and each rank computes its part of it for the whole batch.

::

    rank 0   x ─► columns 0 ─► rows 0 ─┐
                                       ├─ all-reduce ─► y, the same on both ranks
    rank 1   x ─► columns 1 ─► rows 1 ─┘

As in Megatron-LM, the first layer of a pair is split by its outputs, the second by its inputs; attention is such a
pair with some of the heads in between. So a pair needs one all-reduce of the activations in forward and one of their
gradients in backward. They are on the critical path, since nothing else can be computed meanwhile: use the fastest
links.

    dptrace record --mode tp --gpus 2 --model gpt-tiny
    torchrun --nproc-per-node 2 tp.py --steps 4
"""

from __future__ import annotations

from torch.distributed.device_mesh import init_device_mesh

from dptrace.record import Options, World, assert_in_sync
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.task import build_task, main
from dptrace.trainers.parts.tensor_parallel import TensorParallel


def train(options: Options, world: World) -> None:
    mesh = init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("tp",))
    tensors = TensorParallel(mesh.get_group("tp"))
    task = build_task(options, world, tensors.split)
    model = task.model
    optimizer_wrapper = OptimizerWrapper(
        model, options, shard_group=tensors.group, replica_counts=tensors.replica_counts(model)
    )

    with task.record(model, tensors.parameters) as recording:
        for x, y in task.batches(recording.total_steps, shard=(0, 1)):
            loss = task.forward(model, x, y)
            optimizer_wrapper.backward(loss)
            optimizer_wrapper.step()
            recording.step(loss)

        assert_in_sync(model, exclude=tensors.sharded_dims)
        task.full_parameters = tensors.full_parameters(model.named_parameters())


if __name__ == "__main__":
    main(train, "tp", __doc__)

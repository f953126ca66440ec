"""Tensor parallelism in which the ranks also split the tokens wherever layers are not split (sequence parallelism).

::

    rank 0   half of the tokens ─┐              ┌─► columns 0 ─► rows 0 ─┐                  ┌─► half of the tokens
                                 ├─ all-gather ─┤                        ├─ reduce-scatter ─┤
    rank 1   half of the tokens ─┘              └─► columns 1 ─► rows 1 ─┘                  └─► half of the tokens

In tp, norms and residuals are the same on every rank, and so are the activations that they keep. Here each rank keeps
those of its tokens: all tokens are gathered before a split pair of layers and reduce-scattered after it. Together that
is as many bytes as tp's all-reduce, with 1/n of the memory between the pairs. The gradients of norms and biases, which
each rank has for its tokens, are summed after backward.

    dptrace record --mode tp-sp --gpus 2
    torchrun --nproc-per-node 2 tp_sp.py --steps 4
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.profiler import record_function

from dptrace.record import Options, World, assert_in_sync, phase
from dptrace.trainers.parts.collectives import flat_gradients
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.task import build_task, main
from dptrace.trainers.parts.tensor_parallel import TensorParallel


def train(options: Options, world: World) -> None:
    mesh = init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("tp",))
    tensors = TensorParallel(mesh.get_group("tp"), sequence=True)
    task = build_task(options, world, tensors.split)
    model = task.model
    optimizer_wrapper = OptimizerWrapper(
        model, options, shard_group=tensors.group, replica_counts=tensors.replica_counts(model)
    )

    with task.record(model, tensors.parameters) as recording:
        for x, y in task.batches(recording.total_steps, shard=(0, 1)):
            loss = task.forward(model, x, y)
            optimizer_wrapper.backward(loss)

            with (
                phase("backward"),
                flat_gradients(tensors.partial) as gradients,
                record_function("TP::all_reduce (norms and biases)"),
            ):
                dist.all_reduce(gradients, group=tensors.group)

            optimizer_wrapper.step()
            recording.step(loss)

        assert_in_sync(model, exclude=tensors.sharded_dims)
        task.full_parameters = tensors.full_parameters(model.named_parameters())


if __name__ == "__main__":
    main(train, "tp-sp", __doc__)

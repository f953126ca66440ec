"""Tensor parallelism whose ranks share out the tokens too, wherever the layers are not cut (sequence parallelism).

In tp the norms and residuals are the same on every rank, and so are the activations that they keep. Here each rank
keeps those of its tokens: all tokens are gathered where a cut pair of layers begins, and reduce-scattered where it
ends. Together that is as many bytes as tp's all-reduce, and 1/n of the memory between the pairs. What norms and biases
learn from each rank's tokens is added up after backward.

    dptrace record --mode tp-sp --gpus 2
    torchrun --nproc-per-node 2 tp_sp.py --steps 4
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.profiler import record_function

from dptrace.record import Options, World, assert_in_sync, parse_options, phase, process_group, record, save_parameters
from dptrace.record.options.validation import check_mesh
from dptrace.trainers.parts.flat import flat_gradients
from dptrace.trainers.parts.learner import OptimizerWrapper
from dptrace.trainers.parts.task import build_task
from dptrace.trainers.parts.tensor_parallel import TensorParallel


def train(options: Options, world: World) -> None:
    check_mesh(vars(options), world.size)
    mesh = init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("tp",))
    tensors = TensorParallel(mesh.get_group("tp"), sequence=True)
    task = build_task(options, world, tensors.split)
    model = task.model
    optimizer_wrapper = OptimizerWrapper(
        model, options, shard_group=tensors.group, replica_counts=tensors.replica_counts(model)
    )

    with record(model=model, **options.record_arguments) as recording:
        recording.parameters = tensors.parameters
        for x, y in task.batches(recording.total_steps, index=0, count=1):
            with phase("forward"):
                loss = task.loss(model(x), y)

            with phase("backward"):
                optimizer_wrapper.backward(loss)

                with flat_gradients(tensors.partial) as gradients, record_function("TP::all_reduce (norms and biases)"):
                    dist.all_reduce(gradients, group=tensors.group)

            with phase("optimizer"):
                optimizer_wrapper.step()
            recording.step(loss)

        assert_in_sync(model, exclude=tensors.sharded_dims)
        full_parameters = tensors.full_parameters(model.named_parameters())
    save_parameters(model, options.save_parameters, full_parameters)


if __name__ == "__main__":
    options = parse_options(__doc__, "tp-sp")
    with process_group() as world:
        train(options, world)

"""Data parallelism, the simple way: the whole backward pass, then one blocking all-reduce for each parameter.

::

    compute   │ forward │ backward        │                          │ optimizer │
    network   │         │                 │ all-reduce │ all-reduce… │           │

Every rank trains on its shard of the batch; the average of the ranks' gradients is the gradient of the batch. The
network idles while gradients are computed, and the GPU idles while they travel.

    dptrace record --mode naive --gpus 4
    torchrun --nproc-per-node 4 naive.py --steps 4
"""

from __future__ import annotations

import torch.distributed as dist

from dptrace.record import Options, World, assert_in_sync, parse_options, phase, process_group, record, save_parameters
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.task import build_task


def train(options: Options, world: World) -> None:
    task = build_task(options, world)
    model = task.model
    optimizer_wrapper = OptimizerWrapper(model, options)

    with record(model=model, **options.record_arguments) as recording:
        for x, y in task.batches(recording.total_steps):
            with phase("forward"):
                loss = task.loss(model(x), y)

            with phase("backward"):
                optimizer_wrapper.backward(loss / world.size)  # so that the sum over the ranks is the average

            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)

            with phase("optimizer"):
                optimizer_wrapper.step()
            recording.step(loss)

        assert_in_sync(model)
        task.validate(recording)
    save_parameters(model, options.save_parameters)


if __name__ == "__main__":
    options = parse_options(__doc__, "naive")
    with process_group() as world:
        train(options, world)

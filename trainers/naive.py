"""Data parallelism, the simple way: the whole backward pass, then a blocking all-reduce for each parameter.

Every rank trains on its shard of the batch; the average of their gradients is the gradient of the batch. While it
is computed the network does nothing, and while the gradients travel the processors do nothing.

    dptrace record --mode naive --gpus 4
    torchrun --nproc-per-node 4 naive.py --steps 4
"""

from __future__ import annotations

import torch.distributed as dist

from dptrace.record import Options, World, assert_in_sync, parse_options, phase, process_group, record, save_parameters
from dptrace.trainers.parts.learner import OptimizerWrapper
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
                optimizer_wrapper.backward(loss / world.size)  # so that the sum over ranks is the average

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

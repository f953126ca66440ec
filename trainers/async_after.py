"""Data parallelism, all at once: the whole backward pass, then all all-reduces start, then one wait for all of them.

::

    compute   │ forward │ backward        │                                   │ optimizer │
    network   │         │                 │ all-reduce all-reduce all-reduce… │           │

The network receives all messages together instead of one after the other, so it idles less between them than in
naive; but all of them start after backward, so that backward hides none of them as in interleaved.

    dptrace record --mode async-after --gpus 4
    torchrun --nproc-per-node 4 async_after.py --steps 4
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

            pending = [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]
            for reduction in pending:
                reduction.wait()

            with phase("optimizer"):
                optimizer_wrapper.step()
            recording.step(loss)

        assert_in_sync(model)
        task.validate(recording)
    save_parameters(model, options.save_parameters)


if __name__ == "__main__":
    options = parse_options(__doc__, "async-after")
    with process_group() as world:
        train(options, world)

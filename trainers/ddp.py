"""PyTorch's DistributedDataParallel: gradients are collected in buckets, with one all-reduce for each full bucket.

::

    compute   │ forward │ backward                  │    │ optimizer │
    network   │         │        bucket 0      bucket 1  │           │

The overlap is that of interleaved, with fewer and larger messages: DDP hooks into backward, averages each bucket over
the ranks, and waits for the last one before backward returns. The loop is that of a single GPU.

    dptrace record --mode ddp --gpus 4 --bucket-cap-mb 4
    torchrun --nproc-per-node 4 ddp.py --steps 4
"""

from __future__ import annotations

from dptrace.record import Options, World, assert_in_sync, parse_options, phase, process_group, record, save_parameters
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.replicated import replicated
from dptrace.trainers.parts.task import build_task


def train(options: Options, world: World) -> None:
    task = build_task(options, world)
    model = replicated(task.model, options)
    optimizer_wrapper = OptimizerWrapper(model, options)

    with record(model=model, **options.record_arguments) as recording:
        for x, y in task.batches(recording.total_steps):
            with phase("forward"):
                loss = task.loss(model(x), y)

            with phase("backward"):
                optimizer_wrapper.backward(loss)

            with phase("optimizer"):
                optimizer_wrapper.step()
            recording.step(loss)

        assert_in_sync(model)
        task.validate(recording)
    save_parameters(model, options.save_parameters)


if __name__ == "__main__":
    options = parse_options(__doc__, "ddp")
    with process_group() as world:
        train(options, world)

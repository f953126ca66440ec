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

from dptrace.record import Options, World
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.replicated import replicated
from dptrace.trainers.parts.task import build_task, main


def train(options: Options, world: World) -> None:
    task = build_task(options, world)
    model = replicated(task.model, options)
    optimizer_wrapper = OptimizerWrapper(model, options)

    with task.record(model) as recording:
        for x, y in task.batches(recording.total_steps):
            loss = task.forward(model, x, y)
            optimizer_wrapper.backward(loss)
            optimizer_wrapper.step()
            recording.step(loss)


if __name__ == "__main__":
    main(train, "ddp", __doc__)

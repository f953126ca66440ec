"""DDP with gradient accumulation: several micro-batches pass through the model before gradients are exchanged once.

::

    compute   │ forward │ backward │ forward │ backward         │    │ optimizer │
    network   │         │ no_sync  │         │     bucket 0   bucket 1 │          │

Each rank sums the gradients of a step's micro-batches, in no_sync() without any communication; the backward of the
last micro-batch all-reduces the sums. So a step sends the bytes of one micro-batch, and keeps its activations only.

    dptrace record --mode accumulate --gpus 4 --micro-batches 4
    torchrun --nproc-per-node 4 accumulate.py --steps 4
"""

from __future__ import annotations

from contextlib import nullcontext

import torch

from dptrace.record import Options, World
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.replicated import replicated
from dptrace.trainers.parts.task import build_task, main


def train(options: Options, world: World) -> None:
    task, count = build_task(options, world), options.micro_batches
    model = replicated(task.model, options)
    optimizer_wrapper = OptimizerWrapper(model, options)

    with task.record(model) as recording:
        for x, y in task.batches(recording.total_steps):
            losses = []
            for number, (micro_x, micro_y) in enumerate(zip(x.chunk(count), y.chunk(count), strict=True), 1):
                # Around forward as well: DDP decides there whether backward reduces.
                with nullcontext() if number == count else model.no_sync():
                    loss = task.forward(model, micro_x, micro_y)
                    optimizer_wrapper.backward(loss, over=count)
                losses.append(loss.detach())

            optimizer_wrapper.step()
            recording.step(torch.stack(losses).mean())


if __name__ == "__main__":
    main(train, "accumulate", __doc__)

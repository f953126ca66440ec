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

from dptrace.record import Options, World, assert_in_sync, parse_options, phase, process_group, record, save_parameters
from dptrace.record.options.validation import MICRO_BATCHES, check_micro_batches
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.replicated import replicated
from dptrace.trainers.parts.task import build_task


def train(options: Options, world: World) -> None:
    options.micro_batches = count = MICRO_BATCHES if options.micro_batches is None else options.micro_batches
    check_micro_batches(options.batch_size, world.size, count)
    task = build_task(options, world)
    model = replicated(task.model, options)
    optimizer_wrapper = OptimizerWrapper(model, options)

    with record(model=model, **options.record_arguments) as recording:
        for x, y in task.batches(recording.total_steps):
            losses = []
            for number, (micro_x, micro_y) in enumerate(zip(x.chunk(count), y.chunk(count), strict=True), 1):
                # Around forward as well: DDP decides there whether backward reduces.
                with nullcontext() if number == count else model.no_sync():
                    with phase("forward"):
                        loss = task.loss(model(micro_x), micro_y)

                    with phase("backward"):
                        optimizer_wrapper.backward(loss / count)
                losses.append(loss.detach())

            with phase("optimizer"):
                optimizer_wrapper.step()
            recording.step(torch.stack(losses).mean())

        assert_in_sync(model)
        task.validate(recording)
    save_parameters(model, options.save_parameters)


if __name__ == "__main__":
    options = parse_options(__doc__, "accumulate")
    with process_group() as world:
        train(options, world)

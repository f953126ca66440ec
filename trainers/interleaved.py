"""Data parallelism, overlapped: each parameter's all-reduce starts as soon as its gradient is ready.

::

    compute   │ forward │ backward                  │      │ optimizer │
    network   │         │    all-reduce  all-reduce  all-red… │         │

Backward goes from the last layer to the first. While the gradients of one layer travel, those of the layer before it
are computed; only all-reduces that are unfinished at the end of backward are waited for.

    dptrace record --mode interleaved --gpus 4
    torchrun --nproc-per-node 4 interleaved.py --steps 4
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

    pending: list[dist.Work] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: pending.append(dist.all_reduce(p.grad, async_op=True)))

    with record(model=model, **options.record_arguments) as recording:
        for x, y in task.batches(recording.total_steps):
            with phase("forward"):
                loss = task.loss(model(x), y)

            with phase("backward"):
                optimizer_wrapper.backward(loss / world.size)  # so that the sum over the ranks is the average

            while pending:
                pending.pop().wait()

            with phase("optimizer"):
                optimizer_wrapper.step()
            recording.step(loss)

        assert_in_sync(model)
        task.validate(recording)
    save_parameters(model, options.save_parameters)


if __name__ == "__main__":
    options = parse_options(__doc__, "interleaved")
    with process_group() as world:
        train(options, world)

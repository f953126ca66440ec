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

from functools import partial

import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from dptrace.record import Options, World
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.task import build_task, main


def train(options: Options, world: World) -> None:
    task = build_task(options, world)
    model = task.model
    optimizer_wrapper = OptimizerWrapper(model, options)

    pending: list[dist.Work] = []

    def all_reduce(parameter: Tensor, name: str) -> None:
        with record_function(f"DP::all_reduce ({name})"):  # its name in the trace
            pending.append(dist.all_reduce(parameter.grad, async_op=True))

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(partial(all_reduce, name=name))

    with task.record(model) as recording:
        for x, y in task.batches(recording.total_steps):
            loss = task.forward(model, x, y)
            optimizer_wrapper.backward(loss, over=world.size)  # so that the sum over the ranks is the average

            while pending:
                pending.pop().wait()

            optimizer_wrapper.step()
            recording.step(loss)


if __name__ == "__main__":
    main(train, "interleaved", __doc__)

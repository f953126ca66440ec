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
from torch.profiler import record_function

from dptrace.record import Options, World
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.task import build_task, main


def train(options: Options, world: World) -> None:
    task = build_task(options, world)
    model = task.model
    optimizer_wrapper = OptimizerWrapper(model, options)

    with task.record(model) as recording:
        for x, y in task.batches(recording.total_steps):
            loss = task.forward(model, x, y)
            optimizer_wrapper.backward(loss, over=world.size)  # so that the sum over the ranks is the average

            pending = []
            for name, parameter in model.named_parameters():
                with record_function(f"DP::all_reduce ({name})"):  # its name in the trace
                    pending.append(dist.all_reduce(parameter.grad, async_op=True))
            for reduction in pending:
                reduction.wait()

            optimizer_wrapper.step()
            recording.step(loss)


if __name__ == "__main__":
    main(train, "async-after", __doc__)

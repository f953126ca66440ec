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

            for name, parameter in model.named_parameters():
                with record_function(f"DP::all_reduce ({name})"):  # its name in the trace
                    dist.all_reduce(parameter.grad)

            optimizer_wrapper.step()
            recording.step(loss)


if __name__ == "__main__":
    main(train, "naive", __doc__)

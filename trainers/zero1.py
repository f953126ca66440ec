"""DDP with a sharded optimizer: each rank keeps the state of some parameters and updates only those (ZeRO-1).

::

    compute   │ forward │ backward                  │    │ update own │            │
    network   │         │        bucket 0      bucket 1  │            │ broadcasts │

AdamW keeps two numbers for each parameter, and in DDP every rank keeps all of them. Here gradients are averaged as in
DDP, each rank updates its own parameters with the state that only it has, and then broadcasts them: a rank of n keeps
1/n of the optimizer state, as nearly as the split by whole parameters allows.

    dptrace record --mode zero1 --gpus 4 --optimizer adamw
    torchrun --nproc-per-node 4 zero1.py --steps 4 --optimizer adamw
"""

from __future__ import annotations

from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from dptrace.errors import UsageError
from dptrace.record import Options, World
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper, build_optimizer
from dptrace.trainers.parts.task import build_task, main


def train(options: Options, world: World) -> None:
    task = build_task(options, world)
    parameters = list(task.model.parameters())
    if world.size > len(parameters):
        raise UsageError(f"zero1 splits {len(parameters)} parameters: use as many ranks or fewer, or --mode zero2.")
    model = DistributedDataParallel(task.model)
    optimizer = ZeroRedundancyOptimizer(
        parameters,
        lambda shard, **defaults: build_optimizer(shard, options),  # type: ignore[arg-type]  # any callable works
        # Each rank's parameters are one buffer and travel in one message.
        parameters_as_bucket_view=True,
    )
    optimizer_wrapper = OptimizerWrapper(model, options, optimizer, local_optimizer=optimizer.optim)

    with task.record(model) as recording:
        for x, y in task.batches(recording.total_steps):
            loss = task.forward(model, x, y)
            optimizer_wrapper.backward(loss)
            optimizer_wrapper.step()
            recording.step(loss)


if __name__ == "__main__":
    main(train, "zero1", __doc__)

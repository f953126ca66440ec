"""DDP whose optimizer is shared out: each rank keeps the state of some parameters, and updates only those (ZeRO-1).

AdamW keeps two numbers beside each parameter, and in DDP every rank keeps all of them. Here gradients are averaged
as in DDP, each rank updates its own parameters with the state that it alone has, and then sends them to the others:
of the optimizer's state, a rank of n keeps 1/n, as nearly as parameters that are shared out whole allow.

    dptrace record --mode zero1 --gpus 4 --optimizer adamw
    torchrun --nproc-per-node 4 zero1.py --steps 4 --optimizer adamw
"""

from __future__ import annotations

from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from dptrace.errors import UsageError
from dptrace.record import Options, World, assert_in_sync, parse_options, phase, process_group, record, save_parameters
from dptrace.trainers.parts.learner import OptimizerWrapper, optimizer_of
from dptrace.trainers.parts.task import build_task


def train(options: Options, world: World) -> None:
    task = build_task(options, world)
    parameters = list(task.model.parameters())
    if world.size > len(parameters):
        raise UsageError(f"zero1 shares out {len(parameters)} parameters: take at most as many ranks, or --mode zero2.")
    model = DistributedDataParallel(task.model)
    optimizer = ZeroRedundancyOptimizer(
        parameters,
        lambda own, **defaults: optimizer_of(own, options),  # type: ignore[arg-type]  # any callable will do
        # Each rank's parameters lie in one buffer, and travel in one message.
        parameters_as_bucket_view=True,
    )
    optimizer_wrapper = OptimizerWrapper(model, options, optimizer)

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
    save_parameters(model, options.save_parameters)


if __name__ == "__main__":
    options = parse_options(__doc__, "zero1")
    with process_group() as world:
        train(options, world)

"""One GPU: forward, backward, optimizer. No communication; the baseline of all other modes.

::

    compute   │ forward │ backward        │ optimizer │

    dptrace record --mode single
    python single.py --steps 4
"""

from __future__ import annotations

from dptrace.errors import UsageError
from dptrace.record import Options, World, assert_in_sync, parse_options, phase, process_group, record, save_parameters
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.task import build_task


def train(options: Options, world: World) -> None:
    if world.size > 1:
        raise UsageError("single trains on one GPU: start one process.")
    task = build_task(options, world)
    model = task.model
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
    options = parse_options(__doc__, "single")
    with process_group() as world:
        train(options, world)

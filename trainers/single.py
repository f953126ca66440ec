"""One GPU: forward, backward, optimizer. No communication; the baseline of all other modes.

::

    compute   │ forward │ backward        │ optimizer │

    dptrace record --mode single
    python single.py --steps 4
"""

from __future__ import annotations

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
            optimizer_wrapper.backward(loss)
            optimizer_wrapper.step()
            recording.step(loss)


if __name__ == "__main__":
    main(train, "single", __doc__)

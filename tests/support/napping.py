"""A balanced pipeline whose blocks sleep, so that its stages take equally long on any machine.

``torchrun -m tests.support.napping FOLDER SCHEDULE ...`` records the trainer ``pp`` with it, once for each schedule.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

FORWARD_S = 0.08
"""Time of a stage for one micro-batch; backward takes twice as long."""
MICRO_BATCHES = 4


class _Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, seconds: float) -> Tensor:
        time.sleep(seconds)
        ctx.save_for_backward(x, weight)
        ctx.seconds = seconds
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        time.sleep(2 * ctx.seconds)
        x, weight = ctx.saved_tensors
        return gradients[0] * weight, (gradients[0] * x).sum(0), None


class Nap(nn.Module):
    """A block that takes a given time in seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.weight, self.seconds = nn.Parameter(torch.ones(10)), seconds

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = _Nap.apply(x[:, :10], self.weight, self.seconds)  # type: ignore[no-untyped-call]
        return output


def main(folder: Path, schedules: list[str]) -> None:
    """Record the schedules on this process's ranks."""
    from dptrace.record import parse_options, process_group
    from dptrace.record.options.validation import check_ranks
    from dptrace.trainers import pp
    from dptrace.trainers.parts import models
    from dptrace.trainers.parts.models import Order
    from dptrace.trainers.parts.task import Task

    common = f"--micro-batches {MICRO_BATCHES} --batch-size 32 --steps 2 --warmup 2 --wait 0".split()
    with process_group() as world:
        for schedule in schedules:
            options = parse_options("", "pp", [*common, "--schedule", schedule, "--out", str(folder / schedule)])
            check_ranks("pp", vars(options), world.size)
            naps = [Nap(FORWARD_S) for _ in range(world.size)]
            images = models.Images(options.seed)
            order = Order(len(images), options.batch_size, seed=None)
            build_task = partial(Task, nn.Sequential(*naps), images, order=order)
            pp.build_task = build_task  # type: ignore[attr-defined]
            pp.train(options, world)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

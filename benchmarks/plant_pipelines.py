"""Pipelines to plant delays in: sends and receives by hand, and torch's schedules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

MICRO_BATCHES, _ROWS = 4, 4
PIPELINES = ("by_hand", "in_order", "with_barrier", "gpipe", "1f1b", "interleaved", "zero_bubble", "v")
"""By hand, last micro-batch first in backward, or in order; with a barrier at its end; torch's schedules."""


def pipeline_step(style: str, layer: Callable[[], nn.Module], optimizer_at: Callable[[], None]) -> Callable[[], None]:
    """Return what carries out a step of a pipeline.

    Args:
        layer: makes what a stage runs.
        optimizer_at: called before the optimizer.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if style in ("by_hand", "in_order", "with_barrier"):
        stages = [layer()]
        carry_out: Callable[[], None] = partial(_by_hand, style, stages[0], rank, ranks)
    else:
        second = 2 * ranks - 1 - rank if style == "v" else rank + ranks
        numbers = [rank] if style in ("gpipe", "1f1b") else [rank, second]
        stages = [layer() for _ in numbers]
        carry_out = _scheduled(style, stages, numbers)
    optimizer = torch.optim.SGD([p for stage in stages for p in stage.parameters()], lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        carry_out()
        optimizer_at()
        optimizer.step()

    return step


def _by_hand(style: str, stage: nn.Module, rank: int, ranks: int) -> None:
    passed = []
    for _ in range(MICRO_BATCHES):
        x = torch.randn(_ROWS, 64)
        if rank:
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = stage(x)
        if rank < ranks - 1:
            dist.send(y.detach(), rank + 1)
        passed.append((x, y))
    for x, y in passed if style == "in_order" else reversed(passed):
        gradient = torch.ones_like(y)
        if rank < ranks - 1:
            dist.recv(gradient, rank + 1)
        y.backward(gradient)
        if rank:
            assert x.grad is not None
            dist.send(x.grad, rank - 1)
    if style == "with_barrier":
        dist.barrier()


def _scheduled(style: str, stages: list[nn.Module], numbers: list[int]) -> Callable[[], None]:
    from torch.distributed.pipelining import PipelineStage, schedules

    ranks = dist.get_world_size()
    count = ranks * len(stages)
    own = [
        PipelineStage(stage, number, count, torch.device("cpu")) for stage, number in zip(stages, numbers, strict=True)
    ]
    made = {
        "gpipe": schedules.ScheduleGPipe,
        "1f1b": schedules.Schedule1F1B,
        "interleaved": schedules.ScheduleInterleaved1F1B,
        "zero_bubble": schedules.ScheduleInterleavedZeroBubble,
        "v": schedules.ScheduleZBVZeroBubble,
    }[style]
    of: Any = own[0] if len(own) == 1 else own
    schedule = made(of, n_microbatches=MICRO_BATCHES, loss_fn=lambda y, target: (y - target).square().mean())

    def carry_out() -> None:
        inputs = (torch.randn(_ROWS * MICRO_BATCHES, 64),) if 0 in numbers else ()
        target = torch.randn(_ROWS * MICRO_BATCHES, 64)
        schedule.step(*inputs, **({"target": target, "losses": []} if count - 1 in numbers else {}))

    return carry_out

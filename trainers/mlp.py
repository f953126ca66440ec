"""What the trainers train: multi-layer perceptrons of four sizes, on synthetic images of 28 × 28 pixels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from dptrace.record import Options, World
from dptrace.record.options import SAMPLES, check_batch

WIDTHS = {
    "small": [784, 1024, 512, 256, 10],  # 1.5 million parameters
    "medium": [784, 2048, 2048, 1024, 512, 10],  # 8.4 million
    "large": [784, 4096, 4096, 2048, 2048, 1024, 512, 10],  # 35.2 million
    "xlarge": [784, 4096, 4096, 4096, 2048, 2048, 1024, 512, 10],  # 52.0 million
}
"""Neurons in each layer. Deep on purpose: while one layer's gradients travel, the next one's can be computed."""


def build(options: Options, world: World) -> nn.Module:
    """Build the model; the seed is the same on all ranks, and so are the parameters."""
    torch.manual_seed(options.seed)
    widths = WIDTHS[options.model]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(world.device, getattr(torch, options.dtype))


def batches(options: Options, world: World, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this rank's shard of each global batch, over and over through the data.

    Every rank makes all of the data from the same seed, so that the batch of a step is the same however many
    ranks share it; samples at the end that do not fill a batch are left out.

    Yields:
        inputs of shape (batch size / ranks, 784), and their classes.

    Raises:
        UsageError: the batch does not divide over the ranks.
    """
    check_batch(options.batch_size, world.size)
    random = torch.Generator().manual_seed(options.seed)
    x = torch.randn(SAMPLES, WIDTHS[options.model][0], generator=random)
    y = torch.randint(0, 10, (SAMPLES,), generator=random)
    x, y = x.to(world.device, getattr(torch, options.dtype)), y.to(world.device)
    shard = options.batch_size // world.size
    for step in range(steps):
        first = step % (SAMPLES // options.batch_size) * options.batch_size + world.rank * shard
        yield x[first : first + shard], y[first : first + shard]

"""Multi-layer perceptrons of four sizes, on synthetic images of 28 × 28 pixels."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from dptrace.record.options.models import WIDTHS as WIDTHS
from dptrace.record.options.validation import SAMPLES


def build(name: str) -> nn.Sequential:
    """Build the model, with parameters from torch's current seed."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(WIDTHS[name]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    """A block with the same width in and out; every block, also the first, computes a gradient of its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(relu(self.up(self.norm(x))))


def balanced() -> nn.Sequential:
    """Build 8 equal blocks: pipeline stages take equally long, so that the formula of the bubble can be checked.

    The scores of the classes are the first outputs of the last block; no layer differs from the others.
    """
    return nn.Sequential(*(Block(WIDTHS["small"][0]) for _ in range(8)))


class Images:
    """Images of noise with random classes, which a network can only memorize."""

    def __init__(self, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.x = torch.randn(SAMPLES, WIDTHS["small"][0], generator=random)
        self.y = torch.randint(0, 10, (SAMPLES,), generator=random)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: slice) -> tuple[Tensor, Tensor]:
        return self.x[rows], self.y[rows]

"""Gradients of which all numbers are sent in few bits: 8 for Int8, and 2, 4 or 8 for Rounded (int4, qsgd)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["GROUP", "Int8", "Rounded"]

GROUP = 512
"""Numbers that share the size of a step in ``Rounded``: a large one makes only its own group coarse."""
_TINY = torch.finfo(torch.float32).tiny


class Int8:
    """All numbers in 127 steps up and 127 down to the largest: a byte each, and 4 bytes for the size of a step."""

    def pack(self, numbers: Tensor) -> Tensor:
        step = (numbers.abs().amax(0, keepdim=True) / 127).clamp_min(_TINY)
        return torch.cat([step.view(torch.int8), (numbers / step).round().to(torch.int8)])

    def unpack(self, message: Tensor, into: Tensor) -> None:
        into += message[4:] * message[:4].view(torch.float32)


class Rounded:
    """All numbers in a few steps up and down to the largest of their group, several in a byte.

    Args:
        levels: steps up, and as many down: 1 fits into 2 bits, up to 7 into 4 bits, up to 127 into 8.
        random: draws whether a number is rounded up or down, so that the mean is the number (QSGD, arXiv:1610.02132);
            None to round to the nearest step.
    """

    def __init__(self, levels: int, random: torch.Generator | None = None) -> None:
        self.levels, self.random = levels, random
        self.bits = next(bits for bits in (2, 4, 8) if 2 * levels < 1 << bits)

    def pack(self, numbers: Tensor) -> Tensor:
        groups = pad(numbers, (0, -len(numbers) % GROUP)).view(-1, GROUP)
        size = (groups.abs().amax(1, keepdim=True) / self.levels).clamp_min(_TINY)
        steps = self._round(groups / size).clamp(-self.levels, self.levels)
        # With 7 levels -7 … 7 become 0 … 14, two in a byte: -4 and 5 become 3 and 12, and 3 + 12 * 16 = 195.
        codes = (steps + self.levels).to(torch.uint8).view(-1, 8 // self.bits)
        packed = (codes << self._shifts(codes)).sum(1, dtype=torch.uint8)
        return torch.cat([size.flatten().view(torch.uint8), packed])

    def unpack(self, message: Tensor, into: Tensor) -> None:
        groups = len(message) // (4 + GROUP * self.bits // 8)
        size, packed = message[: 4 * groups].view(torch.float32), message[4 * groups :, None]
        codes = (packed >> self._shifts(packed)) & ((1 << self.bits) - 1)
        steps = codes.view(groups, GROUP).float() - self.levels
        into += (steps * size[:, None]).flatten()[: len(into)]

    def _round(self, steps: Tensor) -> Tensor:
        if self.random is None:
            return steps.round()
        return (steps + torch.rand(steps.shape, generator=self.random, device=steps.device)).floor()

    def _shifts(self, like: Tensor) -> Tensor:
        return torch.arange(0, 8, self.bits, dtype=torch.uint8, device=like.device)

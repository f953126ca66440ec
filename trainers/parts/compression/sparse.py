"""Gradients of which only some numbers are sent, and how all encodings of a gradient are used.

::

    TopK        the largest numbers and their positions (arXiv:1712.01887)        8 bytes for each
    Threshold   the numbers above a limit and their positions                     8 bytes for each
    RandomK     numbers at random positions, the same on all ranks                4 bytes for each

The encodings of all numbers in few bits are in rounding.py.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Compressor", "RandomK", "Subset", "Threshold", "TopK"]


class Compressor(Protocol):
    """A way to encode float32 numbers in fewer bytes."""

    def pack(self, numbers: Tensor) -> Tensor:
        """Encode numbers as a message."""

    def unpack(self, message: Tensor, into: Tensor) -> None:
        """Decode a message and add its numbers to a tensor."""


class _Sparse:
    """Some of the numbers in float32, each after its position in int32: 8 bytes each.

    Zeros at the end of a message add 0 to the first number: messages can be padded.
    """

    def _pairs(self, numbers: Tensor, positions: Tensor) -> Tensor:
        return torch.stack((positions.int(), numbers[positions].view(torch.int32)), 1).flatten().view(torch.uint8)

    def unpack(self, message: Tensor, into: Tensor) -> None:
        positions, numbers = message.view(torch.int32).view(-1, 2).unbind(1)
        into.index_add_(0, positions, numbers.contiguous().view(torch.float32))


class TopK(_Sparse):
    """The largest numbers.

    Args:
        ratio: their share of all numbers.
    """

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio

    def pack(self, numbers: Tensor) -> Tensor:
        count = max(1, int(len(numbers) * self.ratio))
        return self._pairs(numbers, numbers.abs().topk(count, sorted=False).indices)


class Threshold(_Sparse):
    """The numbers above a limit; how many they are differs between ranks and steps."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def pack(self, numbers: Tensor) -> Tensor:
        # Written so that NaN, by which --amp fp16 finds an overflow, is sent as well.
        return self._pairs(numbers, (~(numbers.abs() <= self.limit)).nonzero().flatten())


class RandomK:
    """Draws random positions, one in each of k equal parts of a gradient: without positions sent, and without sorting.

    Args:
        ratio: share of the numbers.
        seed: the same on all ranks, which therefore draw the same positions as long as they draw equally often.
    """

    def __init__(self, ratio: float, seed: int) -> None:
        self.ratio = ratio
        # On the CPU: generators of different GPUs draw different numbers from one seed.
        self.random = torch.Generator().manual_seed(seed)

    def draw(self, count: int, device: torch.device) -> Subset:
        """Choose the positions for a gradient of *count* numbers."""
        kept = max(1, int(count * self.ratio))
        # 10 numbers in 4 parts: edges 0, 2, 5, 7, 10; from each part, a random one of its 2 or 3 positions.
        edges = torch.arange(kept + 1) * count // kept
        inside = torch.rand(kept, generator=self.random, dtype=torch.float64) * edges.diff()
        return Subset((edges[:-1] + inside.long()).to(device))


class Subset:
    """The numbers at given positions, 4 bytes each. Messages of ranks with the same positions can be summed."""

    def __init__(self, positions: Tensor) -> None:
        self.positions = positions

    def pack(self, numbers: Tensor) -> Tensor:
        # Plus 0, or NaN if any number is not finite: an overflow elsewhere must be seen on all ranks.
        return numbers[self.positions] + (numbers * 0).sum()

    def unpack(self, message: Tensor, into: Tensor) -> None:
        into.index_add_(0, self.positions, message)

"""Gradients as compressed messages with error feedback (arXiv:1901.09847).

The error of a message is added to the next gradient. Rounded numbers and chosen positions cannot be summed on their
way, so every rank gathers the messages of all ranks; numbers at positions that all ranks share are all-reduced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.functional import pad

from dptrace.trainers.parts.collectives import all_gather

# Gradients of which only some numbers are sent, and how all encodings of a gradient are used.
#
# ::
#
#     top_k       the largest numbers and their positions (arXiv:1712.01887)        8 bytes for each
#     threshold   the numbers above a limit and their positions                     8 bytes for each
#     RandomK     numbers at random positions, the same on all ranks                4 bytes for each
#
# Those of all numbers in few bits are Rounded ones.


class Compressor(Protocol):
    """A way to encode float32 numbers in fewer bytes."""

    def pack(self, numbers: Tensor) -> Tensor:
        """Encode numbers as a message."""

    def unpack(self, message: Tensor, into: Tensor) -> None:
        """Decode a message and add its numbers to a tensor."""


class Sparse:
    """Some of the numbers in float32, each after its position in int32: 8 bytes each.

    Zeros at the end of a message add 0 to the first number: messages can be padded.

    Args:
        choose: returns the positions of the numbers to send.
        varies: whether they are of another number on other ranks.
    """

    def __init__(self, choose: Callable[[Tensor], Tensor], varies: bool = False) -> None:
        self.choose, self.varies = choose, varies

    def pack(self, numbers: Tensor) -> Tensor:
        positions = self.choose(numbers)
        return torch.stack((positions.int(), numbers[positions].view(torch.int32)), 1).flatten().view(torch.uint8)

    def unpack(self, message: Tensor, into: Tensor) -> None:
        positions, numbers = message.view(torch.int32).view(-1, 2).unbind(1)
        into.index_add_(0, positions, numbers.contiguous().view(torch.float32))


def top_k(ratio: float) -> Sparse:
    """Send the largest numbers: this share of all."""
    return Sparse(lambda numbers: numbers.abs().topk(max(1, int(len(numbers) * ratio)), sorted=False).indices)


def threshold(limit: float) -> Sparse:
    """Send the numbers above a limit, and NaN, by which --amp fp16 finds an overflow."""
    return Sparse(lambda numbers: (~(numbers.abs() <= limit)).nonzero().flatten(), varies=True)


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


class ErrorFeedback:
    """A hook that averages compressed gradients and adds each error to the next gradient of the same parameter.

    Args:
        unbiased: whether the errors of *compressor* cancel out over time; then none is kept. Feeding them back could
            even make them grow: random rounding to few steps errs by more than the number itself.
    """

    def __init__(self, compressor: Compressor | RandomK, unbiased: bool = False) -> None:
        self.compressor, self.unbiased = compressor, unbiased
        self.residual: dict[Tensor, Tensor] = {}

    def compressor_for(self, gradient: Tensor) -> Compressor:
        """Return what encodes this gradient: the compressor, or the positions that it draws."""
        if isinstance(self.compressor, RandomK):
            return self.compressor.draw(len(gradient), gradient.device)
        return self.compressor

    def compress_gradient(self, gradient: Tensor, parameters: list[Tensor], compressor: Compressor) -> Tensor:
        """Encode a bucket's gradient plus the errors of its last message, and keep the new errors.

        Args:
            gradient: the gradients of all *parameters*, concatenated.
        """
        if self.unbiased:
            return compressor.pack(gradient.float())
        # By parameter, because DDP moves them to other buckets after the first step.
        kept = [self.residual[p] if p in self.residual else p.new_zeros(p.numel()).float() for p in parameters]
        whole = gradient.float() + torch.cat(kept)
        message = compressor.pack(whole)
        sent = torch.zeros_like(whole)
        compressor.unpack(message, sent)
        # An overflow, by which --amp fp16 finds its scale, must be sent and then forgotten.
        missing = (whole - sent).nan_to_num_(0.0, 0.0, 0.0)
        self.residual |= zip(parameters, missing.split([p.numel() for p in parameters]), strict=True)
        return message

    def average(self, bucket: GradBucket) -> Future[Tensor]:
        """Return the average of a bucket over the ranks."""
        compressor, ranks = self.compressor_for(bucket.buffer()), dist.get_world_size()
        message = self.compress_gradient(bucket.buffer(), bucket.parameters(), compressor)
        summed = isinstance(compressor, Subset)
        if isinstance(compressor, Sparse) and compressor.varies:
            message = pad_to_longest(message)

        def restore(future: Future[list[Tensor]]) -> Tensor:
            buffer: Tensor = bucket.buffer()
            total = torch.zeros_like(buffer, dtype=torch.float32)
            # NCCL's future holds all messages as one tensor, gloo's one tensor each. Unlike a variable of the hook, the
            # future keeps them from being freed while another stream reads them.
            received = torch.cat(future.value()).view(1 if summed else ranks, -1)
            # Rank by rank, so that the sum is the same everywhere; cloned, because a row may start at any byte.
            for sent in received:
                compressor.unpack(sent.clone(), total)
            return buffer.copy_(total / ranks)

        if summed:
            work = dist.all_reduce(message, async_op=True)
        else:
            work = all_gather(message.new_empty(ranks * len(message)), message, async_op=True)
        return work.get_future().then(restore)


def pad_to_longest(message: Tensor) -> Tensor:
    """Append zeros, so that the messages of all ranks have the same length, at least 8 bytes: an all-gather needs that.

    The ranks exchange the lengths first, and wait for them.
    """
    own = torch.tensor([len(message)], device=message.device)
    lengths = own.new_empty(dist.get_world_size())
    all_gather(lengths, own)
    return pad(message, (0, max(8, int(lengths.max())) - len(message)))


# Gradients of which all numbers are sent in few bits: 8 for Int8, and 2, 4 or 8 for Rounded (int4, qsgd).


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

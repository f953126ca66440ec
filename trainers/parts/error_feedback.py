"""Gradients as short messages, and what a message leaves out added to the next one: what topk and int8 are made of."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

from dptrace.trainers.parts.shards import all_gather

__all__ = ["Compressor", "ErrorFeedback", "Int8", "TopK"]


class Compressor(Protocol):
    """A way to write numbers in fewer bytes."""

    def pack(self, numbers: Tensor) -> Tensor:
        """Write them down as bytes; how many depends on their count only."""

    def unpack(self, message: Tensor, into: Tensor) -> None:
        """Add what a message says to *into*."""


class TopK:
    """The largest numbers, float32, and where they stand: 8 bytes for each."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio

    def pack(self, numbers: Tensor) -> Tensor:
        count = max(1, int(len(numbers) * self.ratio))
        where = numbers.abs().topk(count, sorted=False).indices
        return torch.cat([where.int().view(torch.uint8), numbers[where].view(torch.uint8)])

    def unpack(self, message: Tensor, into: Tensor) -> None:
        where, numbers = message.chunk(2)
        into.index_add_(0, where.view(torch.int32), numbers.view(torch.float32))


class Int8:
    """All numbers, in 127 steps up and 127 down to the largest: a byte for each, and 4 for the size of a step."""

    def pack(self, numbers: Tensor) -> Tensor:
        step = (numbers.abs().amax(0, keepdim=True) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        return torch.cat([step.view(torch.int8), (numbers / step).round().to(torch.int8)])

    def unpack(self, message: Tensor, into: Tensor) -> None:
        into += message[4:] * message[:4].view(torch.float32)


class ErrorFeedback:
    """A hook that averages messages, and adds what each left out to the next gradient of the same parameter."""

    def __init__(self, compressor: Compressor) -> None:
        self.compressor = compressor
        self.residual: dict[Tensor, Tensor] = {}

    def compress_gradient(self, gradient: Tensor, parameters: list[Tensor]) -> Tensor:
        """Write a bucket's gradient and what was left out before as a message, and keep what that leaves out.

        Args:
            gradient: those of all *parameters*, one after the other.
        """
        # By parameter: DDP puts them into other buckets after the first step.
        kept = [self.residual[p] if p in self.residual else p.new_zeros(p.numel()).float() for p in parameters]
        whole = gradient.float() + torch.cat(kept)
        message = self.compressor.pack(whole)
        sent = torch.zeros_like(whole)
        self.compressor.unpack(message, sent)
        # An overflow, by which --amp fp16 finds its scale, must pass and not stay.
        missing = (whole - sent).nan_to_num_(0.0, 0.0, 0.0)
        self.residual |= zip(parameters, missing.split([p.numel() for p in parameters]), strict=True)
        return message

    def average(self, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket over the ranks."""
        message, ranks = self.compress_gradient(bucket.buffer(), bucket.parameters()), dist.get_world_size()
        gathered = message.new_empty(ranks * len(message))
        work = all_gather(gathered, message, async_op=True)

        def restore(future: Future[list[Tensor]]) -> Tensor:
            buffer: Tensor = bucket.buffer()
            total = torch.zeros_like(buffer, dtype=torch.float32)
            # NCCL's future holds all messages as one tensor, gloo's a tensor for each. Both keep them from being
            # freed while they are read on another stream, as the variable of the hook would not.
            messages = torch.cat(future.value()).view(ranks, -1)
            # Rank by rank, so that the sum comes out the same everywhere; copied, as a row may begin at any byte.
            for other in messages:
                self.compressor.unpack(other.clone(), total)
            return buffer.copy_(total / ranks)

        future: Future[Tensor] = work.get_future().then(restore)
        return future

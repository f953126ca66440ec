"""Gradients as compressed messages with error feedback (arXiv:1901.09847), which topk and int8 use.

The error of a message is added to the next gradient. Such messages cannot be summed on their way, so every rank
gathers the messages of all ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

from dptrace.trainers.parts.collectives import all_gather

__all__ = ["Compressor", "ErrorFeedback", "Int8", "TopK"]


class TopK:
    """The largest numbers in float32 and their positions: 8 bytes each."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio

    def pack(self, numbers: Tensor) -> Tensor:
        count = max(1, int(len(numbers) * self.ratio))
        positions = numbers.abs().topk(count, sorted=False).indices
        return torch.cat([positions.int().view(torch.uint8), numbers[positions].view(torch.uint8)])

    def unpack(self, message: Tensor, into: Tensor) -> None:
        positions, numbers = message.chunk(2)
        into.index_add_(0, positions.view(torch.int32), numbers.view(torch.float32))


class Int8:
    """All numbers in 127 steps up and 127 down to the largest: a byte each, and 4 bytes for the size of a step."""

    def pack(self, numbers: Tensor) -> Tensor:
        step = (numbers.abs().amax(0, keepdim=True) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        return torch.cat([step.view(torch.int8), (numbers / step).round().to(torch.int8)])

    def unpack(self, message: Tensor, into: Tensor) -> None:
        into += message[4:] * message[:4].view(torch.float32)


Compressor = TopK | Int8
"""A way to encode numbers in fewer bytes: ``pack`` encodes them, in a number of bytes that depends only on how many
they are; ``unpack`` decodes a message and adds its numbers to a tensor."""


class ErrorFeedback:
    """A hook that averages compressed gradients and adds each error to the next gradient of the same parameter."""

    def __init__(self, compressor: Compressor) -> None:
        self.compressor = compressor
        self.residual: dict[Tensor, Tensor] = {}

    def compress_gradient(self, gradient: Tensor, parameters: list[Tensor]) -> Tensor:
        """Encode a bucket's gradient plus the errors of its last message, and keep the new errors.

        Args:
            gradient: the gradients of all *parameters*, concatenated.
        """
        # By parameter, because DDP moves them to other buckets after the first step.
        kept = [self.residual[p] if p in self.residual else p.new_zeros(p.numel()).float() for p in parameters]
        whole = gradient.float() + torch.cat(kept)
        message = self.compressor.pack(whole)
        sent = torch.zeros_like(whole)
        self.compressor.unpack(message, sent)
        # An overflow, by which --amp fp16 finds its scale, must be sent and then forgotten.
        missing = (whole - sent).nan_to_num_(0.0, 0.0, 0.0)
        self.residual |= zip(parameters, missing.split([p.numel() for p in parameters]), strict=True)
        return message

    def average(self, bucket: GradBucket) -> Future[Tensor]:
        """Return the average of a bucket over the ranks."""
        message, ranks = self.compress_gradient(bucket.buffer(), bucket.parameters()), dist.get_world_size()
        gathered = message.new_empty(ranks * len(message))
        work = all_gather(gathered, message, async_op=True)

        def restore(future: Future[list[Tensor]]) -> Tensor:
            buffer: Tensor = bucket.buffer()
            total = torch.zeros_like(buffer, dtype=torch.float32)
            # NCCL's future holds all messages as one tensor, gloo's one tensor each. Unlike a variable of the hook, the
            # future keeps them from being freed while another stream reads them.
            messages = torch.cat(future.value()).view(ranks, -1)
            # Rank by rank, so that the sum is the same everywhere; cloned, because a row may start at any byte.
            for sent in messages:
                self.compressor.unpack(sent.clone(), total)
            return buffer.copy_(total / ranks)

        return work.get_future().then(restore)

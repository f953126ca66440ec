"""Gradients as compressed messages with error feedback (arXiv:1901.09847).

The error of a message is added to the next gradient. Rounded numbers and chosen positions cannot be summed on their
way, so every rank gathers the messages of all ranks; numbers at positions that all ranks share are all-reduced.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

from dptrace.trainers.parts.communication.collectives import all_gather
from dptrace.trainers.parts.compression.sparse import Compressor, RandomK, Subset, Threshold

__all__ = ["ErrorFeedback", "pad_to_longest"]


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
        if isinstance(compressor, Threshold):
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
    return torch.nn.functional.pad(message, (0, max(8, int(lengths.max())) - len(message)))

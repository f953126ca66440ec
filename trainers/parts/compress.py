"""Gradients made shorter before they travel: communication hooks of DistributedDataParallel.

A hook gets a bucket of gradients and gives a future of their average. fp16 and bf16 are torch's own, and so is PowerSGD
(arXiv:1905.13727). The other two are written out here: topk sends the largest numbers and where they stand
(arXiv:1712.01887), int8 sends all of them in 255 steps (arXiv:1610.02132). Such messages can't be added up on their
way, so all ranks gather those of all. Both feed back their error: what a message left out is added to the next
gradient, so that nothing is lost, only late (arXiv:1901.09847).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dptrace.record import Options
from dptrace.record.replicas import POWERSGD_RANK, TOPK_RATIO

__all__ = ["ErrorFeedback", "Int8", "Message", "TopK", "compress"]

_FIRST_LOW_RANK = 2
"""Step from which PowerSGD compresses, the earliest that torch allows: DDP rebuilds its buckets after the first."""
_NEARLY_NOTHING = 1e-7
"""Added to norms, so that a gradient of zeros does not become one of NaN; float16 can hold it."""


Hook = Callable[[GradBucket], Future[Tensor]]
"""Give the average over the ranks of a bucket."""

# Newer torch has a new name for it, and warns of the old one.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


def compress(model: DistributedDataParallel, options: Options) -> None:
    """Register the hook that was asked for, if any."""
    hook = _hook(model, options)
    if hook is not None:
        # As a lambda, since torch compares a hook's annotations with types, and ours are text; and since it refuses
        # its own bf16 hook by its name where there is no NCCL, though gloo adds such numbers up as well.
        model.register_comm_hook(None, lambda _, bucket: hook(bucket))


def _hook(model: DistributedDataParallel, options: Options) -> Hook | None:
    group = model.process_group
    if options.compress == "fp16":
        return partial(default_hooks.fp16_compress_hook, group)
    if options.compress == "bf16":
        return partial(default_hooks.bf16_compress_hook, group)
    if options.compress == "topk":
        options.topk_ratio = options.topk_ratio or TOPK_RATIO
        return ErrorFeedback(TopK(options.topk_ratio)).average
    if options.compress == "int8":
        return ErrorFeedback(Int8()).average
    if options.compress == "powersgd":
        options.powersgd_rank = rank = options.powersgd_rank or POWERSGD_RANK
        state = PowerSGDState(
            group, rank, start_powerSGD_iter=_FIRST_LOW_RANK, orthogonalization_epsilon=_NEARLY_NOTHING
        )
        if next(model.parameters()).device.type == "cpu":
            state.process_group = _Waiting(group)
        return partial(powerSGD_hook, state)
    return None


class _Waiting(dist.ProcessGroup):
    """A group whose all-reduces are done when the call returns, which torch's PowerSGD needs on CPU.

    Its callbacks start further all-reduces and wait for them. Gloo runs callbacks on the two threads that also do its
    work: with two buckets under way both may wait for work that nobody is left to do, or ranks start the all-reduces of
    the two in different orders, and these meet the wrong ones. Nor does the profiler see those threads. Callbacks of
    what is done already run at once, where they are registered. NCCL's do so anyway, and wait for streams only.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]  # torch's stub lacks this one
        self.group = group

    def allreduce(self, tensors: list[Tensor], options: dist.AllreduceOptions) -> dist.Work:  # type: ignore[override]
        work = self.group.allreduce(tensors, options)
        work.wait()
        return work


class Message(Protocol):
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

    def __init__(self, message: Message) -> None:
        self.message = message
        self.left_out: dict[Tensor, Tensor] = {}

    def shorten(self, gradient: Tensor, parameters: list[Tensor]) -> Tensor:
        """Write a bucket's gradient and what was left out before as a message, and keep what that leaves out.

        Args:
            gradient: those of all *parameters*, one after the other.
        """
        # By parameter: DDP puts them into other buckets after the first step.
        kept = [self.left_out[p] if p in self.left_out else p.new_zeros(p.numel()).float() for p in parameters]
        whole = gradient.float() + torch.cat(kept)
        message = self.message.pack(whole)
        sent = torch.zeros_like(whole)
        self.message.unpack(message, sent)
        # An overflow, by which --amp fp16 finds its scale, must pass and not stay.
        missing = (whole - sent).nan_to_num_(0.0, 0.0, 0.0)
        self.left_out |= zip(parameters, missing.split([p.numel() for p in parameters]), strict=True)
        return message

    def average(self, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket over the ranks."""
        message, ranks = self.shorten(bucket.buffer(), bucket.parameters()), dist.get_world_size()
        gathered = message.new_empty(ranks * len(message))
        work = _all_gather(gathered, message, async_op=True)

        def restore(future: Future[list[Tensor]]) -> Tensor:
            buffer: Tensor = bucket.buffer()
            total = torch.zeros_like(buffer, dtype=torch.float32)
            # NCCL's future holds all messages as one tensor, gloo's a tensor for each. Both keep them from being
            # freed while they are read on another stream, as the variable of the hook would not.
            messages = torch.cat(future.value()).view(ranks, -1)
            # Rank by rank, so that the sum comes out the same everywhere; copied, as a row may begin at any byte.
            for other in messages:
                self.message.unpack(other.clone(), total)
            return buffer.copy_(total / ranks)

        future: Future[Tensor] = work.get_future().then(restore)
        return future

"""A model in PyTorch's DistributedDataParallel, with its settings and a communication hook that compresses gradients.

A hook receives a bucket of gradients and returns a future of their average over the ranks. fp16, bf16 and PowerSGD
(arXiv:1905.13727) come from torch. The other two are in error_feedback.py: topk sends the largest values and their
positions (arXiv:1712.01887), int8 sends every value in 255 levels (arXiv:1610.02132).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dptrace.record import Options
from dptrace.record.options.validation import POWERSGD_RANK, TOPK_RATIO
from dptrace.trainers.parts.error_feedback import ErrorFeedback, Int8, TopK

__all__ = ["replicated"]

_FIRST_LOW_RANK_STEP = 2
"""Step from which PowerSGD compresses, the earliest that torch allows: DDP rebuilds its buckets after the first."""
_EPSILON = 1e-7
"""Added to norms, so that a gradient of zeros does not turn into NaN; float16 can represent it."""

Hook = Callable[[GradBucket], Future[Tensor]]
"""Return the average of a bucket over the ranks."""


def replicated(model: nn.Module, options: Options) -> DistributedDataParallel:
    """Wrap a model in DDP; settings that were not given keep DDP's defaults."""
    flags = ("static_graph", "gradient_as_bucket_view", "find_unused_parameters")
    settings: dict[str, Any] = {flag: True for flag in flags if getattr(options, flag)}
    if options.bucket_cap_mb is not None:
        settings["bucket_cap_mb"] = options.bucket_cap_mb
    wrapped = DistributedDataParallel(model, **settings)
    hook = _hook(wrapped, options)
    if hook is not None:
        # A lambda, because torch compares a hook's annotations with types and ours are strings, and because it
        # rejects its own bf16 hook by name if there is no NCCL, although gloo sums such numbers as well.
        wrapped.register_comm_hook(None, lambda _, bucket: hook(bucket))
    return wrapped


def _hook(model: DistributedDataParallel, options: Options) -> Hook | None:
    """Return the hook for ``options.compress``; None for no compression. Set the defaults of its options."""
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
        state = PowerSGDState(group, rank, start_powerSGD_iter=_FIRST_LOW_RANK_STEP, orthogonalization_epsilon=_EPSILON)
        if next(model.parameters()).device.type == "cpu":
            state.process_group = _BlockingProcessGroup(group)
        return partial(powerSGD_hook, state)
    return None


class _BlockingProcessGroup(dist.ProcessGroup):
    """A group whose all-reduces are complete when the call returns, which torch's PowerSGD needs on CPU.

    PowerSGD's callbacks start further all-reduces and wait for them. Gloo runs callbacks on the two threads that also
    do its work: with two buckets in flight, both may wait for work that no thread is left to do, or ranks may start
    the all-reduces of the two buckets in different orders, so that the wrong ones match. The profiler does not see
    those threads either. A callback of completed work runs at once, in the thread that registers it. NCCL runs
    callbacks that way in any case, and waits only for streams.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]  # torch's stub lacks this one
        self.group = group

    def allreduce(self, tensors: list[Tensor], options: dist.AllreduceOptions) -> dist.Work:  # type: ignore[override]
        work = self.group.allreduce(tensors, options)
        work.wait()
        return work

"""A model in PyTorch's DistributedDataParallel, with its settings and a communication hook that compresses gradients.

A hook receives a bucket of gradients and returns a future of their average over the ranks. fp16, bf16 and PowerSGD
(arXiv:1905.13727) come from torch. The others are ours: topk, threshold and randomk send some of the values
(compression.py), int8, int4 and qsgd all of them in few bits (compression.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dptrace.record import Options
from dptrace.record.options.validation import COMPRESSION_DEFAULTS
from dptrace.trainers.parts.compression import ErrorFeedback, Int8, RandomK, Rounded, threshold, top_k

_FIRST_LOW_RANK_STEP = 2
"""Step from which PowerSGD compresses, the earliest that torch allows: DDP rebuilds its buckets after the first."""
_EPSILON = 1e-7
"""Added to norms, so that a gradient of zeros does not turn into NaN; float16 can represent it."""
_NEWER = "forward_sync_buffers"
_BROADCAST = _NEWER if _NEWER in signature(DistributedDataParallel.__init__).parameters else "broadcast_buffers"
"""DDP's name for --broadcast-buffers; torch 2.13 renames it and warns about the older name."""

Hook = Callable[[GradBucket], Future[Tensor]]
"""Return the average of a bucket over the ranks."""


def replicated(model: nn.Module, options: Options) -> DistributedDataParallel:
    """Wrap a model in DDP; settings that were not given keep DDP's defaults."""
    flags = ("static_graph", "gradient_as_bucket_view", "find_unused_parameters")
    settings: dict[str, Any] = {flag: True for flag in flags if getattr(options, flag)}
    if not options.broadcast_buffers:
        settings[_BROADCAST] = False
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
    """Return the hook for ``options.compress``; None for no compression. Set the default of its option."""
    group, name, setting, seed = model.process_group, options.compress, 0.0, options.seed
    for field, (compression, default) in COMPRESSION_DEFAULTS.items():
        if compression == name:
            setting = getattr(options, field) or default
            setattr(options, field, setting)
    if name == "qsgd":
        # Each rank draws other numbers, so that the errors of the ranks partly cancel out in the average.
        own_seed = (seed * dist.get_world_size() + dist.get_rank()) % (1 << 63)
        random = torch.Generator(next(model.parameters()).device).manual_seed(own_seed)
        return ErrorFeedback(Rounded(int(setting), random), unbiased=True).average
    hooks: dict[str, Callable[[], Hook | None]] = {
        "none": lambda: None,
        "fp16": lambda: partial(default_hooks.fp16_compress_hook, group),
        "bf16": lambda: partial(default_hooks.bf16_compress_hook, group),
        "int8": lambda: ErrorFeedback(Int8()).average,
        "int4": lambda: ErrorFeedback(Rounded(7)).average,
        "topk": lambda: ErrorFeedback(top_k(setting)).average,
        "randomk": lambda: ErrorFeedback(RandomK(setting, seed)).average,
        "threshold": lambda: ErrorFeedback(threshold(setting)).average,
        "powersgd": lambda: _powersgd(model, int(setting)),
    }
    return hooks[name]()


def _powersgd(model: DistributedDataParallel, rank: int) -> Hook:
    group = model.process_group
    state = PowerSGDState(group, rank, start_powerSGD_iter=_FIRST_LOW_RANK_STEP, orthogonalization_epsilon=_EPSILON)
    if next(model.parameters()).device.type == "cpu":
        state.process_group = _BlockingProcessGroup(group)
    return partial(powerSGD_hook, state)


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

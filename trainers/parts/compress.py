"""Gradients made shorter before they travel: communication hooks of DistributedDataParallel.

A hook gets a bucket of gradients and returns a future of their average. fp16, bf16 and PowerSGD (arXiv:1905.13727)
are torch's own. The other two are in error_feedback.py: topk sends the largest values and their positions
(arXiv:1712.01887), int8 sends every value in 255 levels (arXiv:1610.02132). Such messages cannot be summed on their
way, so every rank gathers the messages of all ranks. Both use error feedback: what a message left out is added to the
next gradient (arXiv:1901.09847).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dptrace.record import Options
from dptrace.record.options.validation import POWERSGD_RANK, TOPK_RATIO
from dptrace.trainers.parts.error_feedback import ErrorFeedback, Int8, TopK

__all__ = ["compress"]

_FIRST_LOW_RANK = 2
"""Step from which PowerSGD compresses, the earliest that torch allows: DDP rebuilds its buckets after the first."""
_EPSILON = 1e-7
"""Added to norms, so that a gradient of zeros does not become one of NaN; float16 can hold it."""


Hook = Callable[[GradBucket], Future[Tensor]]
"""Give the average over the ranks of a bucket."""


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
        state = PowerSGDState(group, rank, start_powerSGD_iter=_FIRST_LOW_RANK, orthogonalization_epsilon=_EPSILON)
        if next(model.parameters()).device.type == "cpu":
            state.process_group = _BlockingProcessGroup(group)
        return partial(powerSGD_hook, state)
    return None


class _BlockingProcessGroup(dist.ProcessGroup):
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

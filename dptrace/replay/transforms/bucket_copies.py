"""DDP's copies: each gradient into its bucket before the all-reduce, and back after it.

They are kernels or operators of their own (``mul_out``, ``copy_bucket_to_grad``), unless gradients are views of
the buckets (``gradient_as_bucket_view``). Each reads and writes all bytes of the gradients once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.model.gpu_peaks import gpu_peak
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import TaskKind
from dptrace.replay.transforms.links import memory_bytes_per_s

__all__ = ["copy_ns", "copy_tasks", "uses_ddp"]

_GPU_BYTES_PER_S = 0.9e12
"""Memory bandwidth of a GPU that is not known: a V100's."""
_COPIES = ("reducer::mul_out", "reducer::copy_bucket_to_grad")
_HOOK = "torch::autograd::AccumulateGrad"
"""On a GPU, the copy into a bucket is what DDP's hook launches."""


def uses_ddp(model: Model) -> bool:
    """Return whether the recorded run reduces gradients in DDP's buckets."""
    return any(timeline.uses_ddp for timeline in model.run.timelines)


def copy_tasks(model: Model) -> NDArray[np.bool_]:
    """Return which tasks copy gradients into DDP's buckets or back."""
    names = model.graph.names
    known = _COPIES if model.run.on_cpu else (*_COPIES, _HOOK)
    matches = np.fromiter((name.endswith(known) for name in names), np.bool_, len(names))
    chosen = np.append(matches, False)[model.graph.operator]
    chosen &= model.graph.of(TaskKind.COMPUTE, TaskKind.MEMORY)
    return chosen if uses_ddp(model) else np.zeros_like(chosen)


def copy_ns(model: Model, sizes: Int64) -> Int64:
    """Return what copying gradients of these bytes takes: read and written once, at the memory's bandwidth.

    Zero for a run of DDP: it has its copies, or buckets that need none.
    """
    if uses_ddp(model):
        return np.zeros(len(sizes), np.int64)
    first = model.run.timelines[0]
    unknown = not first.on_cpu and (first.gpu is None or gpu_peak(first.gpu) is None)
    rate = _GPU_BYTES_PER_S if unknown else memory_bytes_per_s(model)
    nanoseconds: Int64 = np.rint(2e9 * sizes / rate).astype(np.int64)
    return nanoseconds

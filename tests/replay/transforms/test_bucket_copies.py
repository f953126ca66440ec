"""DDP's copies into its buckets and back."""

from __future__ import annotations

import numpy as np
import pytest

import dptrace
from dptrace.replay.transforms.bucket_copies import copy_ns, copy_tasks, uses_ddp
from dptrace.replay.transforms.schedule import Reschedule
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real

_MIB = 1 << 20


def test_ddp_copies_each_gradient_twice() -> None:
    """Two ranks, four steps, ten gradients: one operator into the bucket, one out of it."""
    model = dptrace.open(ROOT / "traces" / "ddp_cpu_2ranks").replay.model

    assert 2 * 4 * 10 * 2 == int(copy_tasks(model).sum())
    assert [0] == copy_ns(model, np.array([_MIB])).tolist()


def test_others_copy_nothing_and_would_at_the_memory_bandwidth() -> None:
    """A mebibyte read and written at 10 GB/s."""
    model = dptrace.open(ROOT / "traces" / "naive_cpu_2ranks").replay.model

    assert not uses_ddp(model)
    assert not copy_tasks(model).any()
    assert copy_ns(model, np.array([_MIB])).tolist() == [round(2 * _MIB / 10)]


def test_without_buckets_the_copies_go() -> None:
    """DDP's gradients one by one take no copies, and larger buckets keep them."""
    model = dptrace.open(ROOT / "traces" / "ddp_cpu_2ranks").replay.model
    copies = copy_tasks(model)

    assert (model.graph.duration_ns[copies] > 0).any()
    assert not Reschedule("interleaved").apply(model).graph.duration_ns[copies].any()
    kept = Reschedule("ddp", 50 * _MIB).apply(model).graph.duration_ns[copies]
    assert model.graph.duration_ns[copies].tolist() == kept.tolist()


@needs_real_traces
@pytest.mark.heavy
def test_on_a_gpu_copies_are_kernels_of_ddps_hooks() -> None:
    """161 gradients and three steps: one kernel from each hook, and one back."""
    model = dptrace.open(real("ddp_a100_rank0of2")).replay.model

    chosen = copy_tasks(model)
    assert 2 * 3 * 161 == int(chosen.sum())
    assert 2_823_829 == int(model.graph.duration_ns[chosen].sum())

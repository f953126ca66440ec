"""Advice on exposed communication, by its origin and the options in use."""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from dptrace.analysis.findings.detect import detected
from dptrace.analysis.findings.finding import (
    Finding,
    FindingContext,
    Gain,
    allocator_advice,
    first_bucket_advice,
    is_compiled,
)
from dptrace.analysis.per_gpu.device import figures_of
from dptrace.run.cross_rank import analyze_cross_rank
from dptrace.timeline.model import Collective, HostActivity, HostCause, HostLabel, Phase
from tests.support.builders import TimelineBuilder

MS = 1_000_000
DDP = {"ddp": {"bucket_cap_bytes": 26_214_400}}


def exposed(collective: Collective, phase: Phase = Phase.FORWARD, **info: object) -> Finding:
    """Return the finding on 30 of 100 ms of exposed time."""
    devices = []
    for rank in (0, 1):
        build = TimelineBuilder(rank, bounds=(0, 100 * MS)).compute(0, 60 * MS).all_reduce(60 * MS, 90 * MS)
        timeline = build.compute(90 * MS, 100 * MS).build()
        phases = timeline.phase.copy()
        phases[1] = phase
        devices.append(figures_of(replace(timeline, collectives=(collective,), phase=phases, uses_ddp=True)))
    (finding,) = detected(analyze_cross_rank(devices, 2, info), info)
    assert "exposed_comm" == finding.kind
    return finding


def test_buffers_are_ddps_and_are_broadcast_in_forward() -> None:
    """zero1 broadcasts parameters after the update, and hierarchical broadcasts gradients: neither are buffers."""
    for phase, info, buffers in (
        (Phase.FORWARD, {}, True),
        (Phase.FORWARD, DDP, True),
        (Phase.FORWARD, {"ranks": [{"rank": 0}, {"rank": 1, **DDP}]}, True),
        (Phase.FORWARD, {"mode": "hierarchical", "ddp": None}, False),
        (Phase.OPTIMIZER, DDP, False),
        (Phase.OTHER, {}, False),
    ):
        advice = exposed(Collective("broadcast", 4_000, "float"), phase, **info).advice
        assert buffers == ("broadcast_buffers=False" in advice)


def test_what_was_done_already_is_not_advised() -> None:
    """Prefetching is advised for FSDP only, and not if it is already explicit."""
    for label, options, advice in (
        ("", {}, "Overlap it with independent compute, or send fewer bytes."),
        ("FSDP::all_gather (0)", {}, "Prefetch earlier (FSDP: set_modules_to_forward_prefetch), or reshard less after"),
        ("FSDP::all_gather (0)", {"prefetch": "explicit"}, "Reshard less after forward, or send fewer bytes (bf16)."),
        ("FSDP::all_gather (0)", {"prefetch": "explicit", "reshard_after_forward": "no"}, "Send fewer bytes (bf16)."),
    ):
        assert exposed(Collective("all_gather", 4_000, "float", label=label), options=options).advice.startswith(advice)


def test_the_allocators_variable_is_the_one_that_torch_reads() -> None:
    """Both where the version is not known."""
    for torch, names in (
        ("2.13.0+cu130", {"PYTORCH_ALLOC_CONF"}),
        ("2.9.1", {"PYTORCH_CUDA_ALLOC_CONF"}),
        ("2.4.0a0+git1", {"PYTORCH_CUDA_ALLOC_CONF"}),
        (None, {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}),
        ("nightly", {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}),
    ):
        assert names == set(re.findall(r"PYTORCH\w+", allocator_advice({"versions": {"torch": torch}})))


def test_only_memory_of_the_gpu_is_in_segments_that_expand() -> None:
    """Pinned memory of the host is not, and where they expand already there is nothing to set."""
    for call, expands, pins in (
        ("", True, False),
        ("cudaMalloc", True, False),
        ("hipFree", True, False),
        ("cudaHostAlloc", False, True),
        ("cudaFreeHost", False, True),
        ("hipHostMalloc", False, True),
        ("cuMemMap", False, False),
    ):
        advice = allocator_advice({}, call)
        assert expands == ("expandable_segments" in advice)
        assert pins == ("pin buffers once" in advice)


def test_a_job_without_kernels_of_inductor_may_be_compiled() -> None:
    """Its products are a library's; the host is in the compiled graph."""
    for called, where, compiled in (
        ("aten::add", "forward", False),
        ("CompiledFunction", "", True),
        ("aten::mm", "## Call CompiledFxGraph fol2q ##", True),
        ("aten::mm", "Torch-Compiled Region: 0/0", True),
    ):
        label = HostLabel(HostCause.OPERATOR, called, where)
        host = HostActivity(np.array([0]), 100, np.array([0], np.int32), (label,))
        assert compiled == is_compiled([replace(TimelineBuilder().compute(0, 100).build(), host=host)])


def test_many_small_gradients_are_joined_as_the_job_can() -> None:
    """DDP by its option, FSDP by what it is given; another job by buckets."""
    for kind, label, ddp, said in (
        ("all_reduce", "", True, "raise bucket_cap_mb"),
        ("all_reduce", "", False, "as DistributedDataParallel does"),
        ("reduce_scatter", "FSDP::post_backward_reduce", False, "larger parts"),
    ):
        build = TimelineBuilder(bounds=(0, 100 * MS)).compute(0, 50 * MS)
        gather = label and "FSDP::all_gather (layers.0)"
        build.collective(50 * MS, 51 * MS, Collective("all_gather", 4096, "float", "default_pg", 2, label=gather))
        for k in range(1, 41):
            build.collective(
                (50 + k) * MS, (51 + k) * MS, Collective(kind, 40_000, "float", "default_pg", 2, label=label)
            )
        timeline = replace(build.compute(92 * MS, 100 * MS).build(), uses_ddp=ddp)
        found = detected(analyze_cross_rank([figures_of(timeline)], 1, {}))
        assert said in next(one.advice for one in found if one.evidence.collective == kind)


def test_what_was_left_unset_is_not_to_be_left_unset() -> None:
    """From the options of the run, or from DDP's logging data."""
    for info, said in (
        ({}, "Make the first message smaller"),
        ({"options": {"bucket_cap_mb": 100}, "ddp": {"bucket_cap_bytes": 104_857_600}}, "leave bucket_cap_mb unset"),
        ({"options": {"bucket_cap_mb": None}, **DDP}, "lower bucket_cap_mb."),
        ({"options": {}, **DDP}, "lower bucket_cap_mb."),
        ({"options": {}, "ddp": None}, "Make the first message smaller"),
    ):
        assert said in first_bucket_advice(FindingContext(analyze_cross_rank([]), info))


# The gain of a finding as plain data.


def test_a_finding_has_the_keys_of_its_gain() -> None:
    """Also where that is unknown: the keys do not depend on the answer."""
    plain = Finding("copies", "text", "advice", 10, 0.1)
    gained = Finding("copies", "text", "advice", 10, 0.1, gain=Gain("no copies", 5, 4, 6, 5))

    assert plain.to_dict().keys() == gained.to_dict().keys()
    assert {"gain_ns": 5, "gain_low_ns": 4, "gain_high_ns": 6, "gain_change": "no copies"}.items() <= (
        gained.to_dict().items()
    )
    assert plain.to_dict()["gain_ns"] is None

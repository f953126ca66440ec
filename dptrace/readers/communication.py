"""Which kernels communicate: the one table of their names, with what each does and who defines it.

To add a kernel, add a line to ``KERNELS``. Reading, the check of implausible events and classification all use it, and
so do the patterns of ``--comm-pattern``, which extend it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import unique
from dptrace.core.patterns import matches
from dptrace.errors import UsageError
from dptrace.readers.kernel_name import own_name


class Line(NamedTuple):
    """One line of the table of communication kernels."""

    pattern: str
    """Regular expression of a kernel's own name (see :func:`own_name`) without regard to case, from the start of one of
    its parts: ``nvshmem_extension::allToAllV`` is within any namespace."""
    source: str
    """Repository and path of the code that defines such kernels; starts with ``unverified`` where none was found."""
    kind: str = ""
    """The collective that all of them carry out; empty where the name says it (see ``KIND_WORDS``)."""
    synchronizes: bool | None = None
    """Whether no rank leaves it before all have entered; None: as its kind does (see ``dptrace.model.collectives``)."""
    signature: str = ""
    """Regular expression that the whole name must match too, where others use the same name."""


_TORCH = "pytorch/pytorch torch/csrc/distributed/c10d/symm_mem/"
_TRTLLM = "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/"
_FLASHINFER = "flashinfer-ai/flashinfer include/flashinfer/comm/"
_DEEP_EP = "deepseek-ai/DeepEP csrc/kernels/"
_TRITON = "ByteDance-Seed/Triton-distributed python/triton_dist/kernels/nvidia/"
_UB = "NVIDIA/TransformerEngine transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers.cu"

# The first line that matches a name counts. "collective" alone is no sign: FlashAttention's compute kernels are named
# CollectiveMainloop. Nor is a library's namespace: deep_ep::layout::get_dispatch_layout computes.
KERNELS = (
    # PyTorch symmetric memory; kernels of the first file are in an unnamed namespace.
    Line(
        "two_shot_all_reduce_kernel",
        _TORCH + "CUDASymmetricMemoryOps.cu",
        "reduce_scatter",
        signature=r"kernel<[^,<>]+, [^,]+, [^,]+, (?:true|\(bool\)1)\b",
    ),
    Line(r"(?:multimem_)?(?:one|two)_shot_all_reduce_kernel\w*", _TORCH + "CUDASymmetricMemoryOps.cu", "all_reduce"),
    Line("multimem_all_reduce_kernel", _TORCH + "CUDASymmetricMemoryOps.cu", "all_reduce"),
    Line("multimem_all_gather_kernel", _TORCH + "CUDASymmetricMemoryOps.cu", "all_gather"),
    Line("symmetric_memory::barrier_kernel", _TORCH + "CUDASymmetricMemory.cu", "barrier"),
    Line("symmetric_memory::(?:put|wait)_signal_kernel", _TORCH + "CUDASymmetricMemory.cu", "signal"),
    Line(r"nvshmem_extension::exchangeSplitAndOffset\w*", _TORCH + "nvshmem_extension.cu", "all_to_all"),
    Line(r"nvshmem_extension::allToAllV\w*", _TORCH + "nvshmem_extension.cu", "all_to_all", synchronizes=False),
    Line(r"nccl_extension::lsa_(?:put|get)\w*_kernel", _TORCH + "nccl_extension.cu", "put_get"),
    Line("nccl_extension::nccl_wait_for_signal_kernel", _TORCH + "nccl_extension.cu", "signal"),
    # All-reduces of inference engines, also of torch's former intra_node_comm.cu (oneShotAllReduceKernel).
    Line(
        "(?:one|two)_?shot_?all_?reduce(?:Fusion)?_?Kernel",
        _TRTLLM + "customAllReduceKernels.cu, communicationKernels/mnnvlAllreduceKernels.cu",
        "all_reduce",
    ),
    Line(
        "hybridCubeMeshAllReduceKernel", "pytorch/pytorch torch/csrc/distributed/c10d/intra_node_comm.cu", "all_reduce"
    ),
    Line(
        r"lowPrecision(?:One|Two)Shot\w*AllReduceKernel",
        _TRTLLM + "communicationKernels/customLowPrecisionAllReduceKernels.cu",
        "all_reduce",
    ),
    Line(
        r"(?:moe(?:reduce|finalize)_)?allreduce_fusion_kernel_\w+",
        _FLASHINFER + "trtllm_allreduce_fusion.cuh, trtllm_moe_allreduce_fusion.cuh",
        "all_reduce",
    ),
    Line(r"cross_device_reduce_\w+", "vllm-project/vllm csrc/custom_all_reduce.cuh", "all_reduce"),
    Line(r"quickreduce::allreduce_prototype_\w+", "vllm-project/vllm csrc/quickreduce/quick_reduce.h", "all_reduce"),
    Line("allreduce_prototype_(?:one|two)shot", "ROCm/aiter csrc/include/quick_all_reduce.cuh", "all_reduce"),
    Line("reduce_scatter_cross_device_store", "ROCm/aiter csrc/include/custom_all_reduce.cuh", "reduce_scatter"),
    Line("allgather_(?:naive|vec|lastdim)", "ROCm/aiter csrc/include/custom_all_reduce.cuh", "all_gather"),
    # Experts: dispatch sends tokens to the ranks of their experts, combine sends the results back.
    Line(
        r"(?:intra|inter)node::notify_dispatch\w*", _DEEP_EP + "legacy/intranode.cu, legacy/internode.cu", "all_to_all"
    ),
    Line(
        r"(?:intra|inter)node::(?:cached_notify\w*|barrier)",
        _DEEP_EP + "legacy/intranode.cu, legacy/internode.cu",
        "barrier",
    ),
    Line(
        "(?:intra|inter)node::dispatch",
        _DEEP_EP + "legacy/intranode.cu, legacy/internode.cu",
        "dispatch",
        synchronizes=True,
    ),
    Line("(?:intra|inter)node::combine", _DEEP_EP + "legacy/intranode.cu, legacy/internode.cu", "combine"),
    # With a receive hook, a low-latency kernel only sends, or only receives.
    Line("internode_ll::dispatch", _DEEP_EP + "legacy/internode_ll.cu", "dispatch"),
    Line("internode_ll::combine", _DEEP_EP + "legacy/internode_ll.cu", "combine"),
    Line("internode_ll::clean_low_latency_buffer", _DEEP_EP + "legacy/internode_ll.cu", "barrier"),
    Line("elastic::(?:hybrid_)?dispatch_impl", _DEEP_EP + "elastic/dispatch.hpp", "dispatch"),
    Line("elastic::(?:hybrid_)?combine_impl", _DEEP_EP + "elastic/combine.hpp", "combine"),
    Line("elastic::barrier_impl", _DEEP_EP + "elastic/barrier.hpp", "barrier"),
    Line("elastic::pp_send_impl", _DEEP_EP + "elastic/pp_send_recv.hpp", "send"),
    Line("elastic::pp_recv_impl", _DEEP_EP + "elastic/pp_send_recv.hpp", "recv"),
    Line("moeA2ADispatchKernel", _TRTLLM + "communicationKernels/moeAlltoAllKernels.cu", "dispatch", synchronizes=True),
    Line("moeA2ACombineKernel", _TRTLLM + "communicationKernels/moeAlltoAllKernels.cu", "combine", synchronizes=True),
    Line("moeAllToAllKernel", _TRTLLM + "moeCommKernels.cu, fusedMoeCommKernels.cu", "all_to_all", synchronizes=False),
    Line(r"EpDispatchIntraNode\w+", "ROCm/mori src/ops/dispatch_combine/intranode.hpp", "dispatch", synchronizes=True),
    Line(r"EpCombineIntraNode\w+", "ROCm/mori src/ops/dispatch_combine/intranode.hpp", "combine", synchronizes=True),
    Line(
        r"EpDispatch(?:InterNode|LowLatencyAsync|Kernel)\w*",
        "ROCm/mori src/ops/dispatch_combine/internode.hpp, low_latency_async.hpp",
        "dispatch",
    ),
    Line(
        r"EpCombine(?:InterNode|LowLatencyAsync|Kernel)\w*",
        "ROCm/mori src/ops/dispatch_combine/internode.hpp, low_latency_async.hpp",
        "combine",
    ),
    Line(
        "a2a_dispatch_(?:send|recv)_kernel",
        "perplexityai/pplx-garden p2p-all-to-all/a2a-kernels/src/a2a/a2a_dispatch_send.cu",
        "dispatch",
    ),
    Line(
        "a2a_combine_(?:send|recv)_kernel",
        "perplexityai/pplx-garden p2p-all-to-all/a2a-kernels/src/a2a/a2a_combine_send.cu",
        "combine",
    ),
    Line(
        "dispatchKernel",
        "ppl-ai/pplx-kernels csrc/all_to_all/internode_dispatch.cu",
        "dispatch",
        signature=r"\bstd::byte\b",
    ),
    Line(
        "combineKernel",
        "ppl-ai/pplx-kernels csrc/all_to_all/internode_combine.cu",
        "combine",
        signature=r"\bstd::byte\b",
    ),
    Line(r"kernel_dispatch_token\w*", _TRITON + "ep_a2a.py", "dispatch"),
    Line(r"kernel_combine_token\w*", _TRITON + "ep_a2a.py", "combine"),
    Line(r"all_to_all_kernel\w*", _TRITON + "low_latency_all_to_all.py", "all_to_all"),
    Line(r"allreduce_(?:one_shot|two_shot|double_tree)_\w+", _TRITON + "allreduce.py", "all_reduce"),
    # Transformer Engine's userbuffers: rs and ag at the end are the halves of an all-reduce.
    Line(r"userbuffers_fp16_sum_inplace_gpu_\w+_rs(?:_\w+)?", _UB, "reduce_scatter"),
    Line(r"userbuffers_fp16_sum_inplace_gpu_\w+_ag(?:_\w+)?", _UB, "all_gather"),
    Line(r"userbuffers_fp16_sum_inplace_gpu_\w+", _UB, "all_reduce"),
    Line(r"kuserbuffers_pushsendrecv\w*", _UB, "send_recv"),
    Line(r"kuserbuffers_(?:push|pull)send\w*", _UB, "send"),
    Line(r"kuserbuffers_(?:push|pull)recv\w*", _UB, "recv"),
    Line(r"kuserbuffers_\w+", _UB, "signal"),
    # NVSHMEM and rocSHMEM.
    Line(
        r"(?:barrier|sync)(?:_all)?_on_stream_kernel\w*",
        "NVIDIA/nvshmem src/host/stream/coll/barrier/barrier.cu",
        "barrier",
    ),
    Line("alltoall_on_stream_kernel", "NVIDIA/nvshmem src/host/stream/coll/alltoall/alltoall.cu", "all_to_all"),
    Line("broadcast_on_stream_kernel", "NVIDIA/nvshmem src/host/stream/coll/broadcast/broadcast.cu", "broadcast"),
    Line("fcollect_on_stream_kernel", "NVIDIA/nvshmem src/host/stream/coll/fcollect/fcollect.cu", "all_gather"),
    Line("rdxn_on_stream_kernel", "NVIDIA/nvshmem src/host/stream/coll/rdxn/reduce_common.cuh", "all_reduce"),
    Line(
        "reducescatter_on_stream_kernel",
        "NVIDIA/nvshmem src/host/stream/coll/reducescatter/reducescatter_common.cuh",
        "reduce_scatter",
    ),
    Line(r"nvshmemi_proxy_rma_\w+", "NVIDIA/nvshmem src/host/comm/rma.cu", "put_get"),
    Line(
        r"nvshmemi_(?:\w+_wait_until|signal)\w*_on_stream_kernel\w*|nvshmemi_proxy_quiet\w*",
        "NVIDIA/nvshmem src/host/stream/comm/cuda_interface_sync.cu, quiet_on_stream.cu",
        "signal",
    ),
    Line(
        r"nvshmem[ix]*_(?:\w+_)?(?:put|get)(?:mem)?(?:_\w+)?",
        "unverified: NVSHMEM's puts and gets as kernels",
        "put_get",
    ),
    Line("rocshmem_reduce_on_stream_kernel", "ROCm/rocm-systems projects/rocshmem", "all_reduce"),
    Line(r"rocshmem_\w+_on_stream_kernel", "unverified: rocSHMEM's other collectives, named like its reduction"),
    # Libraries that name every kernel after themselves.
    Line(".*nccl.*", "NVIDIA/nccl src/device/generate.py; also RCCL and NCCLX"),
    Line(".*rccl.*", "ROCm/rccl"),
    Line(
        r"(?:allreduce|allgather|broadcast|reducescatter|alltoall)\d+",
        "microsoft/mscclpp python/mscclpp_benchmark/allreduce.cu, apps/nccl/src/allreduce.cu",
    ),
    Line(".*msccl.*", "microsoft/mscclpp src/core/executor/execution_kernel.cu"),
    # One oneCCL collective is several kernels, and the barrier between them is one of its own.
    Line(".*oneccl.*", "uxlfoundation/oneCCL src/coll/algorithms", synchronizes=False),
    Line(
        r"hcom_\w+", "kali20gakki/msprof test/msprof_cpp/analysis_ut/application/assemble/test/hccl_assembler_utest.cpp"
    ),
    Line(r"nrta?_cc_\w+", "unverified: functions of AWS Neuron's runtime; no trace with such kernels was found"),
)

KIND_WORDS = (
    # The first match counts, in the own name in lower case without underscores: longer words come first.
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("sendrecv", "send_recv"),
    # torch's batch_isend_irecv: several sends and receives in one kernel.
    ("isendirecv", "send_recv"),
    ("receive", "recv"),
    ("recv", "recv"),
    ("send", "send"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("reduce", "reduce"),
    ("barrier", "barrier"),
    ("dispatch", "dispatch"),
    ("combine", "combine"),
)

GLOO_PREFIX = "gloo:"
"""Start of the names of gloo's collectives."""
GLOO_MESSAGES = ("gloo:send", "gloo:recv")
"""Starts of the names of its messages, which the host's own thread records until it has waited for them."""
C10D_PREFIX = "c10d::"
"""Start of the names of the operators that request a collective."""
CALLERS = (("record_param_comms",), ("nccl:", "rccl:"), (C10D_PREFIX, "_c10d_functional::"))
"""Starts of the names of what encloses a collective's launch on the CPU, most specific first."""
METADATA_PREFIXES = (*(prefix for prefixes in CALLERS for prefix in prefixes), GLOO_PREFIX)
"""Starts of the names of CPU events that carry a collective's metadata."""


# Compiled when first searched for: all take 10 ms, which a trace without kernels need not spend.
@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(f"(?:^|::)(?:{pattern})$", re.IGNORECASE)


@cache
def _any_line() -> re.Pattern[str]:
    return _compiled("|".join(f"(?:{kernel.pattern})" for kernel in KERNELS))


@lru_cache(maxsize=4096)
def _line_of(name: str) -> Line | None:
    """Return the line of the table that describes a kernel, or None for one that does not communicate."""
    own = own_name(name)
    if not _any_line().search(own):
        return None
    matching = (line for line in KERNELS if _compiled(line.pattern).search(own))
    return next((line for line in matching if re.search(line.signature, name)), None)


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """Return the kind of collective that a name indicates, or an empty string.

    >>> kind_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), kind_of("_reduce_scatter_base"), kind_of("Generic")
    ('all_reduce', 'reduce_scatter', '')
    """
    if (line := _line_of(name)) and line.kind:
        return line.kind
    plain = own_name(name).lower().replace("_", "")
    return next((kind for word, kind in KIND_WORDS if word in plain), "")


def synchronizes(name: str) -> bool | None:
    """Return whether no rank leaves a kernel before all have entered; None: as the kernel's kind does."""
    line = _line_of(name)
    return line.synchronizes if line else None


def communication_names(names: Sequence[str], patterns: Sequence[str] = ()) -> NDArray[np.bool_]:
    """Return which kernel names are those of communication kernels.

    Args:
        names: kernel names.
        patterns: regular expressions of further kernels, searched anywhere in the name without regard to case.

    Raises:
        UsageError: a pattern is not a regular expression, takes too long, or matches every name.
    """
    known = np.array([_line_of(name) is not None for name in names], np.bool_)
    for pattern in patterns:
        of_empty, *found = matches(pattern, ["", *names], "--comm-pattern", re.IGNORECASE)
        if of_empty:
            raise UsageError(
                f"--comm-pattern {pattern!r}: a pattern that matches an empty name matches every kernel; be more "
                "specific."
            )
        known |= np.array(found, np.bool_)
    return known


def is_communication(
    names: Sequence[str], name: NDArray[np.integer], kernels: NDArray[np.bool_], patterns: Sequence[str] = ()
) -> NDArray[np.bool_]:
    """Return which events are communication kernels by their names.

    Args:
        names: the string table.
        name: index into *names* of each event.
        kernels: which events are kernels; only their names are looked at, of which there are few.
        patterns: as for :func:`communication_names`, which also describes the errors.
    """
    known = np.zeros(len(names), np.bool_)
    used = unique(name[kernels])
    known[used] = communication_names([names[i] for i in used.tolist()], patterns)
    result: NDArray[np.bool_] = kernels & known[name]
    return result

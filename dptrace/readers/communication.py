"""Which kernels communicate, and how names tell which collective it is: the one table of both.

To add a communication kernel, add a line to ``KERNELS``. Reading, validation and classification all use it, and so do
the patterns of ``--comm-pattern``, which extend it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptrace.errors import UsageError

__all__ = ["C10D_PREFIX", "CALLERS", "GLOO_PREFIX", "METADATA_PREFIXES", "communication_names", "kind_of"]


class CommunicationKernel(NamedTuple):
    """One line of the table of communication kernels."""

    pattern: str
    """Regular expression, searched anywhere in a kernel's name without regard to case."""
    source: str
    """Who writes such kernels, with an example."""
    kind: str = ""
    """The collective that all of them carry out; empty where the name tells (see ``KIND_WORDS``)."""


# "collective" alone is no sign: FlashAttention's compute kernels are named CollectiveMainloop.
KERNELS = (
    CommunicationKernel("nccl", "NVIDIA NCCL, and RCCL in part: ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
    CommunicationKernel("rccl", "AMD RCCL"),
    CommunicationKernel("oneccl", "Intel oneCCL"),
    CommunicationKernel("msccl", "Microsoft MSCCL and MSCCL++"),
    CommunicationKernel("cross_device_reduce", "vLLM and SGLang: vllm::cross_device_reduce_1stage", "all_reduce"),
    CommunicationKernel("deep_ep::|internode::|intranode::", "DeepSeek DeepEP: deep_ep::intranode::dispatch"),
    CommunicationKernel("nvshmem.*(?:put|get|barrier|alltoall)", "NVIDIA NVSHMEM: its put, get, barrier and alltoall"),
)

KIND_WORDS = (
    # The first match counts, in the name in lower case without underscores: longer words come first.
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("sendrecv", "send_recv"),
    ("recv", "recv"),
    ("send", "send"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("reduce", "reduce"),
    ("barrier", "barrier"),
)

GLOO_PREFIX = "gloo:"
"""Start of the names of gloo's collectives."""
C10D_PREFIX = "c10d::"
"""Start of the names of the operators that request a collective."""
CALLERS = (("record_param_comms",), ("nccl:", "rccl:"), (C10D_PREFIX, "_c10d_functional::"))
"""Starts of the names of what encloses a collective's launch on the CPU, most specific first."""
METADATA_PREFIXES = (*(prefix for prefixes in CALLERS for prefix in prefixes), GLOO_PREFIX)
"""Starts of the names of CPU events that carry a collective's metadata."""

_KNOWN = re.compile("|".join(f"(?:{kernel.pattern})" for kernel in KERNELS), re.IGNORECASE)
_OF_ONE_KIND = tuple((re.compile(kernel.pattern, re.IGNORECASE), kernel.kind) for kernel in KERNELS if kernel.kind)


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """Return the kind of collective that a name indicates, or an empty string.

    >>> kind_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), kind_of("_reduce_scatter_base"), kind_of("Generic")
    ('all_reduce', 'reduce_scatter', '')
    """
    if kind := next((kind for pattern, kind in _OF_ONE_KIND if pattern.search(name)), ""):
        return kind
    plain = name.lower().replace("_", "")
    return next((kind for word, kind in KIND_WORDS if word in plain), "")


def communication_names(names: Sequence[str], patterns: Sequence[str] = ()) -> NDArray[np.bool_]:
    """Return which kernel names are those of communication kernels.

    Args:
        names: kernel names.
        patterns: regular expressions of further kernels, searched anywhere in the name without regard to case.

    Raises:
        UsageError: a pattern is not a regular expression, or matches every name.
    """
    try:
        extra = [re.compile(pattern, re.IGNORECASE) for pattern in patterns]
    except (re.error, OverflowError, RecursionError) as error:
        given = ", ".join(map(repr, patterns))
        raise UsageError(f"--comm-pattern {given}: not a regular expression: {error}.") from None
    if any(pattern.search("") for pattern in extra):
        raise UsageError("--comm-pattern: a pattern that matches an empty name matches every kernel; be more specific.")
    tests = [_KNOWN, *extra]
    return np.array([any(test.search(name) for test in tests) for name in names], np.bool_)

"""Why a profiler recorded no or not all kernels: from its library's messages, and from what else is on the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["hindrances", "lost_records", "missing_kernel_causes"]

_ADMIN_ONLY = (
    "the driver lets only administrators profile. In a container, start it with --cap-add=SYS_ADMIN and run as root; "
    "on the machine itself, put 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' into a file in "
    "/etc/modprobe.d and reboot, or run as root"
)
_ANOTHER_TOOL = (
    "CUPTI serves one tool at a time, and another one is attached to the process: nsys, ncu, compute-sanitizer, "
    "cuda-gdb, or a library that CUDA_INJECTION64_PATH loads. Run without it"
)
_DOES_NOT_FIT = (
    "CUPTI did not start: usually its version does not fit the driver (nvidia-smi shows the newest CUDA that the "
    "driver knows), or this is WSL or a virtual GPU where profiling is off. Update the driver, or install a torch "
    "built for an older CUDA"
)
CUPTI_ERRORS = {
    "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES": _ADMIN_ONLY,
    "CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES": (
        "the hypervisor does not let this virtual GPU be profiled: ask its administrator to enable profiling for the "
        "vGPU"
    ),
    "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": _ANOTHER_TOOL,
    "CUPTI_ERROR_NOT_COMPATIBLE": _ANOTHER_TOOL,
    "CUPTI_ERROR_HARDWARE_BUSY": (
        "a monitoring service uses the GPU's profiling hardware, as DCGM's profiling metrics do. Pause it with dcgmi "
        "profile --pause, and --resume afterwards"
    ),
    "CUPTI_ERROR_OUT_OF_MEMORY": "CUPTI found no memory for its records. End other jobs on the GPU or free its memory",
    "CUPTI_ERROR_NOT_INITIALIZED": _DOES_NOT_FIT,
    "CUPTI_ERROR_INVALID_DEVICE": _DOES_NOT_FIT,
    "CUPTI_ERROR_NOT_SUPPORTED": _DOES_NOT_FIT,
    "CUPTI_ERROR_UNKNOWN": _DOES_NOT_FIT,
}
"""Why CUPTI fails with an error, and what to do."""

_FAILED = re.compile(r"failed with error (CUPTI_ERROR_\w+)")
"""Kineto's message. A line of advice names an error too, whatever the error was, and must not count."""
_LIBRARY = re.compile(r"(libcupti[\w.-]*): cannot open shared object file")
_TOOLS = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH")
_LOST = (
    (
        re.compile(r"Dropped (\d+) activity records"),
        "the GPU's profiler dropped {} records, since kernels came faster than it could write them",
    ),
    (
        re.compile(r"Exceeded max GPU buffer count|activity collection was stopped early"),
        "the GPU's profiler stopped early, since its buffers were full",
    ),
)


def missing_kernel_causes(log: str) -> list[str]:
    """Return why there are no kernels, and what to do, as clauses, from the messages that Kineto wrote."""
    causes = []
    for error in dict.fromkeys(_FAILED.findall(log)):
        causes.append(f"{CUPTI_ERRORS.get(error, 'CUPTI failed')} ({error})")
    for library in dict.fromkeys(_LIBRARY.findall(log)):
        causes.append(f"{library} is missing: pip install nvidia-cuda-cupti-cu12 (or -cu13), as torch's CUDA needs")
    return causes


def hindrances(environment: Mapping[str, str], driver_parameters: str) -> tuple[str, ...]:
    """Return what here often keeps a profiler from the GPU's records, as clauses.

    Args:
        environment: this process's environment variables.
        driver_parameters: the contents of /proc/driver/nvidia/params; empty where it is missing.
    """
    found = [f"{name} is set, so another tool may be attached: unset it" for name in _TOOLS if environment.get(name)]
    if re.search(r"^RmProfilingAdminOnly: 1$", driver_parameters, re.MULTILINE):
        found.append(_ADMIN_ONLY)
    return tuple(found)


def lost_records(log: str) -> list[str]:
    """Return what the profiler's library lost, as clauses, from its messages."""
    found = []
    for pattern, clause in _LOST:
        for match in pattern.finditer(log):
            found.append(clause.format(*match.groups()))
    return list(dict.fromkeys(found))

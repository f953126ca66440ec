"""What dptrace does not read: devices in a file of Kineto's, and files of other programs.

Their absence from the figures is no observation: a file whose device is not read shows the host of that device, not a
run without one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

_DEVICES = (
    # In the names of categories and processes, and in the labels of processes, each as a word of its own.
    ("mtia", "MTIA"),
    ("ascend", "Ascend NPU"),
    ("npu", "NPU"),
    ("tpu", "TPU"),
    ("hpu|gaudi", "Gaudi"),
    ("xpu", "XPU"),
    ("mlu|cambricon", "Cambricon MLU"),
    ("gcu|enflame", "Enflame GCU"),
    ("musa|mthreads", "MUSA GPU"),
    ("ipu|poplar", "IPU"),
    ("neuron|neuroncore|trainium", "Neuron"),
    ("spyre", "Spyre"),
    ("glow", "Glow"),
    ("privateuse1", "PrivateUse1"),
)
_WORDS = tuple((re.compile(rf"(?<![a-z])(?:{words})(?![a-z])", re.IGNORECASE), name) for words, name in _DEVICES)
_MAX_NAME = 60
"""Characters of what a file calls a process that are shown."""
_CPU_ROWS = re.compile(r"\bCPU\b", re.IGNORECASE)
"""In the labels of processes of the host, as Kineto and Ascend's profiler write them."""


class UnreadDevice(NamedTuple):
    """A device whose events dptrace does not read."""

    name: str
    """``MTIA``; of a device that is not known, what the file calls its process or the category of its events."""
    events: int


def unread_device(
    unread: Counter[tuple[str, object]],
    processes: Mapping[object, str],
    read: Collection[object],
    reads_a_device: bool = False,
) -> UnreadDevice | None:
    """Return the device that events of unknown categories are of: of a process that is neither the host nor read.

    Args:
        unread: the number of such events by category and process.
        processes: name and labels of each process, as far as the file gives them.
        read: the processes that have events which are read.
        reads_a_device: whether these are a device's, too: then rows that name no device may be a tool's own.
    """
    found: Counter[str] = Counter()
    known = False
    for (category, pid), count in unread.items():
        said = processes.get(pid, "")
        if pid in read or _CPU_ROWS.search(said):
            continue
        name = next((name for word, name in _WORDS if word.search(f"{category} {said}")), "")
        if name and not known:
            found.clear()
            known = True
        if name or not (known or reads_a_device):
            found[name or (said or category or f"process {pid}")[:_MAX_NAME]] += count
    if not found:
        return None
    # Of one device, the most specific name counts: its rows may have a label only.
    names = [name for name in found if not any(name != other and name in other for other in found)]
    return UnreadDevice(" and ".join(sorted(names)), found.total())


_PROGRAMS = (
    # Names of processes, and ids that are names, of programs that write no operators of torch's.
    (
        re.compile(r"\b(?:CPU|CUDA|XPU|PrivateUse1) functions\b"),
        "of torch.autograd.profiler, the profiler before torch.profiler",
    ),
    (re.compile(r"/(?:host|device):\w+"), "of XLA's profiler (JAX, TensorFlow or torch_xla)"),
    (re.compile(r"\bCPU (?:HIP|HSA) API\b|\b(?:HIP|HSA) API\b|\bMarkers and Ranges\b"), "of rocprof"),
    (re.compile(r"\bAscend Hardware\b|\bAscendCL\b|\bCANN\b"), "of msprof, Ascend's profiler"),
    (re.compile(r"\bMainProcess\b"), "of VizTracer"),
    (re.compile(r"\bneuron", re.IGNORECASE), "of Neuron's profiler"),
)


def program_of(processes: Mapping[object, str], pids: Collection[object]) -> str:
    """Return what program wrote a file without events of torch's, by its processes; empty where nothing tells."""
    said = "\n".join((*processes.values(), *(pid for pid in pids if isinstance(pid, str))))
    return next((program for sign, program in _PROGRAMS if sign.search(said)), "")

"""Files with memory events, and a replay of them that is too simple to be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dptrace.analysis.memory.usage import DeviceMemory, MemoryUse, memory_use
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.trace import MemoryEvents
from tests.support.kineto_files import KinetoFile

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "memory_cpu"
"""Two steps of a small model with AdamW on a CPU.

Recorded by dptrace record --mode single --gpus 1 --model small --optimizer adamw --batch-size 64 --steps 2 --memory.
"""


class Replayed(NamedTuple):
    """What a dictionary of live blocks shows."""

    totals: list[int]
    alive_at_peak: list[int]
    """Sizes, the largest first, without what was there before."""
    lives: list[tuple[int, int, int]]
    """Size, event that allocated (-1 if none) and event that freed (-1 if none)."""


def replay(changes: Iterable[tuple[int, int]], start: int = 0) -> Replayed:
    """Replay (address, bytes) one after the other."""
    live: dict[int, tuple[int, int]] = {}
    total, totals, lives, peak, at_peak = start, [], [], start, list[int]()
    for number, (address, size) in enumerate(changes):
        total += size
        totals.append(total)
        if size > 0:
            live[address] = (size, number)
        elif address in live:
            lives.append((*live.pop(address), number))
        else:
            lives.append((-size, -1, number))
        if total > peak:
            peak, at_peak = total, sorted((size for size, _ in live.values()), reverse=True)
    lives += [(size, born, -1) for size, born in live.values()]
    return Replayed(totals, at_peak, sorted(lives))


def events_of(changes: Sequence[tuple[int, int]], start: int = 0) -> MemoryEvents:
    """Make a CPU's events of (address, bytes), one every 10 ns."""
    address, size = np.array(changes, np.int64).reshape(-1, 2).T
    count = len(size)
    zeros = np.zeros(count, np.int32)
    return MemoryEvents(
        time_ns=10 * np.arange(count, dtype=np.int64),
        bytes=size,
        address=address,
        allocated=start + np.cumsum(size),
        reserved=np.zeros(count, np.int64),
        device_type=zeros,
        device=zeros - 1,
        thread=zeros,
        failed=np.zeros(count, np.bool_),
    )


def use_of(path: Path) -> MemoryUse:
    """Read a file's memory."""
    return memory_use(read_trace(path, memory=True))


def only_device(path: Path) -> DeviceMemory:
    """Read the memory of a file with one device."""
    [device] = use_of(path).devices
    return device


def training_file(rank: int = 0, gpu: bool = True) -> KinetoFile:
    """Make a file of two steps of 100 µs, whose blocks are of every kind; sizes tell them apart.

    On a GPU 1,000 bytes are allocated before. A step: forward 10–30, backward 30–60, optimizer 80–90.
    """
    file, device = KinetoFile(rank, world_size=2), 0 if gpu else -1
    total = 1000 if gpu else 0

    def change(at: float, size: int, address: int, tid: int = 1) -> None:
        nonlocal total
        total += size
        file.memory(at, size, address, total, reserved=4096 if gpu else 0, tid=tid, device=device)

    for step, at in enumerate((0.0, 100.0)):
        file.label(f"ProfilerStep#{step}", at, at + 100)
        file.op("aten::linear", at + 10, at + 28).op("aten::mm", at + 12, at + 20)
        file.label("layers.0", at + 9, at + 29)
        if gpu:
            file.kernel("gemm", at + 20, at + 30, at + 15)
        if step:
            change(at + 5, -100, 1)  # zero_grad
        change(at + 13, 40, 2)  # activation
        change(at + 14, 8, 3)  # temporary
        change(at + 16, -8, 3)
        file.op("autograd::engine::evaluate_function: MmBackward0", at + 30, at + 60, tid=2)
        file.op("MmBackward0", at + 31, at + 58, tid=2)
        file.op("c10d::allreduce_", at + 50, at + 56, tid=2)
        if gpu:
            file.kernel("gemm_backward", at + 40, at + 60, at + 35, tid=2)
        change(at + 40, 100, 1, tid=2)  # gradient
        change(at + 45, -40, 2, tid=2)
        change(at + 52, 16, 4, tid=2)  # communication buffer
        file.label("Optimizer.step#AdamW.step", at + 80, at + 90)
        change(at + 75, -16, 4)
        if not step:
            change(at + 85, 200, 5)  # optimizer state
    if gpu:
        file.event("cuda_runtime", "cudaMalloc", 82, 84, correlation=900)
    return file


def memory_run(folder: Path, gpu: bool = True, ranks: int = 2) -> str:
    """Write a run of ranks of :func:`training_file`."""
    for rank in range(ranks):
        training_file(rank, gpu).write(folder / f"rank{rank}.json")
    return str(folder)

"""Simulated jobs with planted causes of delay, written as Kineto traces: one file per rank.

Each step loads data, runs the layers (an operator that launches a kernel, inside an annotation; an all-reduce after
every second layer), and synchronizes with the device at its end. Times are in µs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
_KERNEL_US, _HOST_US, _LAUNCH_US, _TRANSFER_US = 400.0, 60.0, 6.0, 100.0
LAYERS = 8


@dataclass(frozen=True)
class Plant:
    """Something that takes one rank longer."""

    rank: int
    kind: str
    """``allocator``, ``loader``, ``python``, ``pause`` (nothing recorded), ``operator`` or ``kernel``."""
    ms: float
    steps: Sequence[int] = (0, 1, 2, 3)
    layer: int = 3


@dataclass
class _Rank:
    """One rank's host time, device time and events."""

    number: int
    host: float
    device: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 0

    def add(self, category: str, name: str, start: float, end: float, **args: int) -> None:
        on_device = category == "kernel"
        place = {"pid": self.number if on_device else 100 + self.number, "tid": args.get("stream", 100 + self.number)}
        times = {"ts": round(start, 3), "dur": round(end - start, 3)}
        self.events.append({"ph": "X", "cat": category, "name": name, **place, **times, "args": args})

    def launch(self) -> float:
        """Call the runtime once; return when."""
        called = self.host
        self.host += _LAUNCH_US
        self.correlation += 1
        self.add("cuda_runtime", "cudaLaunchKernel", called, self.host, correlation=self.correlation)
        return called

    def kernel(self, name: str, start: float, end: float) -> None:
        args = {"stream": 7, "device": self.number, "correlation": self.correlation}
        self.add("kernel", name, start, end, **args)
        self.device = end


def planted_job(
    folder: Path,
    plants: Sequence[Plant] = (),
    *,
    ranks: int = 4,
    steps: int = 4,
    blocking: bool = True,
    kernel_us: float = _KERNEL_US,
    start_us: Mapping[int, float] | None = None,
    drift_ppm: Mapping[int, float] | None = None,
    seed: int = 1,
) -> Path:
    """Write a job's traces to *folder* and return it.

    Args:
        plants: what takes a rank longer.
        blocking: whether the host waits for its device at the end of each step.
        start_us: by rank, how much later it begins.
        drift_ppm: by rank, how fast its clock runs too fast.
    """
    noise = random.Random(seed)
    job = [_Rank(number, 1000.0 + (start_us or {}).get(number, 0.0)) for number in range(ranks)]
    for step in range(steps):
        begun = [rank.host for rank in job]
        for rank in job:
            _load(rank, [p for p in plants if p.rank == rank.number and step in p.steps and p.kind == "loader"])
        for layer in range(LAYERS):
            for rank in job:
                here = [p for p in plants if p.rank == rank.number and step in p.steps and p.layer == layer]
                _layer(rank, layer, {p.kind: 1000 * p.ms for p in here}, kernel_us, noise)
            if layer % 2:
                _all_reduce(job, noise)
        for rank, start in zip(job, begun, strict=True):
            if blocking:
                called, rank.host = rank.host, max(rank.host, rank.device) + 4
                rank.add("cuda_runtime", "cudaStreamSynchronize", called, rank.host - 1)
            rank.add("user_annotation", f"ProfilerStep#{step}", start, rank.host)
            rank.host += 10
    folder.mkdir(parents=True, exist_ok=True)
    for rank in job:
        _write(folder, rank, ranks, (drift_ppm or {}).get(rank.number, 0.0))
    return folder


def _load(rank: _Rank, plants: Sequence[Plant]) -> None:
    start = rank.host
    rank.host += 80 + sum(1000 * plant.ms for plant in plants)
    rank.add("user_annotation", _LOADER, start, rank.host)
    rank.host += 5


def _layer(rank: _Rank, layer: int, extra_us: Mapping[str, float], kernel_us: float, noise: random.Random) -> None:
    rank.host += extra_us.get("pause", 0.0)
    noted = rank.host
    rank.host += 2
    started = rank.host
    rank.host += 5
    if allocating := extra_us.get("allocator", 0.0):
        rank.add("cuda_runtime", "cudaMalloc", rank.host, rank.host + allocating)
        rank.host += allocating + 2
    rank.host += _HOST_US * noise.uniform(0.9, 1.1) + extra_us.get("operator", 0.0)
    called = rank.launch()
    name = "aten::linear" if layer % 2 else "aten::relu"
    rank.add("cpu_op", name, started, rank.host + 2)
    start = max(called + 8, rank.device)
    length = kernel_us * noise.uniform(0.98, 1.02) + extra_us.get("kernel", 0.0)
    rank.kernel("gemm" if layer % 2 else "relu", start, start + length)
    rank.host += 3 + extra_us.get("python", 0.0)
    rank.add("user_annotation", f"## layer {layer} ##", noted, rank.host + 1)
    rank.host += 3


def _all_reduce(job: Sequence[_Rank], noise: random.Random) -> None:
    begun = [max(rank.launch() + 8, rank.device) for rank in job]
    end = max(begun) + _TRANSFER_US
    for rank, start in zip(job, begun, strict=True):
        rank.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", start, end + noise.uniform(0, 4))


def _write(folder: Path, rank: _Rank, ranks: int, ppm: float) -> None:
    if ppm:
        for event in rank.events:
            event["ts"] = round(event["ts"] * (1 + ppm * 1e-6), 3)
    info = {"backend": "nccl", "rank": rank.number, "world_size": ranks}
    properties = [{"id": rank.number, "name": "Simulated GPU"}]
    content = {"deviceProperties": properties, "distributedInfo": info, "traceEvents": rank.events}
    (folder / f"rank{rank.number}.json").write_text(json.dumps(content))

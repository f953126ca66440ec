"""Files of steps on an H100 whose kernels have chosen lengths, operators and shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dptrace.analysis.compute_findings.context import ComputeContext
from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.host_calls import operator_calls
from tests.support.kineto_files import KinetoFile

H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "computeMajor": 9, "computeMinor": 0, "warpSize": 32}


def inputs(*dims: list[int], dtype: str = "c10::BFloat16") -> dict[str, Any]:
    """Return what an operator records of tensors of these sizes."""
    return {"Input Dims": list(dims), "Input type": [dtype] * len(dims), "Concrete Inputs": [""] * len(dims)}


class ComputeFile:
    """Place kernels one after the other on a stream, each launched by an operator of its own."""

    def __init__(self, rank: int = 0, world_size: int = 1, gpu: dict[str, Any] | None = None, step_us: float = 1000):
        self.file = KinetoFile(rank, world_size)
        self.file.head["deviceProperties"] = [gpu or H100]
        self.step_us, self.steps, self.now = step_us, 0, 0.0

    def step(self) -> ComputeFile:
        """Begin a step."""
        self.now = self.steps * self.step_us
        self.file.label(f"ProfilerStep#{self.steps}", self.now, self.now + self.step_us - 1)
        self.steps += 1
        self.host, self.now = self.now + 1, self.now + 100
        return self

    def kernel(self, operator: str, name: str, us: float, idle: float = 0, **args: Any) -> ComputeFile:
        """Add a kernel after the one before, and *idle* µs."""
        self.host += 3
        self.file.op(operator, self.host, self.host + 2, **args)
        self.now += idle
        self.file.kernel(name, self.now, self.now + us, self.host + 0.5)
        self.now += us
        return self

    def copy(self, name: str, us: float) -> ComputeFile:
        """Add a copy after the kernel before."""
        self.host += 3
        self.file.kernel(name, self.now, self.now + us, self.host, category="gpu_memcpy")
        self.now += us
        return self

    def communication(self, start: float, end: float) -> ComputeFile:
        """Add an all-reduce on a stream of its own."""
        self.host += 3
        self.file.kernel("ncclDevKernel_AllReduce_Sum_f32", start, end, self.host, stream=20)
        return self


def context_of(folder: Path, *files: ComputeFile) -> ComputeContext:
    """Read files as the ranks of one job."""
    traces = [read_trace(one.file.write(folder / f"rank{n}.json"), operators=True) for n, one in enumerate(files)]
    timelines = tuple(timeline for trace in traces for timeline in build_timelines(trace, trace.rank or 0))
    return ComputeContext(timelines, tuple(operator_calls(trace) for trace in traces))

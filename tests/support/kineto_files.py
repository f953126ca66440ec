"""Kineto files written for tests of the reader and all that uses it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

BASE_NS = 1_700_000_000_000_000_000


class KinetoFile:
    """Collect events in µs, then :meth:`write` them in Kineto's layout."""

    def __init__(self, rank: int | None = 0, world_size: int = 1, backend: str = "nccl", base: bool = True) -> None:
        self.events: list[dict[str, Any]] = []
        self.head: dict[str, Any] = {"schemaVersion": 1}
        if rank is not None:
            self.head["distributedInfo"] = {"backend": backend, "rank": rank, "world_size": world_size}
        self.tail: dict[str, Any] = {"baseTimeNanoseconds": BASE_NS} if base else {}
        self.correlation = 100

    def event(
        self, category: str, name: str, start: float, end: float, tid: int | str = 1, **args: object
    ) -> KinetoFile:
        event = {"ph": "X", "cat": category, "name": name, "pid": 10, "tid": tid, "ts": start}
        self.events.append({**event, "dur": round(end - start, 3), "args": args})
        return self

    def op(self, name: str, start: float, end: float, tid: int = 1, **args: Any) -> KinetoFile:
        return self.event("cpu_op", name, start, end, tid, **args)

    def label(self, name: str, start: float, end: float, tid: int = 1, **args: object) -> KinetoFile:
        return self.event("user_annotation", name, start, end, tid, **args)

    def kernel(
        self,
        name: str,
        start: float,
        end: float,
        launch: float | None,
        tid: int = 1,
        device: int = 0,
        stream: int = 7,
        category: str = "kernel",
        **args: object,
    ) -> KinetoFile:
        """Add a kernel and, at *launch* on thread *tid*, the call that launched it, if any."""
        self.correlation += 1
        if launch is not None:
            self.event("cuda_runtime", "cudaLaunchKernel", launch, launch + 1, tid, correlation=self.correlation)
        return self.event(
            category, name, start, end, tid=stream, device=device, stream=stream, correlation=self.correlation, **args
        )

    def memory(
        self,
        at: float,
        size: int,
        address: int,
        allocated: int,
        reserved: int = 0,
        tid: int = 1,
        device: int = -1,
        name: str = "[memory]",
    ) -> KinetoFile:
        """Add an allocation, or with a size below 0 a free; *device* is a GPU's number, or -1 for the CPU."""
        args = {"Total Reserved": reserved, "Total Allocated": allocated, "Bytes": size, "Addr": address}
        args |= {"Device Id": device, "Device Type": int(device >= 0), "Ev Idx": len(self.events)}
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": name, "pid": 10, "tid": tid, "ts": at}
        self.events.append({**event, "args": args})
        return self

    def text(self) -> str:
        body = json.dumps(self.events, indent=2)
        head = json.dumps(self.head)[:-1]
        tail = "".join(f', "{key}": {json.dumps(value)}' for key, value in self.tail.items())
        return f'{head}, "traceEvents": {body}{tail}}}'

    def write(self, path: Path) -> Path:
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


def training_step(file: KinetoFile, step: int, at: float) -> KinetoFile:
    """Add a step of 100 µs: forward 10–30, backward 30–60 (autograd's thread), all-reduce 50–75, optimizer 80–90."""
    file.label(f"ProfilerStep#{step}", at, at + 100)
    file.op("aten::linear", at + 5, at + 9).kernel("gemm", at + 10, at + 30, at + 6)
    wrapper = "autograd::engine::evaluate_function: AddmmBackward0"
    file.op(wrapper, at + 20, at + 40, tid=2).kernel("gemm_backward", at + 30, at + 60, at + 25, tid=2)
    file.op("nccl:all_reduce", at + 36, at + 38, tid=2)
    comm: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": 1000,
        "Out msg nelems": 1000,
        "dtype": "Float",
    }
    file.kernel("ncclDevKernel_AllReduce_Sum_f32", at + 50, at + 75, at + 37, tid=2, stream=20, **comm)
    file.label("Optimizer.step#SGD.step", at + 60, at + 90)
    return file.kernel("multi_tensor_apply", at + 80, at + 90, at + 62)

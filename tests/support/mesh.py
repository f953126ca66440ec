"""Traces of a simulated mesh: tensor-parallel groups of ranks next to each other, data parallelism between them.

The truth is known: what a step takes with the slow ranks as they are, and with each of them as fast as the others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LAUNCH, _KERNEL, _TP, _DP = 6.0, 100.0, 40.0, 120.0
"""µs between launches, of a kernel, and of the transfers of both groups."""


@dataclass
class Mesh:
    """Ranks of *tp* × *dp*, as many of them on a node as *node*."""

    tp: int = 4
    dp: int = 2
    node: int = 4
    steps: int = 3
    layers: int = 8
    slow: Mapping[int, float] = field(default_factory=dict)
    """By which factor kernels of a rank take longer."""
    late_us: Mapping[int, float] = field(default_factory=dict)
    """How much longer the host of a rank waits for data, in µs a step."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.tp * self.dp

    def step_us(self) -> float:
        """Return how long a step takes, from the end of one to the end of the next."""
        marks = self.simulate()[1]
        return float(np.diff(marks.max(axis=1))[1:].mean())

    def simulate(self) -> tuple[list[tuple[Any, ...]], NDArray[np.float64]]:
        """Return what each rank does: kind, name, launches, starts, ends; and when its steps begin: steps × ranks."""
        ranks, factor = self.ranks, np.ones(self.ranks)
        for rank, more in self.slow.items():
            factor[rank] = more
        data = np.full(ranks, 50.0)
        for rank, more in self.late_us.items():
            data[rank] += more
        random = np.random.default_rng(1)
        host, device, other = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
        items, marks = list[tuple[Any, ...]](), [host.copy()]

        def collective(axis: int, name: str, takes: float, lane: NDArray[np.float64]) -> NDArray[np.float64]:
            nonlocal host
            host = host + _LAUNCH
            start = np.maximum(np.maximum(device, lane) + 2, host + 5)
            end = start.reshape(self.dp, self.tp).max(axis=axis, keepdims=True) + takes * random.uniform(0.99, 1.01)
            end = np.broadcast_to(end, (self.dp, self.tp)).reshape(ranks).copy()
            items.append(("tp" if axis else "dp", name, host.copy(), start, end))
            return end

        for _ in range(self.steps + 1):
            items.append(("data", "", host.copy(), host.copy(), host + data))
            host = host + data + 5
            for _ in range(self.layers):
                for number in range(2):
                    host = host + _LAUNCH
                    start = np.maximum(device + 1, host + 5)
                    device = start + _KERNEL * factor * random.uniform(0.99, 1.01, ranks)
                    items.append(("kernel", f"gemm_{number}", host.copy(), start, device.copy()))
                device = collective(1, "allreduce", _TP, device)
                other = collective(0, "_reduce_scatter_base", _DP, other)
            device = other = collective(0, "_allgather_base", _DP, np.maximum(device, other))
            items.append(("sync", "", host + 5, host + 5, np.maximum(device, other) + 8))
            host = np.maximum(device, other) + 10
            marks.append(host.copy())
        return items, np.array(marks)

    def write(
        self, folder: Path, missing: Collection[int] = (), cut: Collection[int] = (), unmarked: Collection[int] = ()
    ) -> Path:
        """Write a trace for each rank into *folder*, with the names of hosts and files of torch's handler."""
        folder.mkdir(exist_ok=True)
        items, marks = self.simulate()
        for rank in set(range(self.ranks)) - set(missing):
            text = json.dumps(self._trace(rank, items, marks[:, rank], rank in unmarked))
            path = folder / f"node-{rank // self.node:03d}_{4000 + rank}.rank{rank}.pt.trace.json"
            path.write_text(text[: int(0.85 * len(text))] if rank in cut else text)
        return folder

    def _groups(self, rank: int) -> dict[str, tuple[str, list[int]]]:
        """Return name and ranks of the groups of a rank."""
        tp, dp = rank % self.tp, rank // self.tp
        return {
            "tp": (str(1 + dp), list(range(dp * self.tp, (dp + 1) * self.tp))),
            "dp": (str(1 + self.dp + tp), list(range(tp, self.ranks, self.tp))),
        }

    def _trace(self, rank: int, items: list[tuple[Any, ...]], marks: NDArray[np.float64], unmarked: bool) -> Any:
        groups, events = self._groups(rank), list[dict[str, Any]]()
        since = 1e9

        def event(cat: str, name: str, tid: int, start: float, end: float, **args: object) -> None:
            pid = 4000 + rank if cat not in ("kernel",) else rank % self.node
            about = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "args": args}
            events.append({**about, "ts": round(since + start, 3), "dur": round(end - start, 3)})

        for number, (start, end) in enumerate(pairwise(marks)):
            if not unmarked:
                event("user_annotation", f"ProfilerStep#{number}", 1, start, end - 1)
        for number, (kind, name, launches, starts, ends) in enumerate(items):
            launch, start, end, id = launches[rank], starts[rank], ends[rank], 10 + number
            if kind == "data":
                data = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
                event("user_annotation", data, 1, start, end)
            elif kind == "sync":
                event("cuda_runtime", "cudaDeviceSynchronize", 1, start, end, correlation=id)
            elif kind == "kernel":
                event("cpu_op", "aten::mm", 1, launch - 1, launch + 4)
                event("cuda_runtime", "cudaLaunchKernel", 1, launch, launch + 3, correlation=id)
                event("kernel", name, 7, start, end, correlation=id, device=rank % self.node, stream=7)
            else:
                group, ranks = groups[kind]
                stream = 20 if kind == "tp" else 40
                event("cuda_runtime", "cudaLaunchKernelExC", 1, launch, launch + 3, correlation=id)
                args: dict[str, object] = {"Collective name": name, "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20}
                args |= {"Group size": len(ranks), "dtype": "BFloat16", "Process Group Name": group}
                args |= {"Process Group Description": f"mesh_{kind}", "Process Group Ranks": str(ranks)}
                called = {"allreduce": "AllReduce_Sum_bf16_RING_LL", "_allgather_base": "AllGather_RING_LL"}
                kernel = called.get(name, "ReduceScatter_Sum_bf16_RING_LL")
                where = {"correlation": id, "device": rank % self.node, "stream": stream}
                event("kernel", f"ncclDevKernel_{kernel}(args)", stream, start, end, **where, **args)
        return {
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": self.ranks},
            "host_name": f"node-{rank // self.node:03d}",
            "baseTimeNanoseconds": 1759300074000000000,
            "traceEvents": events,
        }

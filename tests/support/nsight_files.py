"""Exports of Nsight Systems as tests make them: a few processes, GPUs and steps, in the schemas of several releases."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EPOCH = 1_770_000_000_000_000_000
NCCL_CALL, NCCL_INIT = 16777223, 16777218
"""Ids of the schemas of NCCL's payloads."""

COLUMNS = {
    "StringIds": ["id", "value"],
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        *("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName", "shortName"),
        *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [
        *("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "copyKind", "srcKind", "dstKind"),
        "bytes",
    ],
    "CUPTI_ACTIVITY_KIND_MEMSET": [
        *("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "memKind", "bytes")
    ],
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [
        *("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphId")
    ],
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
        *("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "syncType", "eventSyncId")
    ],
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": ["streamId", "correlationId", "globalPid", "eventSyncId"],
    "CUPTI_ACTIVITY_KIND_RUNTIME": ["start", "end", "globalTid", "correlationId", "nameId"],
    "NVTX_EVENTS": ["start", "end", "eventType", "globalTid", "text", "textId", "jsonText", "binaryData"],
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": ["schemaId", "name", "offset"],
    "ThreadNames": ["nameId", "globalTid"],
    "META_DATA_CAPTURE": ["name", "value"],
    "META_DATA_EXPORT": ["name", "value"],
    "TARGET_INFO_SESSION_START_TIME": ["utcEpochNs"],
    "TARGET_INFO_SYSTEM_ENV": ["name", "value"],
    "TARGET_INFO_GPU": ["id", "name", "smCount", "totalMemory"],
    "TARGET_INFO_CUDA_DEVICE": ["gpuId", "cudaId", "pid"],
}


def process_id(pid: int) -> int:
    """Return a ``globalPid``."""
    return 1 << 56 | pid << 24


@dataclass
class NsightFile:
    """An export, filled event by event; times in ns."""

    rows: dict[str, list[Sequence[Any]]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    texts: dict[str, int] = field(default_factory=dict)
    correlation: int = 0

    def text(self, value: str) -> int:
        """Return the id of a text."""
        return self.texts.setdefault(value, 1000 + len(self.texts))

    def call(self, pid: int, tid: int, start: int, end: int, name: str = "cudaLaunchKernel_v7000") -> int:
        """Add a runtime call; return its correlation."""
        self.correlation += 1
        row = (start, end, process_id(pid) | tid, self.correlation, self.text(name))
        self.rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(row)
        return self.correlation

    def kernel(self, pid: int, tid: int, called: int, start: int, end: int, name: str, **at: int) -> None:
        """Add a kernel and the call that launched it, of 2 µs."""
        correlation = self.call(pid, tid, called, called + 2_000)
        device, stream = at.get("device", 0), at.get("stream", 7)
        names = (self.text(f"void {name}<float>(int)"), self.text(name))
        row = (start, end, device, stream, correlation, process_id(pid), *names, 8, 1, 1, 256, 1, 1)
        self.rows["CUPTI_ACTIVITY_KIND_KERNEL"].append(row)

    def copy(self, pid: int, tid: int, called: int, start: int, end: int, size: int = 4096, device: int = 0) -> None:
        """Add a copy from pageable memory."""
        correlation = self.call(pid, tid, called, called + 2_000, "cudaMemcpyAsync_v3020")
        row = (start, end, device, 7, correlation, process_id(pid), 1, 0, 2, size)
        self.rows["CUPTI_ACTIVITY_KIND_MEMCPY"].append(row)

    def range(
        self, pid: int, tid: int, start: int, end: int | None, name: str, payload: bytes | str | None = None
    ) -> None:
        """Add a range; one with a payload, or of an odd thread, has a registered text."""
        registered = payload is not None or tid % 2
        text = (None, self.text(name)) if registered else (name, None)
        data = (payload, None) if isinstance(payload, str) else (None, payload)
        self.rows["NVTX_EVENTS"].append((start, end, 59, process_id(pid) | tid, *text, *data))

    def write(self, path: Path, without: Iterable[str] = ()) -> Path:
        """Write the file; *without* are tables, and columns as TABLE.COLUMN, that it lacks; empty tables, too."""
        self.rows["StringIds"] = [(number, text) for text, number in self.texts.items()]
        left_out = set(without)
        with sqlite3.connect(path) as database:
            for table, columns in COLUMNS.items():
                kept = [i for i, name in enumerate(columns) if f"{table}.{name}" not in left_out]
                if table in left_out or not kept or not self.rows[table]:
                    continue
                declared = ", ".join(f'"{columns[i]}"' for i in kept)
                database.execute(f"CREATE TABLE {table} ({declared})")
                marks = ", ".join("?" * len(kept))
                rows = ([row[i] for i in kept] for row in self.rows[table])
                database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        database.close()
        return path


def nccl_payload(schema: int, *fields: int) -> bytes:
    """Return a payload: a communicator's id, then bytes of a message, or ranks, rank and device."""
    body = struct.pack("<QQ" if schema == NCCL_CALL else "<QIII", *fields)
    return struct.pack("<QQQQ", 1, schema, len(body), 32) + body


STEP = 1_000_000
"""ns of a step in :func:`training`."""
PLANTED = {"forward_ns": 200_000, "backward_ns": 300_000, "optimizer_ns": 100_000, "exposed_comm_ns": 50_000}
"""The split of each step of its rank 0; the rest but 10 µs of a copy is idle."""


def training(
    ranks: int = 2, steps: int = 4, operators: bool = True, ranges: bool = True, late: int = 10_000, bytes_: bool = True
) -> NsightFile:
    """Return a training: a process for each GPU, forward, backward on autograd's thread with an all-reduce, optimizer.

    Args:
        operators: mark torch's operators and nodes, as emit_nvtx does.
        ranges: mark each step by a range.
        late: how much later than rank 0 the others begin their all-reduce; all end it together.
        bytes_: write payloads of NCCL's calls.
    """
    file = NsightFile()
    file.rows["TARGET_INFO_SESSION_START_TIME"].append((EPOCH,))
    file.rows["TARGET_INFO_SYSTEM_ENV"].append(("Hostname", "node0"))
    file.rows["META_DATA_EXPORT"].append(("EXPORT_SCHEMA_VERSION", "3.25.0"))
    fields = [("NCCL communicator ID", None), ("Message size [bytes]", 8)]
    file.rows["NVTX_PAYLOAD_SCHEMA_ENTRIES"] += [(NCCL_CALL, name, offset) for name, offset in fields]
    fields = [("NCCL communicator ID", None), ("No. of ranks", 8), ("Rank", 12), ("CUDA device", 16)]
    file.rows["NVTX_PAYLOAD_SCHEMA_ENTRIES"] += [(NCCL_INIT, name, offset) for name, offset in fields]
    for rank in range(ranks):
        pid, main, engine = 100 + rank, 1, 2
        file.rows["TARGET_INFO_GPU"].append((rank, "NVIDIA H100", 132, 80 << 30))
        file.rows["TARGET_INFO_CUDA_DEVICE"].append((rank, rank, pid))
        file.rows["ThreadNames"] += [(file.text("pt_autograd_0"), process_id(pid) | engine)]
        for step in range(steps):
            _step(
                file, pid, rank, STEP * (step + 1), step, (main, engine), (operators, ranges, bytes_), late * (rank > 0)
            )
    return file


def _step(
    file: NsightFile,
    pid: int,
    device: int,
    at: int,
    step: int,
    threads: tuple[int, int],
    marks: tuple[bool, bool, bool],
    late: int,
) -> None:
    (main, engine), (operators, ranges, bytes_) = threads, marks
    if ranges:
        file.range(pid, main, at, at + 900_000, f"iteration {step}")
    file.copy(pid, main, at + 1_000, at + 10_000, at + 20_000, device=device)
    for i in range(2):
        begin = at + 20_000 + 50_000 * i
        if operators:
            text = f"aten::mm, seq = {2 * step + i}, op_id = {10 * step + i}, sizes = [[8, 8], [8, 4]]"
            file.range(pid, main, begin, begin + 10_000, text)
        file.kernel(
            pid, main, begin + 1_000, at + 30_000 + 100_000 * i, at + 130_000 + 100_000 * i, "gemm", device=device
        )
    for i in range(3):
        begin = at + 230_000 + 100_000 * i
        if operators:
            node = f"autograd::engine::evaluate_function: MmBackward0, seq = {2 * step}, op_id = {10 * step + 5 + i}"
            file.range(pid, engine, begin, begin + 20_000, node)
        file.kernel(pid, engine, begin + 1_000, begin + 10_000, begin + 110_000, "gemm_backward", device=device)
    called = at + 500_000
    payload = nccl_payload(NCCL_CALL, 0xABC, 1 << 20) if bytes_ else None
    file.range(pid, engine, called - 1_000, called + 9_000, "ncclAllReduce", payload)
    start, name = at + 540_000 + late, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    file.kernel(pid, engine, called, start, at + 590_000, name, device=device, stream=20)
    begin = at + 600_000
    if operators:
        file.range(pid, main, begin, begin + 50_000, f"Optimizer.step#SGD.step, op_id = {10 * step + 9}")
    file.kernel(pid, main, begin + 1_000, at + 650_000, at + 750_000, "multi_tensor_apply", device=device)
    file.call(pid, main, at + 760_000, at + 800_000, "cudaDeviceSynchronize_v3020")

"""Run folders as the machines of one job leave them when they share no folder."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from dptrace.record.run_folder.manifest import launch_metadata, write_manifest

__all__ = ["write_part"]


def write_part(folder: Path, ranks: range, world_size: int = 4, **changes: Any) -> Path:
    """Write a run folder with some ranks of a job, whose losses are their numbers.

    Args:
        changes: other values for keys of run.json.
    """
    folder.mkdir(parents=True)
    for rank in ranks:
        name = f"rank{rank}.pt.trace.json.gz"
        (folder / name).write_bytes(gzip.compress(f"trace of rank {rank}".encode(), mtime=0))
        piece = {
            "rank": rank,
            "node": rank // 2,
            "local_rank": rank % 2,
            "host": f"host{rank // 2}",
            "device": "CPU",
            "threads": 1,
            "file": name,
            "recorded_steps": 2,
            "unprofiled_ns": [100],
            "profiled_ns": [100 + rank],
            "overhead_windows": [],
            "memory": None,
            "flops": None,
            "model": "small",
            "parameters": 10,
            "options": {"lr": 0.1},
            "ddp": None,
            "notes": [],
            "schedule": {"wait": 2, "warmup": 2, "steps": 2},
            "world_size": world_size,
            "backend": "gloo",
            "versions": {},
            "losses": [float(rank), 1.0],
        }
        (folder / f"rank{rank}.piece.json").write_text(json.dumps(piece))
    command = ["dptrace", "record", "--mode", "ddp", "--nnodes", "2", "--node-rank", str(ranks[0] // 2)]
    write_manifest(folder, launch_metadata(command, "ddp", None, None) | {"nnodes": 2} | changes)
    return folder

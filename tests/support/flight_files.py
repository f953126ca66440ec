"""Write dumps as torch's flight recorder does for NCCL, by FlightRecorderDetail.hpp of torch 2.13 (version 2.10)."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

WORLD = ("0", "default_pg")
Call = dict[str, Any]


def call(operator: str, number: int, state: str = "completed", group: tuple[str, str] = WORLD, **more: Any) -> Call:
    """Return an entry, with what *more* says: sizes of the input and output, their dtype, whether it is p2p."""
    sizes, out, dtype = more.get("sizes", [[8]]), more.get("out", more.get("sizes", [[8]])), more.get("dtype", "Float")
    frames = [
        {"name": "all_reduce", "filename": "/venv/lib/python3.12/site-packages/torch/distributed/c10d.py", "line": 9},
        {"name": "<module>", "filename": more.get("file", "/home/me/train.py"), "line": 30 + number},
    ]
    return {
        "frames": frames,
        "pg_id": int(group[0]) if group[0].isdigit() else 9,
        "process_group": group,
        "collective_seq_id": 0 if more.get("is_p2p") else number,
        "p2p_seq_id": number if more.get("is_p2p") else 0,
        "profiling_name": f"nccl:{operator}",
        "input_sizes": sizes,
        "input_dtypes": [dtype for _ in sizes],
        "output_sizes": out,
        "output_dtypes": [dtype for _ in out],
        "state": state,
        "retired": state == "completed",
        "is_p2p": bool(more.get("is_p2p")),
        "time_created_ns": 1_000_000 * number,
    }


def write(
    folder: Path,
    ranks: dict[int, list[Call]],
    groups: dict[tuple[str, str], list[int]] | None = None,
    status: dict[int, dict[str, tuple[int, int]]] | None = None,
    first: int = 0,
) -> Path:
    """Write the dumps of ranks, pickles for even ranks and JSON, which has no stacks, for odd ones.

    Args:
        status: by rank and id of a group, the numbers of the last collectives that it has enqueued and completed.
        first: the number of the first entry; those before it are overwritten.
    """
    folder.mkdir(exist_ok=True)
    for rank, calls in ranks.items():
        entries = [{"record_id": order, **entry} for order, entry in enumerate(calls, first)]
        config = {
            name: {"name": name, "desc": about, "ranks": str(members)}
            for (name, about), members in (groups or {WORLD: sorted(ranks)}).items()
            if rank in members
        }
        as_read = str if rank % 2 else int  # JSON has these numbers as text
        counts = {
            name: {
                "last_enqueued_collective": as_read(enqueued),
                "last_started_collective": as_read(-1),
                "last_completed_collective": as_read(completed or -1),
            }
            for name, (enqueued, completed) in (status or {}).get(rank, {}).items()
        }
        content = {"version": "2.10", "pg_config": config, "pg_status": counts, "entries": entries}
        if rank % 2:
            for entry in entries:
                del entry["frames"]
            (folder / f"rank_{rank}.json").write_text(json.dumps(content))
        else:
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    return folder

"""A memory snapshot as ``torch.cuda.memory._snapshot()`` returns it, as plain data."""

from __future__ import annotations

from typing import Any

__all__ = ["SNAPSHOT"]

_OWN = {"filename": "train.py", "name": "forward", "line": 12}
_TORCH = {"filename": "/site-packages/torch/nn/modules/linear.py", "name": "forward", "line": 125}


def _block(size: int, state: str, requested: int = 0, frames: list[Any] | None = None) -> dict[str, Any]:
    return {"size": size, "state": state, "requested_size": requested, "address": 1, "frames": frames or []}


SNAPSHOT: dict[str, Any] = {
    "segments": [
        {
            "device": 0,
            "address": 1,
            "total_size": 2048,
            "stream": 0,
            "segment_type": "small",
            "allocated_size": 1024,
            "active_size": 1536,
            "blocks": [
                _block(1024, "active_allocated", 1000, [_TORCH, _OWN]),
                _block(512, "active_awaiting_free"),
                _block(512, "inactive"),
            ],
        },
        {"device": 0, "total_size": 4096, "stream": 0, "blocks": [_block(4096, "inactive")]},
        {"device": 1, "total_size": 512, "stream": 0, "blocks": [_block(512, "active_allocated", 512)]},
    ],
    "device_traces": [
        [
            {"action": "segment_alloc", "addr": 1, "size": 4096, "stream": 0, "frames": []},
            {"action": "alloc", "addr": 5, "size": 3000, "stream": 0, "frames": [_OWN], "time_us": 1},
            {"action": "oom", "size": 1 << 40, "stream": 0, "device_free": 0, "frames": []},
            {"action": "free_requested", "addr": 5, "size": 3000, "stream": 0, "frames": []},
            {"action": "free_completed", "addr": 5, "size": 3000, "stream": 0, "frames": []},
            {"action": "alloc", "addr": 1, "size": 1024, "stream": 0, "frames": []},
            {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": []},
        ],
        [],
    ],
}

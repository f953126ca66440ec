"""What the kinds of pieces of a critical path are called."""

from __future__ import annotations

__all__ = ["PATH_KINDS"]

PATH_KINDS = {
    "compute": "compute",
    "memory": "copies and sets",
    "transfer": "collectives, once the last rank has come",
    "host": "host: calls and pauses between them",
    "launch": "latency of launches",
    "stream": "gaps between kernels of a stream",
    "wait": "returns of waits",
    "absent_ranks": "ranks that were not recorded",
    "unexplained": "unexplained",
}
"""By the names in :data:`dptrace.replay.path.LINK_KINDS`."""

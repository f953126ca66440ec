"""Labels of the parts of a step and of the causes of idle time, for tables and charts."""

from __future__ import annotations

from collections.abc import Sequence

from dptrace.analysis.per_gpu.split import Part

__all__ = ["CAUSE_LABELS", "EXPOSED_LABELS", "OVERLAPPED_LABEL", "PART_LABELS", "waiting_label"]

PART_LABELS: dict[Part, str] = {
    Part.FORWARD: "Forward",
    Part.BACKWARD: "Backward",
    Part.OPTIMIZER: "Optimizer",
    Part.OTHER: "Other compute",
    Part.EXPOSED_COMM: "Exposed communication",
    Part.EXPOSED_MEMORY: "Exposed memory",
    Part.IDLE: "Idle",
}
OVERLAPPED_LABEL = "Overlapped communication"

EXPOSED_LABELS: dict[str, str] = {
    "exposed_wait_ns": "Waiting for other ranks",
    "exposed_transfer_ns": "Exposed transfer",
    "exposed_unmatched_ns": "Exposed in incomplete collectives",
    "exposed_comm_ns": PART_LABELS[Part.EXPOSED_COMM],
}
"""Parts of exposed communication by the names in ``exposed_wait.exposed_parts``."""

CAUSE_LABELS: dict[str, str] = {
    "data_loading_ns": "Idle: data loading",
    "allocator_ns": "Idle: allocator",
    "synchronizing_ns": "Idle: synchronizing",
    "host_bound_ns": "Idle: host-bound",
    "launch_latency_ns": "Idle: launch latency",
    "waiting_ns": "Idle: waiting",
    "bubble_ns": "Idle: pipeline bubble",
}
"""By the names in ``idle.CAUSES``."""


def waiting_label(rank: int | Sequence[int] | None) -> str:
    """Return the label of waiting for a rank, or a few; None and no rank stand for many or unknown ranks.

    >>> waiting_label(2), waiting_label((2, 1, 3)), waiting_label(())
    ('Waiting for rank 2', 'Waiting for ranks 2, 1 and 3', 'Waiting for other ranks')
    """
    ranks = () if rank is None else [one for one in ([rank] if isinstance(rank, int) else rank) if one >= 0]
    if len(ranks) < 2:
        return f"Waiting for rank {ranks[0]}" if ranks else EXPOSED_LABELS["exposed_wait_ns"]
    return f"Waiting for ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"

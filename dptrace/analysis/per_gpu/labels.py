"""Labels of the parts of a step and of the causes of idle time, for tables and charts."""

from __future__ import annotations

from dptrace.analysis.per_gpu.split import Part

__all__ = ["CAUSE_LABELS", "OVERLAPPED_LABEL", "PART_LABELS"]

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

"""What the pieces of a critical path, and its step, are called."""

from __future__ import annotations

from dptrace.viewers.base.format import step_label

__all__ = ["PATH_KINDS", "step_words"]

PATH_KINDS = {
    "compute": "compute",
    "memory": "copies and sets",
    "transfer": "collectives, once the last rank has arrived",
    "host": "host: calls and pauses between them",
    "launch": "latency of launches",
    "stream": "gaps between kernels of a stream",
    "wait": "returns of waits",
    "absent_ranks": "ranks that were not recorded",
    "unexplained": "unexplained",
}
"""By the names in :data:`dptrace.replay.paths.LINK_KINDS`."""


def step_words(name: str) -> str:
    """Return what a sentence calls a step.

    >>> step_words("ProfilerStep#4"), step_words("whole trace")
    ('step 4', 'the whole trace')
    """
    label = step_label(name)
    return f"step {label}" if label[-1:].isdigit() else f"the {label}"

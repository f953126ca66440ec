"""An empty result for a profiler of the script that could not run next to dptrace's, so that its methods still work."""

from __future__ import annotations

from typing import Any

from torch.autograd.profiler_util import EventList

__all__ = ["EmptyResult", "fill_with_nothing"]


class EmptyResult:
    """Stands for torch's ``_ProfilerResult`` of a session in which nothing happened."""

    def trace_start_ns(self) -> int:
        """Return the start of the session."""
        return 0

    def events(self) -> list[Any]:
        """Return no events."""
        return []

    def experimental_event_tree(self) -> list[Any]:
        """Return no events."""
        return []

    def trace_activities(self) -> list[Any]:
        """Return no events."""
        return []

    def save(self, path: str) -> None:
        """Write a trace without events."""
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"schemaVersion": 1, "traceEvents": []}\n')


def fill_with_nothing(profiler: Any) -> None:
    """Set the result of an empty session on a ``torch.autograd.profiler.profile`` that was not started."""
    profiler.kineto_results = EmptyResult()
    if isinstance(getattr(type(profiler), "function_events", None), property):
        profiler._function_events = None  # torch derives the events from the result when they are asked for
    else:
        profiler.function_events = EventList([], use_device=None)
        profiler.function_events._build_tree()

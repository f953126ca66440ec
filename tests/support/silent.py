"""A reporter of a launch that keeps what it learns."""

from __future__ import annotations

from typing import Any

from dptrace.record.launch.monitor import Reporter


class SilentReporter(Reporter):
    """Keeps what a launch reports, and prints nothing."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, bool]] = []
        self.overheads: list[float | None] = []
        self.messages: list[str] = []
        self.states: list[str] = []

    def progress(self, done: int, total: int) -> None:
        """Ignore the progress."""

    def recorded(self, info: dict[str, Any], goes_on: bool) -> None:
        """Keep the folder of a run."""
        self.runs.append((info["folder"], goes_on))

    def measured(self, info: dict[str, Any]) -> None:
        """Keep the overhead of a run."""
        self.overheads.append(info["profiler_overhead"])

    def message(self, text: str) -> None:
        """Keep a sentence."""
        self.messages.append(text)

    def error(self, text: str) -> None:
        """Keep an error."""
        self.messages.append(text)

    def state(self, text: str) -> None:
        """Keep what the job does."""
        self.states.append(text)

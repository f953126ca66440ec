"""Catch the signals that ask a launcher to end, and act on them where that is safe.

A handler that raised would do so anywhere: inside an import that swallows it, or inside ``Popen.poll``, whose lock it
would leave locked. So the handler only takes note, and loops look.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

__all__ = ["Interrupted", "Signals", "catch_signals"]


class Interrupted(BaseException):
    """A signal stopped the launcher."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        self.runs: list[str] = []
        """The complete runs that are kept."""
        self.kept_failed: Path | None = None
        """An incomplete run that is kept."""
        self.kept_ranks: list[int] = []
        """The ranks whose traces it has."""
        self.lost = ""
        """What is not kept although steps were recorded, and why."""


class Signals:
    """The signals that have arrived."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def check(self) -> None:
        """Raise Interrupted if a signal has arrived."""
        if self.numbers:
            raise Interrupted(self.numbers[0])

    @property
    def again(self) -> bool:
        """Whether the user has asked a second time."""
        return len(self.numbers) > 1


_caught: Signals | None = None


@contextmanager
def catch_signals() -> Iterator[Signals]:
    """Take note of SIGINT, SIGTERM and SIGHUP in the block; a block inside another one shares what it has noted."""
    global _caught
    if _caught is not None or threading.current_thread() is not threading.main_thread():
        yield _caught or Signals()
        return
    caught = _caught = Signals()

    def note(number: int, frame: FrameType | None) -> None:
        caught.numbers.append(number)

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield caught
    finally:
        _caught = None
        for number, handler in before.items():
            signal.signal(number, handler)

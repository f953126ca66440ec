"""What a command reads from a rank's file beyond the figures: host calls, operators' shapes, memory events."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Generic, Protocol, TypeVar

import msgspec

from dptrace.readers.sources.source import Source

__all__ = ["Rereader", "Result", "SecondPass"]

Result = TypeVar("Result", bound=Sized)


class SecondPass(msgspec.Struct, Generic[Result], frozen=True):
    """A second reading of a rank's file, for what figures do not need."""

    name: str
    """Names it in the cache."""
    type: type[Result]
    """The class of the result; its length is its number of events."""
    read: Callable[[Source, Sequence[str]], Result]
    """Reads a file, with the patterns of further communication kernels (``--comm-pattern``).

    Raises:
        TraceError: what is wrong with the file.
    """
    most_cached: int = 4_000_000
    """Events of a result that is cached, so that a few files do not fill the cache."""


class Rereader(Protocol):
    """Reads the files of a run again, one rank at a time."""

    def __call__(self, path: str, reading: SecondPass[Result]) -> Result | None:
        """Return what the file at *path* (``Timeline.path``) holds; None where it can't be read a second time."""

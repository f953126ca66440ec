"""What can go wrong, as a tree.

DptraceError            bad input: the command line prints the message and exits with 1
├── TraceError          a file that is not, or not wholly, a trace
├── RecordingError      a run that could not be recorded to its end
└── MissingExtraError   an optional package that is not installed
UsageError              wrong use: exits with 2
"""

from __future__ import annotations

__all__ = ["DptraceError", "MissingExtraError", "RecordingError", "TraceError", "UsageError"]


class DptraceError(Exception):
    """A mistake that the user can mend: the message names the file, what is wrong, and what to do."""

    exit_code = 1


class TraceError(DptraceError):
    """A file that cannot be read as a trace of one rank."""


class RecordingError(DptraceError):
    """A recording that did not come to its end."""


class MissingExtraError(DptraceError):
    """An optional package is missing; the message gives the pip command that brings it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what}, which is not installed. Install it with: pip install 'dptrace[{extra}]'")
        self.what, self.extra = what, extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return MissingExtraError, (self.what, self.extra)  # so that it comes back from another process


class UsageError(DptraceError):
    """Arguments that make no sense together."""

    exit_code = 2

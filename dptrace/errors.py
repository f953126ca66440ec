"""The exceptions of dptrace.

DptraceError            bad input: the command line prints the message and exits with 1
├── TraceError          a file that is not a readable trace of one rank
├── RecordingError      a recording that failed
├── MissingExtraError   an optional package that is not installed
└── UsageError          invalid arguments: the command line exits with 2
"""

from __future__ import annotations

__all__ = ["DptraceError", "MissingExtraError", "RecordingError", "TraceError", "UsageError"]


class DptraceError(Exception):
    """An error that the user can fix: the message names the file, what is wrong, and what to do."""

    exit_code = 1


class TraceError(DptraceError):
    """A file cannot be read as a trace of one rank."""


class RecordingError(DptraceError):
    """A recording failed."""


class MissingExtraError(DptraceError):
    """An optional package is missing; the message contains the pip command that installs it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what}, which is not installed. Install it with: pip install 'dptrace[{extra}]'")
        self.what, self.extra = what, extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return MissingExtraError, (self.what, self.extra)  # so that it can be sent between processes


class UsageError(DptraceError):
    """An argument is invalid, or arguments contradict each other."""

    exit_code = 2

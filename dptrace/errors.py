"""The exceptions of dptrace.

DptraceError            bad input: the command line prints the message and exits with 1
├── TraceError          a file that is not a readable trace of one rank
│   ├── AccessError     a URL that needs other credentials
│   └── SeveralRanksError  a file of several ranks, which are read one by one
├── RecordingError      a recording that failed
├── MissingExtraError   an optional package that is not installed
└── UsageError          invalid arguments: the command line exits with 2
"""

from __future__ import annotations

__all__ = [
    "EXTRAS",
    "AccessError",
    "DptraceError",
    "MissingExtraError",
    "RecordingError",
    "TraceError",
    "UsageError",
    "install_command",
]

EXTRAS = {
    "record": ("torch>=2.4",),
    "hta": ("traceinsight>=0.6",),
    "dask": ("distributed>=2024.8",),
    "remote": ("aiohttp>=3.9", "fsspec>=2024.2", "gcsfs>=2024.2", "s3fs>=2024.2"),
    "azure": ("adlfs>=2024.2", "fsspec>=2024.2"),
    "mcp": ("mcp>=2",),
    "pdf": ("svglib>=2.1",),
    "wandb": ("wandb>=0.17",),
    "mlflow": ("mlflow-skinny>=2.10",),
    "prometheus": ("prometheus-client>=0.17",),
    "opentelemetry": ("opentelemetry-exporter-otlp-proto-http>=1.24", "opentelemetry-sdk>=1.24"),
    "tensorboard": ("tensorboardX>=2.6",),
    "huggingface": ("fsspec>=2024.2", "huggingface_hub>=0.23"),
}
"""The packages of dptrace's extras, as in pyproject.toml."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra.

    It names the packages: dptrace itself is in no package index, where its name may be anybody's.
    """
    return " ".join(("pip install", *(f"'{package}'" for package in EXTRAS[extra])))


class DptraceError(Exception):
    """An error that the user can fix: the message names the file, what is wrong, and what to do."""

    exit_code = 1


class TraceError(DptraceError):
    """A file cannot be read as a trace of one rank."""


class AccessError(TraceError):
    """A URL needs credentials that this process does not have."""


class SeveralRanksError(TraceError):
    """A file holds the processes of several ranks; the message says which, and by what they are told apart."""

    def __init__(self, message: str, parts: tuple[str, ...]) -> None:
        super().__init__(message)
        self.parts = parts
        """What each is called in a :class:`~dptrace.readers.source.Source`: ``rank 0``."""

    def __reduce__(self) -> tuple[type[SeveralRanksError], tuple[str, tuple[str, ...]]]:
        return SeveralRanksError, (str(self), self.parts)  # so that it can be sent between processes


class RecordingError(DptraceError):
    """A recording failed; the exit code is that of the training, if that failed."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class MissingExtraError(DptraceError):
    """An optional package is missing; the message ends with the command that installs it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what}, which is not installed. Install it with: {install_command(extra)}")
        self.what, self.extra = what, extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return MissingExtraError, (self.what, self.extra)  # so that it can be sent between processes


class UsageError(DptraceError):
    """An argument is invalid, or arguments contradict each other."""

    exit_code = 2

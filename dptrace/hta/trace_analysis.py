"""Create Holistic Trace Analysis (HTA) objects with dptrace's reader, which is faster than HTA's loader."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

from dptrace.errors import DptraceError, MissingExtraError, UsageError
from dptrace.readers.discovery import Sources

if TYPE_CHECKING:
    from dptrace.run.run import Run


@contextmanager
def silence_hta() -> Iterator[list[str]]:
    """Suppress HTA's output; yield a list that collects the errors that it logs, for dptrace's own messages."""
    logger = logging.getLogger("hta")
    handler, handlers = _ErrorList(), logger.handlers[:]
    level, propagate = logger.level, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield handler.errors
    finally:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


class _ErrorList(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.errors.append(record.getMessage())


def hta_of(run: Run, include_last_profiler_step: bool = False) -> Any:
    """Return HTA's ``TraceAnalysis`` of a run; see :func:`dptrace.hta_analysis`.

    Its frames contain whole files: every step and every rank, whatever is selected in *run*.
    """
    if not isinstance(run.sources, Sources):
        raise DptraceError(f"{run.path}: HTA reads files, and this run was not read from files. Use dptrace.open.")
    return hta_analysis(run.sources, False, include_last_profiler_step)


def hta_analysis(found: Sources, strict: bool = False, include_last_profiler_step: bool = False) -> Any:
    """Read the files of a run into HTA's ``TraceAnalysis``; see ``trace_adapter.trace_of``.

    Raises:
        UsageError: the run is of several windows of each process.
    """
    if count := len(found.windows):
        raise UsageError(
            f"HTA reads one file of each rank, and this run has {count} windows of each process. Choose one: "
            f"--window 1 to --window {count}; in Python dptrace.open(..., window=1)."
        )
    try:
        from dptrace.hta.trace_adapter import trace_of
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("dptrace"):
            raise
        raise MissingExtraError("This needs Holistic Trace Analysis (HTA)", "hta") from None
    with silence_hta():
        trace = trace_of(found, strict)
        trace.align_and_filter_trace(include_last_profiler_step)
        return analysis_of(trace)


def analysis_of(trace: Any) -> Any:
    """Return a ``TraceAnalysis`` of a trace that is already loaded; its own constructor would load files."""
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis.__new__(TraceAnalysis)
    analysis.t = trace
    return analysis

"""Silence HTA: its log, its output, its warnings, and the browser that it opens for a figure."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

__all__ = ["captured_figures", "silence_hta"]


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


@contextmanager
def captured_figures() -> Iterator[list[Any]]:
    """Collect plotly figures instead of showing them."""
    from plotly.basedatatypes import BaseFigure

    figures: list[Any] = []
    show = BaseFigure.show

    def keep(figure: Any, *args: object, **kwargs: object) -> None:
        figures.append(figure)

    BaseFigure.show = keep
    try:
        yield figures
    finally:
        BaseFigure.show = show

"""HTA held still: its log, its prints, its warnings, its way of opening a browser for a figure."""

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
    """Let HTA say nothing; give what it logged as an error, for a message of our own."""
    logger = logging.getLogger("hta")
    handler, told = _Keeping(), logger.handlers[:]
    level, propagate = logger.level, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield handler.errors
    finally:
        logger.handlers, logger.propagate = told, propagate
        logger.setLevel(level)


class _Keeping(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.errors.append(record.getMessage())


@contextmanager
def captured_figures() -> Iterator[list[Any]]:
    """Collect the plotly figures that would be shown, instead of showing them."""
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

"""End on SIGTERM, SIGHUP and Ctrl-C with an exception, so that what is half-written is removed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

_RETRY_S = 0.002
"""How soon the exception is raised again where code has swallowed it, or imported: a command does little else."""
INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C."""


class Terminated(BaseException):
    """A signal asks this process to end."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        """As a shell reports a process that a signal has ended."""


def end_on_signals() -> None:
    """Raise Terminated at the first SIGTERM or SIGHUP; further ones can't interrupt the cleaning up.

    An exception that arrives anywhere may be swallowed: by C code that tries an import, or in a finalizer. So it is not
    raised during an import, and a timer raises it again until some code handles it. Ctrl-C, too, waits for the end of
    an import, and is raised once, since a server goes on after it. A signal that is ignored, as SIGHUP is under nohup,
    stays ignored.
    """
    handled = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    if hasattr(signal, "setitimer") and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handled.append(signal.SIGINT)
    arrived: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        attempt(number, frame)

    def attempt(_: int, frame: FrameType | None) -> None:
        _set_timer(_RETRY_S)
        if signal.getsignal(arrived[0]) is not end:  # other code has taken the signals over meanwhile
            _set_timer(0)
            signal.raise_signal(arrived[0])
        elif not _importing(frame) and not _cleaning_up():
            if arrived[0] != signal.SIGINT:
                raise Terminated(arrived[0])
            del arrived[0]
            _set_timer(_RETRY_S if arrived else 0)
            raise KeyboardInterrupt

    if handled and hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, attempt)
    for number in handled:
        signal.signal(number, end)


def end_retries() -> None:
    """Stop raising exceptions: one has been handled, or the process ends anyway."""
    _set_timer(0)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # one may be on its way
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, _exit_at_once)


def _set_timer(seconds: float) -> None:
    if hasattr(signal, "setitimer"):  # Windows has none
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _cleaning_up() -> bool:
    """Return whether the code that runs handles Terminated, or is in a generator that is closed on its way."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, Terminated | GeneratorExit):
            return True
        error = error.__context__
    return False


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C end this process at once during the block, in which there is nothing to clean up."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def signals_held() -> Iterator[None]:
    """Let signals that end the process, Ctrl-C too, wait for the end of the block, which must run as a whole."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread
        return
    arrived: list[int] = []
    numbers = [number for number in (signal.SIGINT, *_ENDING) if signal.getsignal(number) is not None]
    before = {number: signal.signal(number, lambda number, _: arrived.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in arrived:
        signal.raise_signal(number)

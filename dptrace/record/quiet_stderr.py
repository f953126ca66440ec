"""Keep what torch's native code prints when the profiler starts and stops away from the terminal.

Kineto writes to file descriptor 2 itself, with a severity above that of errors, so no log level hides its lines without
hiding errors too.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["quiet_stderr"]

_CHATTER = re.compile(
    rb"USDT:"  # Kineto of torch 2.13
    rb"|(STAGE|INFO):\d{4}-\d\d-\d\d .*\]"  # older Kineto
    rb"|\[Gloo\] Rank \d+ is connected to"
    rb"|.*\bNCCL INFO "
)
"""Matches lines that report no problem."""
_LOCK = threading.Lock()
"""Held while file descriptor 2 is replaced: two threads would restore each other's."""


@contextmanager
def quiet_stderr(log: Path | None = None) -> Iterator[None]:
    """Hold back what this process writes to standard error, and write it when the block ends, without chatter.

    All threads' lines are held back, and written in their order; what is not known as chatter is never dropped. If the
    process crashes inside the block, what was held back is lost. Processes that other threads start inside the block
    keep writing to the temporary file: keep the block short.

    Args:
        log: a file to which the chatter is appended; by default it is dropped.
    """
    if not _LOCK.acquire(blocking=False):
        yield  # inside another block
        return
    try:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        try:
            terminal = os.dup(2)
            held = tempfile.TemporaryFile()  # noqa: SIM115  # closed below
        except OSError:  # standard error is closed, or the disk is full
            yield
            return
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            with suppress(OSError, ValueError):
                sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            _replay(held, log)
    finally:
        _LOCK.release()


def _replay(held: BinaryIO, log: Path | None) -> None:
    """Write the held lines to standard error, and chatter to the log."""
    with held:
        held.seek(0)
        lines = held.read().splitlines(keepends=True)
    chatter = [line for line in lines if _CHATTER.match(line)]
    with suppress(OSError):
        _write(2, b"".join(line for line in lines if not _CHATTER.match(line)))
        if log is not None and chatter:
            with log.open("ab") as file:
                file.writelines(chatter)


def _write(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]

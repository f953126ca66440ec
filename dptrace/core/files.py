"""Atomic writes, and checks of output paths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dptrace.core.inputs import note_output
from dptrace.errors import DptraceError, UsageError

__all__ = ["atomic_write", "check_output"]


def check_output(path: Path, force: bool) -> None:
    """Check before any work that an output file can be written.

    Raises:
        UsageError: the file exists and *force* is not set, the command reads it, or its folder is missing.
    """
    note_output(path)
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name a file.")
        # A device or a pipe is written to, not replaced: it loses nothing.
        if path.is_file() and not force:
            raise UsageError(f"{path} already exists; --force overwrites it.")
        if not path.resolve().parent.is_dir():
            raise UsageError(f"{path}: the folder {path.resolve().parent} does not exist; create it first.")
    except FileNotFoundError:
        raise UsageError(f"{path}: the current folder was removed; change to another one.") from None
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{path}: can't be written: {getattr(error, 'strerror', None) or error}.") from None


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and move it to *path* at the end; remove it on failure.

    A link is followed and stays a link; a device or a pipe is written to directly.

    Raises:
        DptraceError: the file can't be written.
    """
    special = path.exists() and not path.is_file()
    target = path if special else path.resolve()
    temporary = target if special else target.with_name(f".dptrace.{os.getpid()}.part")
    try:
        yield temporary
        if not special:
            temporary.replace(target)
    except OSError as error:
        raise DptraceError(f"{path}: can't be written: {error.strerror or error}.") from None
    finally:
        if not special:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

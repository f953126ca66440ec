"""Files written whole or not at all, and the user's cache folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dptrace.errors import DptraceError, UsageError

__all__ = ["atomic_write", "cache_folder", "check_output"]


def cache_folder() -> Path:
    """Return the cache folder; the environment variable ``DPTRACE_CACHE`` names another."""
    if named := os.environ.get("DPTRACE_CACHE"):
        return Path(named)
    from platformdirs import user_cache_path

    return Path(user_cache_path("dptrace", appauthor=False))


def check_output(path: Path, force: bool) -> None:
    """Refuse before any work what would fail or destroy after it.

    Raises:
        UsageError: the file is there and *force* is not given, or its folder is missing.
    """
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name a file.")
        # A device or a pipe is written to, not replaced: nothing in it is lost.
        if path.is_file() and not force:
            raise UsageError(f"{path} is there already; --force overwrites it.")
        if not path.resolve().parent.is_dir():
            raise UsageError(f"{path}: there is no folder {path.resolve().parent}; make it first.")
    except FileNotFoundError:
        raise UsageError(f"{path}: the folder that you are in was removed; go to another one.") from None
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{path}: can't be written: {getattr(error, 'strerror', None) or error}.") from None


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a name beside *path* to write to; put it in its place at the end, and leave nothing when that fails.

    A link is followed, so that it goes on being one; a device or a pipe is written to as it is.
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

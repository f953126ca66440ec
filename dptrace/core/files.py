"""Files and folders of the user: written at once, and kept from being replaced."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import BinaryIO

from dptrace.errors import DptraceError, UsageError


def unreadable(path: object, error: Exception) -> str:
    """Return a sentence on a file or folder that can't be read, and what to do."""
    if isinstance(error, PermissionError):
        return f"{path}: can't be read: permission denied. Ask its owner for permission to read it and its folder."
    return f"{path}: can't be read: {getattr(error, 'strerror', None) or error}."


# The files that a command reads, which none of its outputs may replace.

STANDARD_INPUT = "/dev/stdin"
"""The path of standard input, which may be a file."""

Paths = Iterable[str | Path]


_files: ContextVar[tuple[list[str | Path], list[Path]] | None] = ContextVar("_files", default=None)
"""What a command has said so far that it reads, and what it writes."""


@contextmanager
def command_files() -> Iterator[None]:
    """Compare what is noted in the block: an output that is an input is refused, whichever is noted first."""
    token = _files.set(([], []))
    try:
        yield
    finally:
        _files.reset(token)


def note_inputs(paths: Paths) -> None:
    """Note files that the command reads; outside of a command, do nothing.

    Raises:
        UsageError: one of them is an output.
    """
    if (files := _files.get()) is not None:
        inputs, outputs = files
        inputs += (paths := list(paths))
        refuse_overwriting(outputs, paths)


def note_output(path: Path) -> None:
    """Note a file or a folder that the command writes; outside of a command, do nothing.

    A folder is compared with the inputs noted so far only, because a command may read again what it has written there.

    Raises:
        UsageError: it is an input, or a folder that holds one.
    """
    if (files := _files.get()) is not None:
        inputs, outputs = files
        refuse_overwriting([path], inputs)
        if os.path.isfile(path):
            outputs.append(path)


def refuse_overwriting(outputs: Paths, inputs: Paths) -> None:
    """Refuse outputs that are inputs, by whatever path or link, or folders that hold one.

    Raises:
        UsageError: the message names both.
    """
    placed = ((_place(path), path) for path in outputs)
    places = {place: path for place, path in placed if place is not None}
    if not places:
        return
    holds_files = any(os.path.isdir(path) for path in places.values())
    parents: set[str] = set()
    for path in inputs:
        if (place := _place(path)) in places:
            spelled = "" if str(path) == str(places[place]) else f", as {path}"
            raise UsageError(
                f"{places[place]}: the command reads this file{spelled}, and never overwrites "
                "what it reads, even with --force. Choose another file."
            )
        if holds_files and (folder := os.path.dirname(os.path.realpath(path))) not in parents:
            parents.add(folder)
            _refuse_folder(places, path, folder)


def _refuse_folder(places: dict[tuple[int, int], str | Path], path: str | Path, folder: str) -> None:
    for parent in (folder, *map(str, Path(folder).parents)):
        if (place := _place(parent)) in places:
            raise UsageError(
                f"{places[place]}: holds {path}, which the command reads and never overwrites, even with --force. "
                "Choose another folder."
            )


def _place(path: str | Path) -> tuple[int, int] | None:
    """Return what identifies a file or a folder under all its names; None for a pipe, a device, and what is missing."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) else None


# Atomic writes, and checks of output paths.

_PART = re.compile(r"\.dptrace\.[0-9a-f]{16}\.part")
_ABANDONED_S = 3600
"""Age at which a part counts as left behind where files can't be locked."""


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


def make_folder(folder: Path) -> None:
    """Create a folder, and those above it, unless it is there.

    Raises:
        UsageError: it can't be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: can't be created: {error.strerror or error}.") from None


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and move it to *path* at the end; remove it on failure.

    A link is followed and stays a link; a device or a pipe is written to directly.

    Raises:
        DptraceError: the file can't be written.
    """
    try:
        if path.exists() and not path.is_file():
            yield path
            return
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        raise DptraceError(f"{path}: can't be written: {error.strerror or error}.") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Do the same for a file that is none of the user's outputs.

    Raises:
        OSError: the file can't be written.
    """
    target = path.resolve()
    temporary, file = open_part(target.parent)
    with file:
        try:
            yield temporary
            temporary.replace(target)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def open_part(folder: Path) -> tuple[Path, BinaryIO]:
    """Create a file that only this caller writes, to be moved to its final name in the same folder.

    While it is open, it is locked, so that others see that it is written; parts that killed processes left are removed.

    Raises:
        OSError: the file can't be created.
    """
    _remove_stale_parts(folder)
    while True:
        path = folder / f".dptrace.{os.urandom(8).hex()}.part"
        file = path.open("x+b")  # follows no link, and opens nothing that exists
        # Before it was locked, another process could take it for a part that was left, and remove it.
        if _lock(file.fileno()) is not False and path.exists():
            return path, file
        file.close()


@cache  # to list a cache of thousands of ranks takes longer than to write one of them
def _remove_stale_parts(folder: Path) -> None:
    for stale in stale_parts(folder):
        with suppress(OSError):
            stale.unlink()


def stale_parts(folder: Path) -> Iterator[Path]:
    """Yield the parts in a folder that no process writes; each is locked until the next, so that it can be removed."""
    try:
        names = [name for name in os.listdir(folder) if _PART.fullmatch(name)]
    except OSError:
        return
    for name in names:
        with suppress(OSError):
            file = os.open(folder / name, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            try:
                locked = _lock(file)
                if locked or (locked is None and os.fstat(file).st_mtime < time.time() - _ABANDONED_S):
                    yield folder / name
            finally:
                os.close(file)


def _lock(file: int) -> bool | None:
    """Lock a part; return False if another process has it, and None where files can't be locked."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


# The user's folders, and a temporary one in their place where there is no home, as in a container.


def ensure_home() -> None:
    """Set ``HOME`` where the user has neither that variable nor an entry in passwd, as a container's may have none.

    Bokeh, HTA and Dask look for their settings in the home folder as soon as they are imported, and fail without one.
    """
    if os.path.expanduser("~") == "~":
        os.environ["HOME"] = str(_temporary_folder() or os.sep)


def cache_folder() -> Path:
    """Return the cache folder, which the environment variable ``DPTRACE_CACHE`` can set.

    It is the user's; or a temporary one where that can't be written, as below the home ``/`` of a container's user.
    """
    if named := os.environ.get("DPTRACE_CACHE"):
        return Path(named)
    from platformdirs import user_cache_path

    try:
        users = Path(user_cache_path("dptrace", appauthor=False))
        if users.is_absolute() and _writable(users):
            return users
    except RuntimeError:  # no home folder
        pass
    return (_temporary_folder() or Path(os.sep)) / ".cache" / "dptrace"


@cache  # asked for each trace
def _writable(folder: Path) -> bool:
    """Return whether a folder can be written or created."""
    # os.path, since Path.exists raises an error below a folder that this user may not enter.
    existing = next((path for path in (folder, *folder.parents) if os.path.exists(path)), folder)
    return os.access(existing, os.W_OK | os.X_OK)


def _temporary_folder() -> Path | None:
    """Return a folder that is this user's alone, the same in each process; None where there is none.

    Everyone may create a folder of this name first: then it is not used, since its files would be trusted.
    """
    if not hasattr(os, "getuid"):
        return None
    import tempfile  # which imports what nearly no command needs

    try:
        folder = Path(tempfile.gettempdir(), f"dptrace-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return folder if own else None

"""What earlier readings left: one file per trace in the user's cache folder, so that a second look is instant.

An entry is named by a digest of all that it depends on: the trace's place, size and time of change, how it was read,
and dptrace's own code. What does not match is not found; what was damaged is not believed; both are read anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from dptrace.core.array_file import CorruptArrayFile, dumps, load
from dptrace.core.files import cache_folder
from dptrace.readers.sources.source import Source
from dptrace.readers.sources.storage import file_identity

__all__ = ["fetch", "read", "store", "write"]

Value = TypeVar("Value")

_LIMIT = 4 << 30
"""Bytes that the entries may take together; beyond them, those not used for longest go."""
_FIGURE_ROOMS = ("core", "readers", "timeline", "model", "analysis", "load")
"""The packages whose code decides what an entry holds."""
_ABANDONED = 3600
"""Seconds after which a file that is still half-written won't be finished."""


def fetch(source: Source, key: Sequence[object], type: type[Value]) -> tuple[Value | None, Path | None]:
    """Give what was stored for this very file and way of reading, and where; or nothing."""
    if (entry := _entry(source, key)) is None:
        return None, None
    try:
        value = read(entry, type)
        os.utime(entry)  # used now: the last to go
        return value, entry
    except CorruptArrayFile:
        with suppress(OSError):
            entry.unlink()
    except OSError:
        pass
    return None, None


def store(source: Source, key: Sequence[object], value: object, identity: object) -> Path | None:
    """Keep *value*; where that can't be (no room, no right to write), nothing is kept and nothing is wrong.

    Args:
        identity: the source's, from before it was read; a file that changed meanwhile is not kept.
    """
    entry = _entry(source, key)
    if entry is None or identity != file_identity(source):
        return None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write(value, entry)
        _evict(entry)
    except OSError:
        return None
    return entry


def read(entry: Path, type: type[Value]) -> Value:
    """Give what :func:`write` put there.

    Raises:
        Damaged: it was changed, or is another entry's.
        OSError: it can't be read.
    """
    name, value = load(entry, tuple[str, type])  # type: ignore[valid-type]
    if name != entry.name:
        raise CorruptArrayFile(f"it is {name}")
    return value


def write(value: object, path: Path) -> None:
    """Write packed bytes beside *path* and put them in its place, with its name, so that they stand for no other."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            file.writelines(dumps((path.name, value)))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _entry(source: Source, key: Sequence[object]) -> Path | None:
    identity = file_identity(source)
    if identity is None:
        return None
    digest = blake2b(repr((_code(), identity, tuple(key))).encode("utf-8", "surrogateescape"), digest_size=16)
    try:
        return cache_folder() / f"{digest.hexdigest()}.rank"
    except RuntimeError:  # no home folder
        return None


@cache
def _code() -> str:
    """Return a digest of the code that computes figures: an entry that other code wrote does not match."""
    digest = blake2b(digest_size=16)
    root = Path(__file__).resolve().parents[1]
    for path in sorted(path for room in _FIGURE_ROOMS for path in (root / room).rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


def _evict(newest: Path) -> None:
    entries = []
    for path in newest.parent.glob(".*.part"):  # left by a process that was killed
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _ABANDONED:
                path.unlink()
    for path in newest.parent.glob("*.rank"):
        with suppress(OSError):
            status = path.stat()
            entries.append((status.st_mtime, status.st_size, path))
    room = _LIMIT - sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if room >= 0 or path == newest:
            break
        with suppress(OSError):
            path.unlink()
        room += size

"""Opening and identity of stored files: on disk, at a URL, or on standard input."""

from __future__ import annotations

import importlib
import io
import os
import stat
import sys
import tarfile
import weakref
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol

from dptrace.core.files import unreadable
from dptrace.errors import TraceError
from dptrace.readers import remote
from dptrace.readers.source import STDIN, Source


def _damage() -> tuple[type[Exception], ...]:
    found: list[type[Exception]] = [EOFError, OSError, zlib.error, zipfile.BadZipFile, tarfile.TarError]
    # Python may be built without lzma, and isal is installed for the common machines only.
    for module, name in (("lzma", "LZMAError"), ("isal.isal_zlib", "error")):
        with suppress(ImportError):
            found.append(getattr(importlib.import_module(module), name))
    return tuple(found)


DAMAGE = _damage()
"""Raised for damaged compressed data, in an archive or not."""
ARCHIVE_DAMAGE: tuple[type[Exception], ...] = (*DAMAGE, RuntimeError, ValueError)
"""Raised for a damaged archive, and for one of an unknown version or compression."""


Identity = tuple[str | int, ...]
"""Values that change with a file: its path or URL, its size, times."""


class Location(Protocol):
    """Where a file's bytes are.

    :meth:`open` raises a TraceError where the file or its archive is missing, a folder, damaged, encrypted or a bomb,
    or can't be read, and a MissingExtraError where the package for such URLs is not installed.
    """

    @property
    def address(self) -> str:
        """The address in messages."""

    def open(self) -> AbstractContextManager[Any]:
        """Open the stored bytes, which may be compressed; the stream can ``peek`` and ``read1``."""

    def identity(self) -> Identity | None:
        """Return values that change with the file; None where they are unknown."""


class Container(Location, Protocol):
    """A location that may be an archive."""

    def __hash__(self) -> int:
        """Return the same for equal locations."""

    def open_seekable(self) -> BinaryIO:
        """Open it for random access; the stream can ``seek``."""


def location(source: Source) -> Location:
    """Return where a source's bytes are; those of one rank are where the whole file is."""
    if source.member:
        return ArchiveMember(source.whole().address, container(source), source.member)
    return StandardInput() if source.place == STDIN else container(source.whole())


def container(source: Source) -> Container:
    """Return the file on this machine or at a URL that the source is, or is in."""
    outer = Source.of(source.container) if source.member else source
    return remote.RemoteFile(outer.address, outer.place) if outer.remote else LocalFile(outer.address)


def open_source(source: Source) -> AbstractContextManager[Any]:
    """Open the stored bytes of a source, as :meth:`Location.open` says."""
    return location(source).open()


def file_identity(source: Source) -> Identity | None:
    """Return values that change with the file: path, size, times; None where they are unknown."""
    if source.windows:
        every = [file_identity(one) for one in source.windows]
        known = [one for one in every if one is not None]
        return tuple(value for one in known for value in one) if len(known) == len(every) else None
    identity = location(source).identity()
    return (*identity, source.part) if identity is not None and source.part else identity


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file on this machine, or a pipe."""

    address: str

    def open(self) -> BinaryIO:
        """Open the file."""
        try:
            return Path(self.address).open("rb")
        except FileNotFoundError:
            raise TraceError(f"{self.address}: no such file.") from None
        except IsADirectoryError:
            raise TraceError(f"{self.address}: is a folder, not a trace file.") from None
        except (OSError, ValueError) as error:
            raise TraceError(unreadable(self.address, error)) from None

    open_seekable = open

    def identity(self) -> Identity | None:
        """Return path, size, times and inode."""
        try:
            path = os.path.realpath(self.address)
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return (path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class StandardInput:
    """What is piped into this process; its bytes can be read once."""

    address = "standard input"

    def open(self) -> BinaryIO:
        """Open a copy, so that closing it leaves the process's own open."""
        if sys.stdin is None or sys.stdin.closed:
            raise TraceError("standard input: is closed; pipe a trace into dptrace.")
        if sys.stdin.isatty():
            raise TraceError("standard input: is a terminal; pipe a trace into dptrace: zcat rank0.json.gz | dptrace …")
        try:
            return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
        except (OSError, io.UnsupportedOperation):  # stdin is not a file, as in a notebook or a test
            return BufferedReader(io.BytesIO(sys.stdin.buffer.read()))

    def identity(self) -> None:
        """Return None: nothing is known before it is read."""


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """A file in a zip or tar archive, which is not unpacked to disk."""

    address: str
    archive: Container
    name: str

    def open(self) -> AbstractContextManager[IO[bytes]]:
        """Open the file in its archive, whose directory is read once for all files."""
        return _contents(self.archive).opened(self)

    def identity(self) -> Identity | None:
        """Return the identity of the archive, and the name in it."""
        identity = self.archive.identity()
        return None if identity is None else (*identity, self.name)


# What zip and tar archives hold.

_TAR = ".tar"
SEEKABLE_ARCHIVES = (".zip", _TAR)
"""Ends of the names of archives that are read, in lower case."""
COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
"""Those of archives without random access, which are refused."""

_MAX_UNCHECKED = 1 << 30
"""Bytes that any member may expand to."""
_MAX_RATIO = 200
"""How many times its compressed size a larger member may expand to; traces expand about 20 times."""


def is_archive(name: str) -> bool:
    """Return whether a file is an archive by its name."""
    return name.lower().endswith((*SEEKABLE_ARCHIVES, *COMPRESSED_TARS))


def members(archive: Source) -> list[str]:
    """List the names of the files in an archive, in its order.

    Raises:
        TraceError: the archive is missing, damaged, or of a kind without random access.
    """
    names = _contents(container(archive)).names
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise TraceError(f"{archive.address}: holds {twice} more than once; unpack it, or remove one of them.")
    return names


class _Zip:
    """A zip archive. Its file stays open, since zipfile reads the whole directory before it opens a member."""

    def __init__(self, archive: Container) -> None:
        whole = archive.open_seekable()
        try:
            with _translate_errors(archive):
                self._archive = zipfile.ZipFile(whole)
        except BaseException:
            whole.close()
            raise
        weakref.finalize(self._archive, whole.close)  # a member's stream keeps the archive alive
        # zipfile's is_dir() fails on the empty name that a damaged directory may hold.
        self.names = [name for name in self._archive.namelist() if name and not name.endswith("/")]

    @contextmanager
    def opened(self, file: ArchiveMember) -> Iterator[IO[bytes]]:
        with _translate_errors(file):
            info = self._archive.getinfo(file.name)
            if info.flag_bits & 1:
                raise TraceError(f"{file.address}: is encrypted; unpack the archive with its password first.")
            if info.file_size > max(_MAX_UNCHECKED, info.compress_size * _MAX_RATIO):
                raise TraceError(
                    f"{file.address}: looks like a zip bomb: {info.compress_size:,} bytes expand to "
                    f"{info.file_size:,}. If this is a trace, unpack it with unzip."
                )
            stream = self._archive.open(info)
        with stream:
            yield stream


class _Tar:
    """The headers of a tar archive."""

    def __init__(self, archive: Container) -> None:
        with (
            archive.open_seekable() as whole,
            _translate_errors(archive),
            tarfile.open(fileobj=whole, mode="r:") as contents,
        ):
            headers = contents.getmembers()
        self._headers = {header.name: header for header in headers}
        self.names = [header.name for header in headers if header.isfile()]

    @contextmanager
    def opened(self, file: ArchiveMember) -> Iterator[IO[bytes]]:
        # Opened again, since two members that share a file would move each other's position.
        with ExitStack() as stack:
            whole = stack.enter_context(file.archive.open_seekable())
            with _translate_errors(file):
                header = self._headers[file.name]
                contents = stack.enter_context(tarfile.open(fileobj=whole, mode="r:"))
                stream = contents.extractfile(header)
            if stream is None:
                raise TraceError(f"{file.address}: is not a file in the archive.")
            yield stack.enter_context(stream)


def _contents(archive: Container) -> _Zip | _Tar:
    """Return what an archive holds; it is read once for all of its members."""
    identity = archive.identity()
    # A forked process has its own, since it would move this one's position in the file.
    return _read(archive) if identity is None else _reread_if_changed(archive, identity, os.getpid())


@lru_cache(maxsize=1)
def _reread_if_changed(archive: Container, identity: Identity, process: int) -> _Zip | _Tar:
    return _read(archive)


def _read(archive: Container) -> _Zip | _Tar:
    name = archive.address.lower().split("?")[0]
    if name.endswith(COMPRESSED_TARS):
        raise TraceError(
            f"{archive.address}: is a compressed tar archive, which has no random access; unpack it (tar xf) and "
            "name the folder, or pack the compressed traces with tar cf or zip -0."
        )
    return _Tar(archive) if name.endswith(_TAR) else _Zip(archive)


@contextmanager
def _translate_errors(file: Location) -> Iterator[None]:
    try:
        yield
    except KeyError:
        raise TraceError(f"{file.address}: no such file in the archive.") from None
    except NotImplementedError as error:
        raise TraceError(f"{file.address}: uses an unsupported compression ({error}); unpack it.") from None
    except ARCHIVE_DAMAGE as error:
        raise TraceError(f"{file.address}: is not a readable archive ({error}); was it copied completely?") from None

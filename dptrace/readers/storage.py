"""Opening and identity of stored files: on disk, at a URL, or on standard input."""

from __future__ import annotations

import filecmp
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
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, BinaryIO

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


def open_source(source: Source) -> AbstractContextManager[Any]:
    """Open the stored bytes, which may be compressed; the stream can ``peek`` and ``read1``.

    Raises:
        TraceError: the file or its archive is missing, a folder, damaged, encrypted or a bomb, or can't be read.
        MissingExtraError: the package for such URLs is not installed.
    """
    if source.part:
        return open_source(source.whole())
    if source.member:
        return _contents(source.outer()).opened(source)
    if source.remote:
        return remote.open_stream(source)
    return _standard_input() if source.place == STDIN else _open_file(source.address)


def open_seekable(source: Source) -> BinaryIO:
    """Open the archive that the file is in, or the file itself; the stream can ``seek``.

    Raises:
        TraceError: it is missing, a folder, or can't be read.
        MissingExtraError: the package for such URLs is not installed.
    """
    outer = source.outer()
    return remote.open_seekable(outer) if outer.remote else _open_file(outer.address)


def file_identity(source: Source) -> tuple[str | int, ...] | None:
    """Return values that change with the file: path, size, times; None where they are unknown."""
    if source.part:
        whole = file_identity(source.whole())
        return None if whole is None else (*whole, source.part)
    if source.member:
        outer = file_identity(source.outer())
        return None if outer is None else (*outer, source.member)
    if source.remote:
        return remote.identity(source)
    if source.place == STDIN:
        return None
    try:
        path = os.path.realpath(source.address)
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return (path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def copied_files(sources: Iterable[Source]) -> dict[str, str]:
    """Return the path of each file on this machine that holds the same bytes as an earlier one, and the earlier path.

    Only files of equal size and equal last bytes are read, of other files nothing.
    """
    sizes: dict[int, list[str]] = {}
    for source in {one.container: one for one in sources if not (one.remote or one.single_pass)}.values():
        if (identity := file_identity(source.outer() if source.member else source)) is not None:
            sizes.setdefault(int(identity[1]), []).append(source.container)
    found, first = dict[str, str](), dict[tuple[int, bytes], str]()
    for size, paths in sizes.items():
        for path in paths if len(paths) > 1 else ():
            with suppress(OSError):
                with Path(path).open("rb") as file:
                    file.seek(max(size - _LAST_BYTES, 0))
                    earlier = first.setdefault((size, file.read()), path)
                if earlier != path and filecmp.cmp(earlier, path, shallow=False):
                    found[path] = earlier
    return found


_LAST_BYTES = 4096
"""A gzipped file ends with a checksum of all of it."""


def _open_file(path: str) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file.") from None
    except IsADirectoryError:
        raise TraceError(f"{path}: is a folder, not a trace file.") from None
    except (OSError, ValueError) as error:
        raise TraceError(unreadable(path, error)) from None


def _standard_input() -> BinaryIO:
    if sys.stdin is None or sys.stdin.closed:
        raise TraceError("standard input: is closed; pipe a trace into dptrace.")
    if sys.stdin.isatty():
        raise TraceError("standard input: is a terminal; pipe a trace into dptrace: zcat rank0.json.gz | dptrace …")
    # A copy, so that closing it leaves the process's stdin open.
    try:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    except (OSError, io.UnsupportedOperation):  # stdin is not a file, as in a notebook or a test
        return BufferedReader(io.BytesIO(sys.stdin.buffer.read()))


# Traces in a zip or tar archive, read without unpacking to disk.

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
    names = _contents(archive).names
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise TraceError(f"{archive.address}: holds {twice} more than once; unpack it, or remove one of them.")
    return names


class _Zip:
    """A zip archive. Its file stays open, since zipfile reads the whole directory before it opens a member."""

    def __init__(self, archive: Source) -> None:
        whole = open_seekable(archive)
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
    def opened(self, file: Source) -> Iterator[IO[bytes]]:
        with _translate_errors(file):
            info = self._archive.getinfo(file.member)
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

    def __init__(self, archive: Source) -> None:
        with (
            open_seekable(archive) as whole,
            _translate_errors(archive),
            tarfile.open(fileobj=whole, mode="r:") as contents,
        ):
            headers = contents.getmembers()
        self._headers = {header.name: header for header in headers}
        self.names = [header.name for header in headers if header.isfile()]

    @contextmanager
    def opened(self, file: Source) -> Iterator[IO[bytes]]:
        # Opened again, since two members that share a file would move each other's position.
        with ExitStack() as stack:
            whole = stack.enter_context(open_seekable(file))
            with _translate_errors(file):
                header = self._headers[file.member]
                contents = stack.enter_context(tarfile.open(fileobj=whole, mode="r:"))
                stream = contents.extractfile(header)
            if stream is None:
                raise TraceError(f"{file.address}: is not a file in the archive.")
            yield stack.enter_context(stream)


def _contents(archive: Source) -> _Zip | _Tar:
    """Return what an archive holds; it is read once for all of its members."""
    identity = file_identity(archive)
    # A forked process has its own, since it would move this one's position in the file.
    return _read(archive) if identity is None else _reread_if_changed(archive, identity, os.getpid())


@lru_cache(maxsize=1)
def _reread_if_changed(archive: Source, identity: tuple[str | int, ...], process: int) -> _Zip | _Tar:
    return _read(archive)


def _read(archive: Source) -> _Zip | _Tar:
    name = archive.address.lower().split("?")[0]
    if name.endswith(COMPRESSED_TARS):
        raise TraceError(
            f"{archive.address}: is a compressed tar archive, which has no random access; unpack it (tar xf) and "
            "name the folder, or pack the compressed traces with tar cf or zip -0."
        )
    return _Tar(archive) if name.endswith(_TAR) else _Zip(archive)


@contextmanager
def _translate_errors(file: Source) -> Iterator[None]:
    try:
        yield
    except KeyError:
        raise TraceError(f"{file.address}: no such file in the archive.") from None
    except NotImplementedError as error:
        raise TraceError(f"{file.address}: uses an unsupported compression ({error}); unpack it.") from None
    except ARCHIVE_DAMAGE as error:
        raise TraceError(f"{file.address}: is not a readable archive ({error}); was it copied completely?") from None

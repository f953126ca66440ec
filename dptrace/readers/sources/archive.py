"""Traces in a zip or tar archive, read without unpacking to disk."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from typing import IO, TYPE_CHECKING, BinaryIO

from dptrace.errors import TraceError
from dptrace.readers.sources.source import Source
from dptrace.readers.sources.storage import open_seekable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


__all__ = ["is_archive", "members", "open_member"]

_ZIP, _TAR = (".zip",), (".tar",)
_COMPRESSED_TAR = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")

_HARMLESS = 1 << 30
"""Bytes that any member may expand to."""
_EXPANSION = 200
"""How many times its compressed size a larger member may expand to; traces expand about 20 times."""
_AT_ONCE = 1 << 16
"""Bytes read at a time; this many are lost if the checksum at a file's end is wrong."""


def is_archive(name: str) -> bool:
    """Return whether a file is an archive by its name."""
    return name.lower().endswith((*_ZIP, *_TAR, *_COMPRESSED_TAR))


def members(archive: Source) -> list[str]:
    """List the names of the files in an archive, in its order.

    Raises:
        TraceError: the archive is missing, damaged, or of a kind without random access.
    """
    with _opened(archive) as contents, _translate_errors(archive):
        names = contents.names()
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise TraceError(f"{archive.address}: holds {twice} more than once; unpack it, or remove one of them.")
    return names


def open_member(file: Source) -> BinaryIO:
    """Open a file in an archive; closing it closes the archive.

    Raises:
        TraceError: the archive or the file in it is missing, damaged, encrypted or a bomb.
    """
    with ExitStack() as stack:
        contents = stack.enter_context(_opened(file))
        with _translate_errors(file):
            stream = contents.open(file)
        stack.callback(stream.close)
        return _DelayedErrorStream(_Member(stream, stack.pop_all().close), _AT_ONCE)


@dataclass(frozen=True, slots=True)
class _Zip:
    archive: zipfile.ZipFile

    def names(self) -> list[str]:
        return [info.filename for info in self.archive.infolist() if not info.is_dir()]

    def open(self, file: Source) -> IO[bytes]:
        info = self.archive.getinfo(file.member)
        if info.flag_bits & 1:
            raise TraceError(f"{file.address}: is encrypted; unpack the archive with its password first.")
        if info.file_size > max(_HARMLESS, info.compress_size * _EXPANSION):
            raise TraceError(
                f"{file.address}: looks like a zip bomb: {info.compress_size:,} bytes expand to {info.file_size:,}. "
                "If this is a trace, unpack it with unzip."
            )
        return self.archive.open(info)


@dataclass(frozen=True, slots=True)
class _Tar:
    archive: tarfile.TarFile

    def names(self) -> list[str]:
        return [info.name for info in self.archive if info.isfile()]

    def open(self, file: Source) -> IO[bytes]:
        stream = self.archive.extractfile(file.member)
        if stream is None:
            raise TraceError(f"{file.address}: is not a file in the archive.")
        return stream


@contextmanager
def _opened(file: Source) -> Iterator[_Zip | _Tar]:
    name = (file.place if file.member else file.address).lower()
    where = file.address.removesuffix(f"!{file.member}") if file.member else file.address
    if name.split("?")[0].endswith(_COMPRESSED_TAR):
        raise TraceError(
            f"{where}: is a compressed tar archive, which has no random access; unpack it (tar xf) and name the "
            "folder, or pack the compressed traces with tar cf or zip -0."
        )
    with ExitStack() as stack:
        whole = stack.enter_context(open_seekable(file))
        contents: _Zip | _Tar
        with _translate_errors(file, where):
            if name.split("?")[0].endswith(_TAR):
                contents = _Tar(stack.enter_context(tarfile.open(fileobj=whole, mode="r:")))
            else:
                contents = _Zip(stack.enter_context(zipfile.ZipFile(whole)))
        yield contents


@contextmanager
def _translate_errors(file: Source, where: str = "") -> Iterator[None]:
    try:
        yield
    except KeyError:
        raise TraceError(f"{file.address}: no such file in the archive.") from None
    except NotImplementedError as error:
        raise TraceError(f"{file.address}: uses an unsupported compression ({error}); unpack it.") from None
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise TraceError(
            f"{where or file.address}: is not a readable archive ({error}); was it copied completely?"
        ) from None


class _DelayedErrorStream(BufferedReader):
    """A stream that returns all readable data before it raises the error of damage."""

    _error: OSError | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return super().read()
        if self._error is not None:
            raise self._error
        parts: list[bytes] = []
        while size > 0:
            try:
                part = self.read1(size)
            except OSError as error:
                if not parts:
                    raise
                self._error = error
                break
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class _Member(io.RawIOBase):
    """A file in an archive, whose damage raises an OSError as any file's does."""

    def __init__(self, stream: IO[bytes], close: Callable[[], object]) -> None:
        self._stream, self._close = stream, close

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        try:
            data = self._stream.read(min(len(view), _AT_ONCE))
        except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
            raise OSError(f"in the archive: {error}") from None
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._close()
        super().close()

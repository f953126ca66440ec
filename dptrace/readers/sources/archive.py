"""Traces in a zip or tar archive, read where they lie: nothing is unpacked to the disk."""

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
_SQUEEZED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")

_HARMLESS = 1 << 30
"""Bytes that a member may unpack to whatever it is like."""
_EXPANSION = 200
"""How many times its compressed size it may unpack to beyond that; traces shrink to a twentieth."""
_AT_ONCE = 1 << 16
"""Bytes read at a time: so many are lost when the last of a file show that its checksum is wrong."""


def is_archive(name: str) -> bool:
    """Tell an archive by its name."""
    return name.lower().endswith((*_ZIP, *_TAR, *_SQUEEZED))


def members(archive: Source) -> list[str]:
    """Give the names of the files in an archive, in its order.

    Raises:
        TraceError: it is missing, damaged, or of a kind that can't be read piece by piece.
    """
    with _opened(archive) as contents, _translate_errors(archive):
        names = contents.names()
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise TraceError(f"{archive.address}: holds {twice} more than once; unpack it, or leave one of them out.")
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
                f"{file.address}: is a zip bomb, it seems: {info.compress_size:,} bytes hold {info.file_size:,}. If it "
                "is a trace all the same, unpack it with unzip."
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
            raise TraceError(f"{file.address}: is no file in the archive.")
        return stream


@contextmanager
def _opened(file: Source) -> Iterator[_Zip | _Tar]:
    name = (file.place if file.member else file.address).lower()
    where = file.address.removesuffix(f"!{file.member}") if file.member else file.address
    if name.split("?")[0].endswith(_SQUEEZED):
        raise TraceError(
            f"{where}: is a compressed tar archive, which can't be read piece by piece; unpack it (tar xf) and give "
            "dptrace the folder, or pack the traces, compressed as they are, with tar cf or zip -0."
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
        raise TraceError(f"{file.address}: there is no such file in the archive.") from None
    except NotImplementedError as error:
        raise TraceError(f"{file.address}: is packed in a way that can't be read here ({error}); unpack it.") from None
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise TraceError(
            f"{where or file.address}: is no archive that can be read ({error}); was it copied to its end?"
        ) from None


class _DelayedErrorStream(BufferedReader):
    """A stream that gives what it could read before it tells that the rest is damaged."""

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
    """A file in an archive, whose damage is an OSError like any file's."""

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

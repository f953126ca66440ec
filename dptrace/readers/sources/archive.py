"""Traces in a zip or tar archive, read without unpacking to disk."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO

from dptrace.errors import TraceError
from dptrace.readers.sources.source import Source
from dptrace.readers.sources.storage import open_seekable

__all__ = ["is_archive", "members", "open_member"]

_ZIP, _TAR = (".zip",), (".tar",)
_COMPRESSED_TAR = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")

_HARMLESS = 1 << 30
"""Bytes that any member may expand to."""
_EXPANSION = 200
"""How many times its compressed size a larger member may expand to; traces expand about 20 times."""


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


@contextmanager
def open_member(file: Source) -> Iterator[IO[bytes]]:
    """Open a file in an archive; the stream can ``peek``.

    Raises:
        TraceError: the archive or the file in it is missing, damaged, encrypted or a bomb.
    """
    with _opened(file) as contents:
        with _translate_errors(file):
            stream = contents.open(file)
        with stream:
            yield stream


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
    archive = file.outer()
    name = archive.address.lower().split("?")[0]
    if name.endswith(_COMPRESSED_TAR):
        raise TraceError(
            f"{archive.address}: is a compressed tar archive, which has no random access; unpack it (tar xf) and "
            "name the folder, or pack the compressed traces with tar cf or zip -0."
        )
    with ExitStack() as stack:
        whole = stack.enter_context(open_seekable(file))
        contents: _Zip | _Tar
        with _translate_errors(archive):
            if name.endswith(_TAR):
                contents = _Tar(stack.enter_context(tarfile.open(fileobj=whole, mode="r:")))
            else:
                contents = _Zip(stack.enter_context(zipfile.ZipFile(whole)))
        yield contents


@contextmanager
def _translate_errors(file: Source) -> Iterator[None]:
    try:
        yield
    except KeyError:
        raise TraceError(f"{file.address}: no such file in the archive.") from None
    except NotImplementedError as error:
        raise TraceError(f"{file.address}: uses an unsupported compression ({error}); unpack it.") from None
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise TraceError(f"{file.address}: is not a readable archive ({error}); was it copied completely?") from None

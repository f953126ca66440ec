"""Traces behind URLs (``s3://``, ``gs://``, ``https://`` …), streamed through fsspec and never copied to the disk."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import BufferedReader
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from dptrace.errors import DptraceError, MissingExtraError, TraceError
from dptrace.readers.sources.source import Source
from dptrace.readers.sources.url import is_url, redact

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["glob_files", "identity", "is_folder", "list_files", "open_seekable", "open_stream"]

_PREFETCH_BYTES = 4 << 20
"""Bytes fetched while those before them are decoded."""
_BUFFER = 1 << 20
_CONNECT, _SILENCE = 30, 60
"""Seconds that a server may take to answer, and that it may be silent between two bytes."""

_PACKAGES = {
    # The package that reads such URLs, and the extra that brings it.
    **dict.fromkeys(("http", "https"), ("aiohttp", "remote")),
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "remote")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "remote")),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), ("adlfs", "azure")),
    "hf": ("huggingface_hub", "huggingface"),
}


def open_stream(source: Source) -> BinaryIO:
    """Open a file to be read from its beginning to its end, the next bytes being fetched ahead.

    Raises:
        TraceError: it is missing, may not be read, or its server does not answer.
        MissingExtraError: a package is missing that reads such URLs.
    """
    with _translate_errors(source):
        system, path = _file_system(source.place)
        # On the web one answer, taken as it comes, needs no server that gives parts of files.
        stream = system.open(path, "rb", block_size=0) if _on_web(system) else system.open(path, "rb", **_WHOLE_BLOCKS)
    return BufferedReader(_PrefetchStream(stream, source), _BUFFER)


_WHOLE_ONLY = "its server gives whole files only, and an archive is read in parts; copy it here first."
_WHOLE_BLOCKS: dict[str, Any] = {"block_size": _PREFETCH_BYTES, "cache_type": "readahead"}


def open_seekable(source: Source) -> BinaryIO:
    """Open a file to be read here and there, as an archive is.

    Raises:
        TraceError: it is missing, may not be read, or its server does not give parts of files.
        MissingExtraError: a package is missing that reads such URLs.
    """
    with _translate_errors(source):
        system, path = _file_system(source.place)
        stream = system.open(path, "rb", block_size=_BUFFER)
        if not stream.seekable():
            stream.close()
            raise TraceError(f"{source.address}: can't be read here and there: {_WHOLE_ONLY}")
    return BufferedReader(_SeekableStream(stream, source), _BUFFER)


def identity(source: Source) -> tuple[str | int, ...] | None:
    """Give address, size and what else its server says that changes with the file; nothing if it says too little."""
    try:
        system, path = _file_system(source.place)
        info = system.info(path)
        identity_fields = [str(info[key]) for key in _CHANGING if info.get(key)] or [_modified(system, path)]
    except Exception:  # of any file system: then the file is read anew, and what is wrong is told by the reading
        return None
    size = info.get("size")
    return (source.address, size, *identity_fields) if type(size) is int and all(identity_fields) else None


_CHANGING = ("ETag", "etag", "md5Hash", "checksum", "blob_id", "mtime", "LastModified", "last_modified", "updated")


def _modified(system: Any, path: str) -> str:
    with suppress(NotImplementedError):
        return str(system.modified(path).timestamp())
    return ""


def is_folder(url: str) -> bool:
    """Tell a folder, or a prefix that files begin with.

    Raises:
        TraceError: nothing can be learned of it.
        MissingExtraError: a package is missing that reads such URLs.
    """
    with _translate_errors(Source.of(url)):
        system, path = _file_system(url)
        return bool(system.isdir(path))


def list_files(url: str, in_subfolders: bool = False) -> list[str]:
    """Give the URLs of the files in a folder, or of those in the folders in it, in the order of their names.

    Raises:
        TraceError: it can't be listed.
        MissingExtraError: a package is missing that reads such URLs.
    """
    with _translate_errors(Source.of(url)):
        system, path = _file_system(url)
        found = _files(system, path)
        if in_subfolders:
            folders = [entry["name"] for entry in found if entry.get("type") == "directory"]
            found = [entry for folder in folders for entry in _files(system, folder)]
        names = [entry["name"] for entry in found if entry.get("type") != "directory"]
        return sorted(_user_url(url, path, name, system) for name in names)


def _files(system: Any, path: str) -> list[dict[str, Any]]:
    found = system.ls(path, detail=True)
    # A prefix may list itself; on the web, a folder's links point outside it as well.
    return [entry for entry in found if entry["name"].rstrip("/") != path.rstrip("/") and _inside(entry["name"], path)]


def _inside(name: str, path: str) -> bool:
    return name.startswith(path.rstrip("/") + "/") and "?" not in name[len(path) :]


def glob_files(url: str) -> list[str]:
    """Give the URLs of the files that a glob matches, in the order of their names.

    Raises:
        TraceError: nothing can be learned of it.
        MissingExtraError: a package is missing that reads such URLs.
    """
    with _translate_errors(Source.of(url)):
        system, path = _file_system(url)
        if system.exists(path):
            return [url]
        found = system.glob(path, detail=True)
        names = [name for name, info in found.items() if info.get("type") != "directory"]
        stem = re.split(r"[*?\[]", url, maxsplit=1)[0].rpartition("/")[0]
        return sorted(_user_url(stem, system._strip_protocol(stem), name, system) for name in names)


def _user_url(url: str, path: str, name: str, system: Any) -> str:
    """Give the URL of what was found below *url*: what the user typed, with its credentials, and the rest."""
    rest = name[len(path.rstrip("/")) :] if name.startswith(path.rstrip("/") + "/") else None
    if rest is None or is_url(name):
        return name if is_url(name) else str(system.unstrip_protocol(name))
    return url.rstrip("/") + rest


def _file_system(url: str) -> tuple[Any, str]:
    """Give the file system of a URL, and what it calls the file."""
    scheme = url.split("::", 1)[0].split("://", 1)[0].lower()
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingExtraError(f"Reading {scheme}:// needs fsspec", "remote") from None
    try:
        system, path = url_to_fs(url, **_options(scheme))
    except ImportError as error:
        package, extra = _PACKAGES.get(scheme, ("", ""))
        if package:
            raise MissingExtraError(f"Reading {scheme}:// needs {package}", extra) from None
        raise DptraceError(f"{redact(url)}: a package is missing that reads {scheme}://: {error}.") from None
    return system, path


def _options(scheme: str) -> dict[str, Any]:
    if scheme not in ("http", "https"):
        return {}
    try:
        return {"client_kwargs": {"timeout": _timeout()}}
    except ImportError:
        raise MissingExtraError(f"Reading {scheme}:// needs aiohttp", "remote") from None


@lru_cache(maxsize=1)
def _timeout() -> Any:
    from aiohttp import ClientTimeout

    return ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_SILENCE)


def _on_web(system: Any) -> bool:
    return "http" in (system.protocol if isinstance(system.protocol, tuple) else (system.protocol,))


@contextmanager
def _translate_errors(source: Source) -> Iterator[None]:
    """Tell in a sentence what any file system raises, without the secrets that it may have put into its message."""
    try:
        yield
    except DptraceError:
        raise
    except Exception as error:
        raise TraceError(f"{source.address}: {_why(error)}") from None


def _why(error: BaseException) -> str:
    # On the web fsspec takes every failure for a missing file, and keeps the true one behind it.
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    status = getattr(error, "status", None) or getattr(error, "code", None)
    if isinstance(error, FileNotFoundError) or status in (404, "404"):
        return "there is no such file, or no right to see it."
    if isinstance(error, IsADirectoryError):
        return "is a folder, not a trace file."
    kind, text = type(error).__name__, _redact_urls(str(error))
    if "range requests" in text:
        return f"can't be read here and there: {_WHOLE_ONLY}"
    if "Payload" in kind or isinstance(error, ConnectionResetError):
        return "its server, or the network, ended the transfer. Try again."
    if isinstance(error, PermissionError) or status in (401, 403) or re.search("Credential|Forbidden|Denied", kind):
        status_text = f"status {status}" if status else text or kind
        return f"may not be read ({status_text}); are the credentials for it set here?"
    if isinstance(error, TimeoutError) or "Timeout" in kind:
        return "its server does not answer; is the network up? Try again later."
    if re.search("Connect|Gaierror|DNS|Disconnected|Network", kind, re.IGNORECASE):
        return f"can't be reached: {text or kind}. Is the address right, and the network up?"
    if isinstance(status, int) and status >= 400:
        return f"its server refuses it (status {status}); try again later, or look at the address."
    return f"can't be read: {text or kind}."


_URLS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"<>)]+", re.IGNORECASE)


def _redact_urls(text: str) -> str:
    return _URLS.sub(lambda found: redact(found.group()), text).replace("\n", " ").strip().rstrip(".")[:300]


class _PrefetchStream(io.RawIOBase):
    """A stream whose next bytes are fetched while those before them are used."""

    def __init__(self, stream: IO[bytes], source: Source) -> None:
        self._stream, self._source = stream, source
        self._pool = ThreadPoolExecutor(1, "dptrace-fetch")
        self._next: Future[bytes] = self._pool.submit(self._stream.read, _BUFFER)
        self._data = memoryview(b"")
        self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        if not self._data:
            self._data = memoryview(self._fetched())
            if self._data:
                self._next = self._pool.submit(self._stream.read, _PREFETCH_BYTES)
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._data))
        view[:count], self._data = self._data[:count], self._data[count:]
        self._given += count
        return count

    def _fetched(self) -> bytes:
        try:
            return self._next.result()
        except Exception as error:
            # No OSError: that would be taken for a file that ends here.
            why = _why(error)
            raise TraceError(f"{self._source.address}: broke off after {self._given:,} bytes: {why}") from None

    def close(self) -> None:
        if not self.closed:
            self._pool.shutdown(wait=True, cancel_futures=True)
            with suppress(Exception):
                self._stream.close()
        super().close()


class _SeekableStream(io.RawIOBase):
    """A stream that can seek, and tells in a sentence what goes wrong."""

    def __init__(self, stream: IO[bytes], source: Source) -> None:
        self._stream, self._source = stream, source

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        with _translate_errors(self._source):
            data = self._stream.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            with suppress(Exception):
                self._stream.close()
        super().close()

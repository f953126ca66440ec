"""Traces at URLs (``s3://``, ``gs://``, ``https://`` …), streamed through fsspec and never copied to disk.

Each function raises a TraceError where a file or folder is missing, access is denied, or the server does not answer,
and a MissingExtraError where the package for such URLs is not installed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from dptrace.errors import AccessError, DptraceError, MissingExtraError, TraceError
from dptrace.readers.source import is_url, redact

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


_AHEAD: dict[str, Any] = {"block_size": 4 << 20, "cache_type": "background", "cache_options": {"maxblocks": 2}}
"""fsspec fetches the next block while this one is decoded."""
_BUFFER = 1 << 20
"""Bytes that are asked for at a time."""
_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 30, 60
"""Until a server answers, and between two bytes."""

_PACKAGES = {
    # The package that reads such URLs, and the extra that installs it.
    **dict.fromkeys(("http", "https"), ("aiohttp", "remote")),
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "remote")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "remote")),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), ("adlfs", "azure")),
    "hf": ("huggingface_hub", "huggingface"),
}


_WHOLE_ONLY = "its server sends whole files only, and an archive needs random access; download it first."


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at a URL."""

    address: str
    """The URL without secrets."""
    url: str = field(repr=False)

    def open(self) -> BinaryIO:
        """Open the file for reading from start to end; the next bytes are fetched ahead."""
        with _file_system(self.url) as (system, path):
            # Over HTTP, one response read as a stream needs no server with range requests.
            stream = system.open(path, "rb", **({"block_size": 0} if "http" in system.protocol else _AHEAD))
        return BufferedReader(_RemoteStream(stream, self.address), _BUFFER)

    def open_seekable(self) -> BinaryIO:
        """Open the file for random access, which an archive needs, and which a server of whole files refuses."""
        with _file_system(self.url) as (system, path):
            stream = system.open(path, "rb", block_size=_BUFFER)
            if not stream.seekable():
                stream.close()
                raise TraceError(f"{self.address}: can't be read: {_WHOLE_ONLY}")
        return BufferedReader(_RemoteStream(stream, self.address), _BUFFER)

    def identity(self) -> tuple[str | int, ...] | None:
        """Return address, size and other values that change with the file; None if the server reports too few."""
        try:
            with _file_system(self.url) as (system, path):
                info = system.info(path)
                changing = [str(info[key]) for key in _CHANGING if info.get(key)]
                changing = changing or [str(system.modified(path).timestamp())]
        except DptraceError:  # the file is then not cached, and reading it reports the error
            return None
        size = info.get("size")
        return (self.address, size, *changing) if type(size) is int else None


_CHANGING = ("ETag", "etag", "md5Hash", "checksum", "blob_id", "mtime", "LastModified", "last_modified", "updated")


def is_folder(url: str) -> bool:
    """Return whether a URL is a folder, or a prefix of files."""
    with _file_system(url) as (system, path):
        return bool(system.isdir(path))


def list_files(url: str, in_subfolders: bool = False) -> list[str]:
    """List the URLs of the files in a folder, or in its subfolders, sorted by name."""
    with _file_system(url) as (system, path):
        found = _files(system, path)
        if in_subfolders:
            folders = [entry["name"] for entry in found if entry.get("type") == "directory"]
            found = [entry for folder in folders for entry in _files(system, folder)]
        names = [entry["name"] for entry in found if entry.get("type") != "directory"]
        return sorted(_user_url(url, path, name, system) for name in names)


def _files(system: Any, path: str) -> list[dict[str, Any]]:
    # A prefix may list itself; over HTTP, a folder's links may point outside it.
    folder = path.rstrip("/") + "/"
    found = [entry for entry in system.ls(path, detail=True) if entry["name"].startswith(folder)]
    return [
        entry for entry in found if entry["name"].rstrip("/") + "/" != folder and "?" not in entry["name"][len(path) :]
    ]


def glob_files(url: str) -> list[str]:
    """List the URLs of the files that a glob matches, sorted by name."""
    with _file_system(url) as (system, path):
        if system.exists(path):
            return [url]
        found = system.glob(path, detail=True)
        names = [name for name, info in found.items() if info.get("type") != "directory"]
        stem = re.split(r"[*?\[]", url, maxsplit=1)[0].rpartition("/")[0]
        return sorted(_user_url(stem, system._strip_protocol(stem), name, system) for name in names)


def _user_url(url: str, path: str, name: str, system: Any) -> str:
    """Return the URL of a file below *url*: what the user typed, with its credentials, and the rest."""
    rest = name[len(path.rstrip("/")) :] if name.startswith(path.rstrip("/") + "/") else None
    if rest is None or is_url(name):
        return name if is_url(name) else str(system.unstrip_protocol(name))
    return url.rstrip("/") + rest


@contextmanager
def _file_system(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of a URL, and the file's path in it.

    Exceptions of any file system become a TraceError without the secrets in their messages.
    """
    try:
        yield _resolved(url)
    except DptraceError:
        raise
    except Exception as error:
        kind = AccessError if _is_denied(_cause(error)) else TraceError
        raise kind(f"{redact(url)}: {_why(error)}") from None


def _resolved(url: str) -> tuple[Any, str]:
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
        raise DptraceError(f"{redact(url)}: no package for {scheme}:// is installed: {error}.") from None
    return system, path


def _options(scheme: str) -> dict[str, Any]:
    if scheme not in ("http", "https"):
        return {}
    try:
        from aiohttp import ClientTimeout
    except ImportError:
        raise MissingExtraError(f"Reading {scheme}:// needs aiohttp", "remote") from None
    return {
        "client_kwargs": {
            "timeout": ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_READ_TIMEOUT_S)
        }
    }


_BY_NAME = {
    "IsADirectoryError": "is a folder, not a trace file.",
    "NoSuchBucket": "no such bucket; check its name.",
    "TooManyRedirects": "its address leads from one to another without end; check it, and that you are signed in.",
}


def _cause(error: BaseException) -> BaseException:
    # Over HTTP fsspec reports every failure as a missing file, with the real one as its cause.
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _status(error: BaseException) -> Any:
    if type(error).__name__ in _BY_NAME:  # aiohttp warns where one asks an error without a status for its code
        return None
    return getattr(error, "status", None) or getattr(error, "code", None)


def _is_denied(error: BaseException) -> bool:
    named = re.search("Credential|Forbidden|Denied", type(error).__name__)
    return isinstance(error, PermissionError) or _status(error) in (401, 403) or named is not None


def _why(error: BaseException) -> str:
    error = _cause(error)
    if type(error).__name__ in _BY_NAME:
        return _BY_NAME[type(error).__name__]
    status = _status(error)
    if isinstance(error, FileNotFoundError) or status in (404, "404"):
        return "no such file, or no permission to see it."
    kind, text = type(error).__name__, _redact_urls(str(error))
    if "range requests" in text:
        return f"can't be read: {_WHOLE_ONLY}"
    if "Payload" in kind or isinstance(error, ConnectionResetError):
        return "the server or the network ended the transfer; try again."
    if _is_denied(error):
        status_text = f"status {status}" if status else text or kind
        return f"access denied ({status_text}); are its credentials set?"
    if isinstance(error, TimeoutError) or "Timeout" in kind:
        return "the server does not answer; check the network, or try again later."
    if re.search("Connect|Gaierror|DNS|Disconnected|Network", kind, re.IGNORECASE):
        return f"can't be reached: {text or kind}. Check the address and the network."
    if isinstance(status, int) and status >= 400:
        return f"the server refuses the request (status {status}); check the address, or try again later."
    return f"can't be read: {text or kind}."


_URLS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"<>)]+", re.IGNORECASE)


def _redact_urls(text: str) -> str:
    return _URLS.sub(lambda match: redact(match.group()), text).replace("\n", " ").strip().rstrip(".")[:300]


class _RemoteStream(io.RawIOBase):
    """A file of any file system as a raw stream, whose failed reads are TraceErrors."""

    def __init__(self, file: IO[bytes], address: str) -> None:
        self._file, self._address, self._received = file, address, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        try:
            data = self._file.read(len(view))
        except Exception as error:
            # Not an OSError, which would count as the end of the file.
            why = _why(error)
            if _WHOLE_ONLY not in why and self._received:
                why = f"transfer ended after {self._received:,} bytes: {why}"
            raise TraceError(f"{self._address}: {why}") from None
        view[: len(data)] = data
        self._received += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            with suppress(Exception):
                self._file.close()
        super().close()

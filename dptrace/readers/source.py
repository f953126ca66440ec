"""The address of a trace file: a path, a URL, a member of an archive, or standard input."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePath
from urllib.parse import unquote, urlsplit

from dptrace.errors import DptraceError

# Addresses: URL or path, last part, and the text to show without secrets.

# fsspec chains URLs with two colons: simplecache::s3://bucket/rank0.json
_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*::)*[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_USER = re.compile(r"(://)([^/?#\s]*@)")
_QUERY = re.compile(r"\?([^#\s!]*)")
_WEB = re.compile(r"(?:https?|ftp|sftp|ssh|smb|webdav)$", re.IGNORECASE)
_SAFE_QUERY_KEYS = frozenset({"alt", "download", "file", "filename", "name", "path", "rank", "revision", "versionid"})
"""Query parameters whose values are shown, since they name a file; any other may be a secret."""
_HIDDEN = "…"
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_ .]?(\d+)", re.IGNORECASE)


def is_url(text: str) -> bool:
    """Return whether a text is a URL, or a chain of URLs, and not a path."""
    return _URL.match(text) is not None


def redact(text: str) -> str:
    """Return an address without passwords, signatures and tokens; a path unchanged.

    >>> redact("https://me:secret@host/rank0.json?X-Amz-Signature=abc&file=a")
    'https://host/rank0.json?X-Amz-Signature=…&file=a'
    """
    if not is_url(text):
        return text
    web = text.lower().startswith("http")
    text = _USER.sub(_public, text)
    text = _QUERY.sub(lambda match: _without_values(match.group(1), web), text)
    return re.sub(r"#[^!]*", "", text) if web else text


def _public(match: re.Match[str]) -> str:
    # In abfs://container@account/path the part before the @ is a name; a password would follow a colon.
    user, scheme = match.group(2), match.string[: match.start()]
    return match.group(1) + ("" if ":" in user or _WEB.search(scheme) else user)


def _without_values(query: str, web: bool) -> str:
    if "=" not in query:
        # Outside the web the question mark is a wildcard: rank?.json
        return f"?{_HIDDEN}" if web else f"?{query}"
    parts = []
    for part in query.split("&"):
        key, equals, _ = part.partition("=")
        parts.append(part if key.lower() in _SAFE_QUERY_KEYS else key + (f"={_HIDDEN}" if equals else ""))
    return "?" + "&".join(parts)


@lru_cache(maxsize=1 << 14)  # asked again and again for each file of a run
def last_part(address: str) -> str:
    """Return the last part of a path or URL, without the URL's query."""
    if not is_url(address):
        return PurePath(address).name
    link = next(link for link in address.split("::") if "://" in link)
    path = link.split("://", 1)[1].rstrip("/")
    if link.lower().startswith("http"):
        path = re.split(r"[?#]", path)[0].rstrip("/")
    return unquote(path.rsplit("/", 1)[-1])


def rank_in_name(address: str) -> int | None:
    """Return the rank in a file's name; None without one."""
    found = _RANK_IN_NAME.findall(file_name(address))
    return int(found[-1]) if found and len(found[-1]) < 7 else None


def file_name(address: str) -> str:
    """Return the last part of a trace's address, or of its name in an archive."""
    return last_part(address).rpartition("!")[2]


def from_file_url(url: str) -> str | None:
    """Return the path of a ``file://`` URL; None for any other URL."""
    parts = urlsplit(url)
    if parts.scheme.lower() not in ("file", "local"):
        return None
    from urllib.request import url2pathname  # imports all of HTTP

    # Question marks and # are taken as characters of the path, unlike in other URLs.
    return url2pathname(url.split("://", 1)[1].removeprefix("localhost"))


STDIN = "-"
"""The argument that means standard input."""


@dataclass(frozen=True, slots=True)
class Source:
    """One trace file; small, so that another process or machine can receive and open it."""

    address: str
    """The address in messages: a path, or a URL without secrets, with ``!MEMBER`` in an archive."""
    place: str = field(default="", repr=False)
    """What is opened, if it differs from the address: a URL with credentials, an archive."""
    member: str = ""
    """The file's name within the archive at *place*."""
    part: str = ""
    """The rank to read of a file that holds several: ``rank 1``; the address ends with it, after a ``!``."""
    windows: tuple[Source, ...] = ()
    """The files of a rank's windows, in the order of time, which are read as one; the address is that of the first."""

    @classmethod
    def of_windows(cls, files: Sequence[Source]) -> Source:
        """Return the source of all windows of a rank, of which there is at least one."""
        return replace(files[0], windows=tuple(files)) if len(files) > 1 else files[0]

    @classmethod
    def of(cls, file: Source | Path | str) -> Source:
        """Make a source from a path, a URL or ``-`` (standard input)."""
        if isinstance(file, Source):
            return file
        text = str(file)
        if is_url(text):
            return cls(redact(text), text)
        return cls("standard input", STDIN) if text == STDIN else cls(text)

    def archive_member(self, member: str) -> Source:
        """Return the source of a file in this archive."""
        return Source(f"{self.address}!{member}", self.place or self.address, member)

    def of_rank(self, part: str) -> Source:
        """Return the source of one rank in this file."""
        return replace(self, address=f"{self.address}!{part}", place=self.container, part=part)

    def whole(self) -> Source:
        """Return the file, of which this source may be one rank."""
        return replace(self, address=self.address.removesuffix(f"!{self.part}"), part="") if self.part else self

    @property
    def name(self) -> str:
        """The last part of the address."""
        if self.part:
            return f"{self.whole().name}!{self.part}"
        return PurePath(self.member).name if self.member else last_part(self.address)

    @property
    def remote(self) -> bool:
        """Whether a URL names the file."""
        return is_url(self.container)

    @property
    def single_pass(self) -> bool:
        """Whether the bytes can be read only once, and only by this process: a pipe, standard input."""
        if self.member or self.remote:
            return False
        try:
            return self.place == STDIN or (Path(self.address).exists() and not Path(self.address).is_file())
        except OSError:
            return False

    @property
    def container(self) -> str:
        """The path or URL that is opened: the archive of a member, else the file itself."""
        return self.place or self.address

    def absolute(self) -> Source:
        """Return the same file by an absolute path, for a process in another working folder.

        Raises:
            DptraceError: the file is a pipe, which no other process can read.
        """
        if self.remote:
            return self
        if self.single_pass and not Path(self.address).is_dir():
            raise DptraceError(f"{self.address}: is a pipe, which other processes can't read; save it as a file.")
        whole = Source(os.path.abspath(self.container))
        whole = whole.archive_member(self.member) if self.member else whole
        return whole.of_rank(self.part) if self.part else whole

"""Addresses: URL or path, last part, and the text to show without secrets."""

from __future__ import annotations

import re
from pathlib import PurePath
from urllib.parse import unquote, urlsplit

__all__ = ["from_file_url", "is_url", "last_part", "redact"]

# fsspec chains URLs with two colons: simplecache::s3://bucket/rank0.json
_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*::)*[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_USER = re.compile(r"(://)([^/?#\s]*@)")
_QUERY = re.compile(r"\?([^#\s!]*)")
_WEB = re.compile(r"(?:https?|ftp|sftp|ssh|smb|webdav)$", re.IGNORECASE)
_SAFE_QUERY_KEYS = frozenset({"alt", "download", "file", "filename", "name", "path", "rank", "revision", "versionid"})
"""Query parameters whose values are shown, since they name a file; any other may be a secret."""
_HIDDEN = "…"


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


def last_part(address: str) -> str:
    """Return the last part of a path or URL, without the URL's query."""
    if not is_url(address):
        return PurePath(address).name
    link = next(link for link in address.split("::") if "://" in link)
    path = link.split("://", 1)[1].rstrip("/")
    if link.lower().startswith("http"):
        path = re.split(r"[?#]", path)[0].rstrip("/")
    return unquote(path.rsplit("/", 1)[-1])


def from_file_url(url: str) -> str | None:
    """Return the path of a ``file://`` URL; None for any other URL."""
    parts = urlsplit(url)
    if parts.scheme.lower() not in ("file", "local"):
        return None
    from urllib.request import url2pathname  # imports all of HTTP

    # Question marks and # are taken as characters of the path, unlike in other URLs.
    return url2pathname(url.split("://", 1)[1].removeprefix("localhost"))

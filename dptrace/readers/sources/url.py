"""What an address says: whether it is a URL, its last part, and how it is shown without the secrets in it."""

from __future__ import annotations

import re
from pathlib import PurePath
from urllib.parse import unquote, urlsplit

__all__ = ["from_file_url", "is_url", "last_part", "redact"]

# fsspec's links of a chain are parted by two colons: simplecache::s3://bucket/rank0.json
_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*::)*[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_USER = re.compile(r"(://)([^/?#\s]*@)")
_QUERY = re.compile(r"\?([^#\s!]*)")
_WEB = re.compile(r"(?:https?|ftp|sftp|ssh|smb|webdav)$", re.IGNORECASE)
_SAFE_QUERY_KEYS = frozenset({"alt", "download", "file", "filename", "name", "path", "rank", "revision", "versionid"})
"""Parameters of a query whose values name a file; any other may be a key to it."""
_HIDDEN = "…"


def is_url(text: str) -> bool:
    """Tell a URL, or a chain of them, from a path."""
    return _URL.match(text) is not None


def redact(text: str) -> str:
    """Give an address without passwords, signatures and tokens; a path as it is.

    >>> shown("https://me:secret@host/rank0.json?X-Amz-Signature=abc&file=a")
    'https://host/rank0.json?X-Amz-Signature=…&file=a'
    """
    if not is_url(text):
        return text
    web = text.lower().startswith("http")
    text = _USER.sub(_public, text)
    text = _QUERY.sub(lambda found: _without_values(found.group(1), web), text)
    return re.sub(r"#[^!]*", "", text) if web else text


def _public(found: re.Match[str]) -> str:
    # In abfs://container@account/path what stands before the @ is a name; a password follows a colon.
    user, scheme = found.group(2), found.string[: found.start()]
    return found.group(1) + ("" if ":" in user or _WEB.search(scheme) else user)


def _without_values(query: str, web: bool) -> str:
    if "=" not in query:
        # Elsewhere than on the web the question mark stands for a letter: rank?.json
        return f"?{_HIDDEN}" if web else f"?{query}"
    parts = []
    for part in query.split("&"):
        key, equals, _ = part.partition("=")
        parts.append(part if key.lower() in _SAFE_QUERY_KEYS else key + (f"={_HIDDEN}" if equals else ""))
    return "?" + "&".join(parts)


def last_part(address: str) -> str:
    """Give the last part of a path or URL, without the query of the latter."""
    if not is_url(address):
        return PurePath(address).name
    link = next(link for link in address.split("::") if "://" in link)
    path = link.split("://", 1)[1].rstrip("/")
    if link.lower().startswith("http"):
        path = re.split(r"[?#]", path)[0].rstrip("/")
    return unquote(path.rsplit("/", 1)[-1])


def from_file_url(url: str) -> str | None:
    """Give the path that a ``file://`` URL names; nothing for any other."""
    parts = urlsplit(url)
    if parts.scheme.lower() not in ("file", "local"):
        return None
    from urllib.request import url2pathname  # brings the whole of HTTP along

    # A question mark or a # in a path is a letter of it, whatever the rules of URLs say.
    return url2pathname(url.split("://", 1)[1].removeprefix("localhost"))

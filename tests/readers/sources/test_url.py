"""Addresses, and how they are shown."""

from __future__ import annotations

import pytest

from dptrace.readers.sources.url import from_file_url, is_url, last_part, redact


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/run", True),
        ("simplecache::https://host/a.json", True),
        ("runs/rank0.json", False),
        ("C:/runs/rank0.json", False),
        ("a::b", False),
    ],
)
def test_urls_and_paths_are_separated(text: str, url: bool) -> None:
    """A scheme of at least two letters makes a URL; a drive letter does not."""
    assert url == is_url(text)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("runs/a?b=c@d", "runs/a?b=c@d"),
        ("https://me:hush@host/r.json", "https://host/r.json"),
        ("https://hush@host/r.json", "https://host/r.json"),
        ("ftp://me:hu@sh@host/r.json", "ftp://host/r.json"),
        ("https://host/r.json?X-Amz-Signature=hush&file=r.json", "https://host/r.json?X-Amz-Signature=…&file=r.json"),
        ("https://host/r.json?hush", "https://host/r.json?…"),
        ("https://host/r.json#access_token=hush", "https://host/r.json"),
        ("https://host/all.zip?sig=hush!rank0.json", "https://host/all.zip?sig=…!rank0.json"),
        ("simplecache::https://me:hush@host/r.json", "simplecache::https://host/r.json"),
        ("zip://r.json::https://host/all.zip?sig=hush", "zip://r.json::https://host/all.zip?sig=…"),
        (
            "abfs://container@account.dfs.core.windows.net/r.json",
            "abfs://container@account.dfs.core.windows.net/r.json",
        ),
        ("s3://bucket/run#1/rank?.json", "s3://bucket/run#1/rank?.json"),
    ],
)
def test_secrets_are_never_shown(text: str, clean: str) -> None:
    """Passwords, signatures and tokens are removed; the parts that name the file are kept."""
    assert clean == redact(text)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("runs/rank0.json", "rank0.json"),
        ("s3://bucket/run/rank0.json.gz", "rank0.json.gz"),
        ("https://host/a%20b/rank%5B0%5D.json?x=y/z", "rank[0].json"),
        ("simplecache::s3://bucket/rank1.json", "rank1.json"),
        ("https://host/run/", "run"),
    ],
)
def test_the_last_part_is_the_file_name(address: str, name: str) -> None:
    """Whatever precedes it and, over HTTP, follows it."""
    assert name == last_part(address)


def test_a_file_url_is_a_path() -> None:
    """Blanks may be escaped; other schemes return None."""
    assert "/runs/a b/rank0.json" == from_file_url("file:///runs/a%20b/rank0.json")
    assert from_file_url("s3://bucket/x") is None

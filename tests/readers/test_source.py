"""A trace file's address, bytes and identity."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from dptrace.errors import DptraceError, TraceError
from dptrace.readers.source import Source, from_file_url, is_url, last_part, redact
from dptrace.readers.storage import file_identity, open_source


def test_bytes_are_those_of_the_file_and_peeking_takes_none(tmp_path: Path) -> None:
    """Peeked bytes are read again."""
    path = tmp_path / "rank3.json"
    path.write_bytes(b"0123456789")

    with open_source(Source.of(path)) as stream:
        assert stream.peek(4)[:4] == b"0123"
        assert stream.read() == b"0123456789"


@pytest.mark.parametrize("name", ["missing.json", ".", "a\0b"])
def test_what_cannot_be_opened_is_named(name: str, tmp_path: Path) -> None:
    """Errors of the operating system become TraceErrors."""
    with (
        pytest.raises(TraceError, match=r"missing\.json|folder|can't be read"),
        open_source(Source.of(tmp_path / name)),
    ):
        pass


def test_identity_changes_with_the_file(tmp_path: Path) -> None:
    """A rewritten file has a new identity under any name; only files have one."""
    path = tmp_path / "t.json"
    path.write_bytes(b"1")
    os.utime(path, ns=(1, 1))
    before = file_identity(Source.of(path))
    (tmp_path / "link.json").symlink_to(path)

    assert before is not None
    assert before == file_identity(Source.of(tmp_path / "link.json"))
    os.utime(path, ns=(1, 2))
    assert before != file_identity(Source.of(path))
    assert file_identity(Source.of(tmp_path)) is None
    assert file_identity(Source.of(tmp_path / "missing")) is None


def test_what_another_process_opens_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path becomes absolute, also an archive's; a URL does not change; a pipe is an error."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.json")

    assert Source(str(tmp_path / "a.json")) == Source("a.json").absolute()
    assert f"{tmp_path}/a.zip!b.json" == Source("a.zip").archive_member("b.json").absolute().address
    assert Source.of("s3://b/a.json") == Source.of("s3://b/a.json").absolute()
    for single_pass in (Source.of("-"), Source("pipe.json")):
        assert single_pass.single_pass
        with pytest.raises(DptraceError, match="is a pipe"):
            single_pass.absolute()


def test_secrets_are_neither_in_the_address_nor_in_what_is_printed() -> None:
    """They are kept to open the file."""
    source = Source.of("https://me:hush@host/all.zip?sig=hush").archive_member("rank0.json")

    assert "https://host/all.zip?sig=…!rank0.json" == source.address
    assert "hush" not in repr(source)
    assert "hush" in source.place
    assert ("rank0.json", True, False) == (source.name, source.remote, source.single_pass)


def test_standard_input_is_read_once_and_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes can be peeked at like a file's; a closed stdin or a terminal is an error."""
    (tmp_path / "in").write_bytes(b"0123")
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with open_source(Source.of("-")) as stream:
            assert (b"01", b"0123") == (stream.peek(2)[:2], stream.read())
        assert not stdin.closed
        assert file_identity(Source.of("-")) is None
    with pytest.raises(TraceError, match="standard input: is closed"), open_source(Source.of("-")):
        pass
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"9")))
    with open_source(Source.of("-")) as stream:
        assert b"9" == stream.read()


# Addresses, and how they are shown.


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

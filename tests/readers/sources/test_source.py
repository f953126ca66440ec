"""A trace file's address, bytes and identity."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from dptrace.errors import DptraceError, TraceError
from dptrace.readers.sources.open import open_source
from dptrace.readers.sources.source import Source
from dptrace.readers.sources.storage import file_identity


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

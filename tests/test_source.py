"""A trace file's address, bytes and identity."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dptrace.errors import TraceError
from dptrace.source import Source, peeked


def test_bytes_are_those_of_the_file_and_peeking_takes_none(tmp_path: Path) -> None:
    """What was peeked at is read again."""
    path = tmp_path / "rank3.json"
    path.write_bytes(b"0123456789")

    with Source.of(path).open() as stream:
        assert peeked(stream, 4) == b"0123"
        assert stream.read() == b"0123456789"


@pytest.mark.parametrize("name", ["missing.json", ".", "a\0b"])
def test_what_cannot_be_opened_is_told_with_its_name(name: str, tmp_path: Path) -> None:
    """No error of the operating system comes through."""
    with pytest.raises(TraceError, match=r"missing\.json|folder|can't be read"):
        Source.of(tmp_path / name).open()


def test_identity_changes_with_the_file(tmp_path: Path) -> None:
    """A file that was written again is another one, however it is named; what is no file has no identity."""
    path = tmp_path / "t.json"
    path.write_bytes(b"1")
    os.utime(path, ns=(1, 1))
    before = Source.of(path).identity()
    (tmp_path / "link.json").symlink_to(path)

    assert before is not None
    assert before == Source.of(tmp_path / "link.json").identity()
    os.utime(path, ns=(1, 2))
    assert before != Source.of(path).identity()
    assert Source.of(tmp_path).identity() is None
    assert Source.of(tmp_path / "missing").identity() is None

"""The table of formats: what finds and reads a trace file of each."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import dptrace
from dptrace.errors import TraceError
from dptrace.readers import formats
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.source import Source
from dptrace.readers.stream import ChunkedStream, EventPiece
from tests.support.kineto_files import KinetoFile


def test_a_line_of_the_table_and_a_module_add_a_format(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reader gets the first bytes, and its pieces are read as any other's."""
    inner = KinetoFile(rank=3).op("aten::add", 1, 2).write(tmp_path / "inner.json").read_bytes()
    (tmp_path / "t.mine").write_bytes(b"MINE" + inner)

    def pieces(source: Source, start: bytes, chunks: ChunkedStream) -> Iterator[EventPiece]:
        assert ("t.mine", b"MINE") == (source.name, start[:4])
        head, bracket, rest = start[4:].partition(b'"traceEvents": [')
        yield EventPiece(rest, head + bracket, b"", last=True)

    module = ModuleType("mine")
    module.__dict__["pieces"] = pieces
    monkeypatch.setitem(sys.modules, "mine", module)
    mine = formats.Format((".mine",), lambda start: start.startswith(b"MINE"), "mine")
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, mine))
    trace = read_trace(tmp_path / "t.mine")

    assert (3, ("aten::add",)) == (trace.rank, trace.names)
    assert (".mine", ".mine.gz") == mine.suffixes


def test_no_two_formats_share_a_suffix() -> None:
    """A file's name names one format at most."""
    assert len(formats.TRACE_SUFFIXES) == len(set(formats.TRACE_SUFFIXES))


@pytest.mark.parametrize("name", ["job.nsys-rep", "job.QDREP"])
def test_a_report_of_nsight_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nsys is not here, the error says how to export it; in a folder, too."""
    monkeypatch.setenv("PATH", "")
    (tmp_path / name).write_bytes(b"\x0a\x04\0\1")

    for path in (tmp_path / name, tmp_path):
        with pytest.raises(TraceError, match=rf"{name}: .*Nsight.* nsys export"):
            dptrace.open(path)


def test_a_packed_export_of_nsight_is_named(tmp_path: Path) -> None:
    """SQLite can't read it: the error says to unpack it."""
    (tmp_path / "job.sqlite.gz").write_bytes(gzip.compress(b"SQLite format 3\0"))

    with pytest.raises(TraceError, match=r"job\.sqlite\.gz: .*unpack"):
        dptrace.open(tmp_path / "job.sqlite.gz")

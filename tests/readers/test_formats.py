"""The table of formats: what finds and reads a trace file of each."""

from __future__ import annotations

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
from tests.support.real_traces import needs_real_traces, real


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


@pytest.mark.parametrize("name", ["job.nsys-rep", "job.QDREP", "job.sqlite", "copied"])
def test_a_report_of_nsight_is_named(name: str, tmp_path: Path) -> None:
    """By its name or its first bytes; in a folder, too."""
    (tmp_path / name).write_bytes(b"SQLite format 3\0" if name == "copied" else b"\x0a\x04\0\1")

    for path in (tmp_path / name, *([] if name == "copied" else [tmp_path])):
        with pytest.raises(TraceError, match=rf"{name}: .*Nsight"):
            dptrace.open(path)


@needs_real_traces
def test_a_real_export_of_nsight_is_named() -> None:
    """A database of nsys export."""
    with pytest.raises(TraceError, match="Nsight"):
        read_trace(Path(real("nsys/h100_2gpu_1s.sqlite")))

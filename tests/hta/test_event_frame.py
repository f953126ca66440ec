"""Event frames: rows, columns, dtypes and repairs; test_trace_analysis.py compares them with HTA's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.errors import TraceError
from dptrace.hta.event_frame import ArgColumn, read_event_frame
from tests.support.kineto_files import KinetoFile

ARGUMENTS = (ArgColumn("stream", "stream", -1), ArgColumn("shape", "Input Dims", "-1"))


def test_a_row_for_each_event_with_a_category_and_a_duration(tmp_path: Path) -> None:
    """Metadata and flows leave only gaps in the index; args and names become columns."""
    file = KinetoFile(rank=3)
    file.events.append({"ph": "M", "name": "process_name", "pid": 10, "tid": 0, "ts": 0, "args": {"name": "python"}})
    file.event("cpu_op", "aten::add", 1, 4, 1, **{"Input Dims": [[2, 3], []]})
    file.events.append({"ph": "s", "cat": "ac2g", "name": "ac2g", "pid": 10, "tid": 1, "ts": 2, "id": 1})
    file.kernel("gemm", 5, 9, launch=None, stream=7)

    wide = read_event_frame(file.write(tmp_path / "t.json"), ARGUMENTS)

    assert [1, 3] == wide.frame.index.tolist() == wide.frame["index"].tolist()
    assert ["aten::add", "gemm"] == [wide.symbols[i] for i in wide.frame["name"]]
    assert ["cpu_op", "kernel"] == [wide.symbols[i] for i in wide.frame["cat"]]
    assert [-1, 7] == wide.frame["stream"].tolist()
    assert [[[2, 3], []], "-1"] == wide.frame["shape"].tolist()
    assert [1, 5] == wide.frame["ts"].tolist()
    assert 3 == wide.rank
    assert {"baseTimeNanoseconds", "distributedInfo"} == wide.metadata.keys()


def test_fractions_are_rounded_out_of_an_event(tmp_path: Path) -> None:
    """Starts go up and ends go down, so that an event within one µs gets a negative duration; or they stay."""
    file = KinetoFile().op("aten::add", 1.25, 4.75).op("aten::mul", 5.25, 5.75).write(tmp_path / "t.json")

    rounded, exact = read_event_frame(file, ARGUMENTS).frame, read_event_frame(file, ARGUMENTS, round_out=False).frame

    assert [(2, 2), (6, -1)] == list(zip(rounded["ts"], rounded["dur"], strict=True))
    assert [(1.25, 3.5), (5.25, 0.5)] == list(zip(exact["ts"], exact["dur"], strict=True))
    whole = read_event_frame(KinetoFile().op("aten::add", 1000, 1004).write(tmp_path / "w.json"), ARGUMENTS).frame
    assert ["int16", "int8"] == [str(whole[column].dtype) for column in ("ts", "dur")]


def test_a_stream_that_is_an_address_is_none(tmp_path: Path) -> None:
    """HIP copies give the stream of their launch in hex."""
    file = KinetoFile().event("hip_runtime", "hipMemcpyAsync", 0, 1, stream="0x55d0").kernel("gemm", 2, 3, None)

    assert [-1, 7] == read_event_frame(file.write(tmp_path / "t.json"), ARGUMENTS).frame["stream"].tolist()


def test_counters_become_columns(tmp_path: Path) -> None:
    """Each CUPTI counter is a column, -1 where nothing was counted."""
    file = KinetoFile().op("aten::add", 0, 1)
    file.event("cuda_profiler_range", "gemm", 2, 3, smsp__inst=12, dram__bytes=4.5)

    frame = read_event_frame(file.write(tmp_path / "t.json"), ARGUMENTS).frame

    assert [-1, 12] == frame["smsp__inst"].tolist()
    assert [-1, 4.5] == frame["dram__bytes"].tolist()


def test_a_file_without_events_is_an_error(tmp_path: Path) -> None:
    """The message names the file."""
    path = KinetoFile().write(tmp_path / "t.json")

    with pytest.raises(TraceError, match=r"t\.json: .*no event"):
        read_event_frame(path, ARGUMENTS)

"""The reader: exact times, quirks of files, and damage."""

from __future__ import annotations

import gzip
import math
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from dptrace.analysis.per_gpu.split import split
from dptrace.commands.shared.main import cli
from dptrace.core.gpu import GpuProperties
from dptrace.core.notes import RECORDS
from dptrace.errors import DptraceError, TraceError
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.trace import Category, CommArgs, Trace
from dptrace.timeline.build import build_timelines
from tests.support.kineto_files import BASE_NS, KinetoFile, training_step
from tests.support.real_traces import needs_real_traces, real_files


def test_times_are_those_of_the_decimal_text(tmp_path: Path) -> None:
    """Epoch µs with three decimals, which no double holds, are exact to the nanosecond."""
    for start in ("1712195495519689.047", "4458676522690.655", "7999999999999.999", "12", "0.001"):
        event = f'{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": {start}, "dur": 0.157}}'
        trace = read(f'{{"traceEvents": [{event}]}}', tmp_path)
        expected = int(Decimal(start) * 1000)
        assert (expected, expected + 157) == (trace.start_ns[0], trace.end_ns[0])


@pytest.mark.heavy
@given(
    st.integers(0, 2**53 - 1),
    st.lists(st.tuples(st.integers(0, 10**13), st.integers(1, 10**12)), min_size=1, max_size=20),
    st.booleans(),
)
@settings(max_examples=60)
def test_any_nanosecond_survives(begin: int, offsets: list[tuple[int, int]], whole: bool) -> None:
    """ns written as µs with three decimals, also mixed with integers, are read back."""

    def text(ns: int) -> str:
        return str(ns // 1000) if whole and ns % 1000 == 0 else f"{ns // 1000}.{ns % 1000:03d}"

    times = [(begin + offset, length) for offset, length in offsets]
    events = ",".join(
        f'{{"ph":"X","cat":"kernel","name":"a","pid":1,"tid":1,"ts":{text(ns)},"dur":{text(length)}}}'
        for ns, length in times
    )
    with TemporaryDirectory() as folder:
        trace = read(f'{{"traceEvents":[{events}]}}', Path(folder))

    assert sorted(ns for ns, _ in times) == trace.start_ns.tolist()
    assert sorted(ns + length for ns, length in times) == sorted(trace.end_ns.tolist())


def test_the_clocks_base_is_added(tmp_path: Path) -> None:
    """baseTimeNanoseconds, before or after the events, makes times comparable across ranks."""
    file = KinetoFile().op("a", 5, 6)
    late = read_trace(file.write(tmp_path / "late.json"))
    file.head["baseTimeNanoseconds"], file.tail = BASE_NS, {}
    early = read_trace(file.write(tmp_path / "early.json.gz"))

    assert BASE_NS + 5_000 == late.start_ns[0] == early.start_ns[0]


def test_columns_hold_what_the_events_say(tmp_path: Path) -> None:
    """Rank, world size, categories, threads, correlation, device, stream and metadata are read."""
    file = training_step(KinetoFile(rank=3, world_size=4), 1, 0)
    h100 = {"id": 0, "name": "NVIDIA H100", "numSms": 132, "computeMajor": 9, "warpSize": 32, "totalGlobalMem": 85}
    file.head["deviceProperties"] = [h100, {"id": 1, "numSms": "many", "warpSize": -1}, "GPU"]
    trace = read_trace(file.write(tmp_path / "t.json.gz"))

    comm = next(i for i in range(len(trace)) if trace.names[trace.name[i]].startswith("nccl"))
    kernel = int(np.flatnonzero(trace.named("ncclDevKernel"))[0])
    assert (3, 4, {0: "NVIDIA H100", 1: ""}) == (trace.rank, trace.world_size, trace.device_names)
    assert {0: GpuProperties("NVIDIA H100", 132, (9, 0), 32, 85), 1: GpuProperties("")} == trace.gpus
    assert (0, 20, Category.KERNEL) == (trace.device[kernel], trace.stream[kernel], trace.category[kernel])
    assert CommArgs("allreduce", 4000, "Float") == trace.comm[kernel]
    assert comm != kernel
    assert np.all(np.diff(trace.start_ns) >= 0)


def test_a_file_of_2021_is_read(tmp_path: Path) -> None:
    """Its spellings, times since the epoch in whole µs, computeProperties, and kernels linked to their calls."""
    file = KinetoFile(rank=None, base=False)
    file.event("Operator", "aten::mm", 1_621_401_187_223_182, 1_621_401_187_223_190, tid="24572", **{"external id": 3})
    call = {"correlation": 3, "external id": 3, "external ts": 1}
    file.event("Runtime", "cudaLaunchKernel", 1_621_401_187_223_184, 1_621_401_187_223_185, tid="24572", **call)
    kernel = {"device": 0, "context": 1, "stream": 7, "correlation": 3, "external id": 3, "queued": 0}
    file.event("Kernel", "gemm", 1_621_401_187_223_190, 1_621_401_187_223_199, tid="stream 7", **kernel)
    file.head["computeProperties"] = [{"id": 0, "name": "Tesla V100"}]
    trace = read(file, tmp_path)

    assert ({0: "Tesla V100"}, 1_621_401_187_223_182_000) == (trace.device_names, trace.start_ns[0])
    assert [-1, 3, 3] == trace.correlation.tolist()
    assert (7, 0, ()) == (trace.stream[2], trace.device[2], trace.damage)


@pytest.mark.slow
def test_a_cut_is_a_cut_wherever_it_falls(tmp_path: Path) -> None:
    """Cut at any byte of the last events, the file counts as truncated, or no event is missing."""
    shapes: dict[str, Any] = {"Input Dims": [[2, 3], [3]], "Ev Idx": 7}
    file = KinetoFile().op("a", 1, 2).op("aten::mm", 3, 4, **shapes)
    file.kernel("k", 5, 6, 3.5, grid=[1, 1, 1]).head["INFO"] = ["x"]
    text = file.text()
    for end in range(text.index("aten::mm"), len(text)):
        assert read(text[:end], tmp_path).cut
    assert not read(text, tmp_path).cut


def test_kinetos_last_event_proves_a_file_whole_only_where_it_is_the_last(tmp_path: Path) -> None:
    """What ends behind the event over the whole recording is complete; in a file sorted by time that event is first."""
    file = KinetoFile()
    for k in range(20):
        file.op("a", 5 * k + 1, 5 * k + 2)
    events, cut = file.events, {}
    file = KinetoFile().event("Trace", "PyTorch Profiler (0)", 0, 200, tid="Trace")
    for order, those in (("written", [*events, *file.events]), ("sorted", [*file.events, *events])):
        file.events = [*those, {"ph": "M", "name": "x"}, {"ph": "i", "name": "Record Window End", "ts": 200}]
        text = file.text()
        cut[order] = read(text[: text.index("Record")], tmp_path).cut
        assert not read(text, tmp_path).cut

    assert {"written": False, "sorted": True} == cut


def test_a_gzip_that_lost_only_its_trailer_is_whole(tmp_path: Path) -> None:
    """The recording is complete, though the data can't be verified, and a note says so."""
    path = training_step(KinetoFile(), 1, 0).write(tmp_path / "t.json.gz")
    path.write_bytes(path.read_bytes()[:-5])

    trace = read_trace(path)

    assert (False, 13) == (trace.cut, len(trace))
    assert "After the end of the document the compressed data is truncated" in str(trace.damage[0])


def test_a_truncated_gzip_is_read_up_to_the_break(tmp_path: Path) -> None:
    """The same holds when the compressed data ends early."""
    file = KinetoFile(base=False)
    for k in range(200):
        training_step(file, k, 100 * k)
    data = gzip.compress(file.text().encode())
    path = tmp_path / "t.json.gz"
    path.write_bytes(data[: len(data) // 2])

    trace = read_trace(path)

    assert 100 < len(trace) < len(file.events)
    assert "truncated or damaged" in str(trace.damage[0])


def test_a_pipe_is_read(tmp_path: Path) -> None:
    """`dptrace analyze <(zcat …)` passes a file that can't seek."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = KinetoFile().op("a", 1, 2).text()
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    trace = read_trace(pipe)
    writer.join()

    assert 1 == len(trace)


ODD: dict[str, tuple[Any, ...]] = {
    "ph": ("Q", "", "B", None, 5, []),
    "cat": ("hpu_op", None, 5, {}),
    "ts": (None, "-3", "x", "1_0", "", True, [], math.nan, math.inf, 1e300, 10**30, 1 << 63),
    "dur": (None, "-3", "x", "NaN", "", True, [], math.nan, -3, -math.inf, 1e300, 1 << 63),
    "name": (True, [], {}),
    "pid": ([1],),
    "args": ("text",),
}
"""Values that no profiler writes, by the key of an event."""


@pytest.mark.heavy
@pytest.mark.parametrize("category", ["kernel", "python_function"])
def test_no_event_is_left_out_uncounted(category: str, tmp_path: Path) -> None:
    """An event with a field of no known value is reported: as left out, or as read without that field."""
    for odd in ({key: value} for key, values in ODD.items() for value in values):
        file = KinetoFile(base=False)
        for k in range(3):
            file.event(category, "a", 1e12 + 100 * k, 1e12 + 100 * k + 50)
        file.events[1] |= odd
        trace = read(file, tmp_path)
        left_out = [int(sentence.split()[1]) for sentence in map(str, trace.damage) if "left out" in sentence]
        assert 3 == len(trace) + sum(left_out), odd
        assert trace.damage, odd
        assert all("t.json: 1 event " in str(sentence) for sentence in trace.damage), odd


def test_events_that_no_figure_needs_are_no_loss(tmp_path: Path) -> None:
    """Metadata, flows, counters and Kineto's other categories are not reported."""
    file = KinetoFile().op("a", 1, 2).event("gpu_user_annotation", "b", 1, 2).event("overhead", "c", 1, 2)
    file.events += [{"ph": phase, "name": "d", "ts": 1} for phase in "MstfCi"]

    trace = read(file, tmp_path)

    assert (1, ()) == (len(trace), trace.damage)


def test_what_is_no_trace_is_named(tmp_path: Path) -> None:
    """The error names the file and what is wrong with it."""
    path = tmp_path / "t.json"
    for content, message in (
        (b"", "is empty"),
        (b"not json at all", "is not JSON"),
        (b'{"a": 1}', "has no traceEvents"),
        (b'{"dptrace_baseline":1}', "is a baseline; .* --baseline .*t.json RUN"),
        (b'{"schemaVersion": 1, "devi', "ends before its first event"),
        (b'{"traceEvents": []}', "holds no events"),
        (b'{"traceEvents": [{"ph": "B", "name": "x"}, {"ph": "E"}]}', "not a trace of torch.profiler"),
        (b"\x1f\x8b\x08\x00garbage", "truncated or damaged"),
        (b"PK\x03\x04zip", "zip archive"),
        (b"\x89PNG\r\n", "is not JSON"),
        (b'{"traceEvents": 5}', "has no traceEvents"),
        (gzip.compress(b"", mtime=0), "only white space"),
        (b'{"traceEvents": [{"ph":"X","cat":"kernel","name":"a","ts":1,"dur":9e300}]}', "holds no events"),
        (b"[" * 3000, "holds no events"),
    ):
        path.write_bytes(content)
        with pytest.raises(TraceError, match=message) as error:
            read_trace(path)
        assert str(path) in str(error.value)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_nothing_but_our_own_errors_is_raised(data: st.DataObject) -> None:
    """Changed, removed or repeated bytes lead to a trace or a DptraceError."""
    raw = bytearray(training_step(KinetoFile(), 1, 0).text().encode())
    pieces = st.sampled_from([b"", b"]", b"}", b'"', b"{", b"1e999", b"-", b"\xff", b"null", b"[[[", b"9" * 30])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 12))] = data.draw(pieces)
    with TemporaryDirectory() as folder, suppress(DptraceError):
        path = Path(folder, "t.json")
        path.write_bytes(bytes(raw))
        trace = read_trace(path)
        assert np.all(trace.end_ns >= trace.start_ns)


def test_metadata_that_makes_no_sense_is_reported(tmp_path: Path) -> None:
    """An invalid clock base or rank is ignored and reported."""
    file = training_step(KinetoFile(base=False), 1, 0)
    file.head["distributedInfo"] = {"rank": "zero", "world_size": -3}
    file.tail["baseTimeNanoseconds"] = "abc"
    damage = [*map(str, read(file, tmp_path).damage)]

    assert any("baseTimeNanoseconds" in sentence for sentence in damage)
    assert any("invalid rank or world size" in sentence for sentence in damage)


# Impossible events are dropped or shortened and reported; unusual ones are kept.


def read(file: KinetoFile | str, folder: Path) -> Trace:
    path = folder / "t.json"
    path.write_text(file if isinstance(file, str) else file.text())
    return read_trace(path)


def kernels(trace: Trace) -> list[tuple[float, float]]:
    chosen = trace.category == Category.KERNEL
    times = np.stack((trace.start_ns[chosen], trace.end_ns[chosen]))
    return [(begin, end) for begin, end in ((times - BASE_NS) / 1000).T.tolist()]


@pytest.mark.slow
@needs_real_traces
@pytest.mark.parametrize("path", real_files(), ids=lambda path: path.name)
def test_real_recordings_are_not_touched(path: Path) -> None:
    """No event of a real file is dropped, cut or repaired: dependent launches really overlap on a stream."""
    assert () == read_trace(path).damage


def test_impossible_events_are_left_out_and_counted(tmp_path: Path) -> None:
    """They cost only themselves."""
    never_set, repeated, reduced = KinetoFile(base=False), KinetoFile().op("op", 1, 2).op("op", 1, 2), KinetoFile()
    for k in range(9):
        never_set.op("good", 1e15 + k, 1e15 + k + 0.5).op("bad", 0, 0).op("worse", 0, 0)
    for stream, correlation in ((7, 3), (7, 3), (7, 3), (7, 4), (8, 3)):
        repeated.event("kernel", "twice", 5, 9, stream=stream, device=0, correlation=correlation)
    for _ in range(2):
        reduced.label("gloo:all_reduce", 10, 90, tid=9, **{"Input Dims": [[8]], "Input type": ["float"]})
    for file, kept, left_out in (
        # Ends that were never set (pytorch/kineto#646), and times beyond any clock.
        (KinetoFile().op("a", 1, 2).op("back", 9, 5).op("b", 3, 4), 2, "1 event left out with a negative duration"),
        (KinetoFile().op("a", 1, 2).op("far", 2**60, 2**60 + 1).op("b", 3, 4), 2, "1 event left out"),
        # pytorch#188481: half of the events at 0 with no duration, the others where they belong.
        (never_set, 9, "18 events left out"),
        # Equal name, times, stream and id are one kernel; a copy with another id, or on the CPU, is kept.
        (repeated, 5, "2 events left out"),
        # Bytes and times of gloo's collectives would count twice, too.
        (reduced, 1, "1 event left out"),
    ):
        trace = read(file, tmp_path)
        (damage,) = map(str, trace.damage)
        assert kept == len(trace)
        assert f"t.json: {left_out}" in damage

    # A day apart is too far; hours are not, and a file may count from 0.
    trace = read(KinetoFile().op("a", 0, 0).op("b", 1, 3.6e9), tmp_path)
    assert (2, ()) == (len(trace), trace.damage)


def test_events_without_times_are_reported(tmp_path: Path) -> None:
    """Events without a start are dropped; a missing or invalid duration counts as 0; numbers may be text."""
    file = KinetoFile().op("start", 1, 2).op("length", 3, 4).op("none", 5, 6).op("text", 7, 8)
    del file.events[0]["ts"]
    del file.events[1]["dur"]
    file.events[2]["dur"] = float("nan")
    file.events[3] |= {"ts": "7.001", "dur": "1.5"}
    trace = read(file, tmp_path)

    assert [3_000, 5_000, 7_001] == (trace.start_ns - BASE_NS).tolist()
    assert [0, 0, 1_500] == (trace.end_ns - trace.start_ns).tolist()
    repaired, missing_start, missing_duration = map(str, trace.damage)
    assert "1 event repaired" in repaired
    assert "1 event left out" in missing_start
    assert "2 events without a duration" in missing_duration


def overrunning(correlation: int | None = None, name: str = "fmha_bwd") -> KinetoFile:
    """A kernel of 10 µs recorded with 2 s, on a stream where 20 others follow."""
    file = training_step(KinetoFile(), 1, 0)
    file.kernel(name, 200, 2_000_200, 190, stream=7)
    for k in range(20):
        file.kernel("gemm", 210 + 10 * k, 218 + 10 * k, 195 + k, stream=7)
    if correlation is not None:
        for event in file.events[-42:]:
            event["args"]["correlation"] = correlation
    return file


def test_an_overrun_is_cut_where_the_next_on_its_stream_begins(tmp_path: Path) -> None:
    """TraceLens#669: on ROCm some durations extend over later kernels, by seconds."""
    trace = read(overrunning(), tmp_path)

    assert (200, 210) in kernels(trace)
    assert "1 event on a GPU cut short" in str(trace.damage[0])
    (timeline,) = build_timelines(trace, 0)
    assert split(timeline).figures["wall_ns"].sum() < 1_000_000


def test_what_may_overlap_by_right_is_not_cut(tmp_path: Path) -> None:
    """Branches of a graph run concurrently, a collective waits for its peers, and two within one may be jitter."""
    two = KinetoFile().kernel("a", 0, 100, -5).kernel("b", 10, 20, -4).kernel("c", 30, 40, -3).kernel("d", 200, 210, 4)
    for file, kept in (
        (overrunning(correlation=5), (200, 2_000_200)),
        (overrunning(name="ncclDevKernel_AllReduce"), (200, 2_000_200)),
        (two, (0, 100)),
    ):
        trace = read(file, tmp_path)
        assert kept in kernels(trace)
        assert () == trace.damage


# Records that were lost, and numbers out of their range.

LOG = (
    "INFO:2024-05-22 17:15:23 29:29 CuptiActivityProfiler.cpp:333] Record counts: Out-of-range = {}, Blocklisted "
    "runtime = 37458, Invalid ext correlations = 0, CPU GPU out-of-order = 0, Unexpected CUDA events = 0, "
    "{} stopped early? = {}"
)


def steps() -> KinetoFile:
    file = KinetoFile()
    for k in range(3):
        training_step(file, k, 100 * k)
    return file


def changed(change: Callable[[dict[str, Any]], object], count: int = 99) -> KinetoFile:
    """Return steps whose kernels, the first *count* of them, are changed."""
    file = steps()
    for event in [event for event in file.events if event["cat"] == "kernel"][:count]:
        change(event)
    return file


def test_work_without_a_duration_is_lost_not_of_no_length(tmp_path: Path) -> None:
    """It is left out and counted, as lost records of a device."""
    for value in (None, "long", "", "missing"):

        def change(event: dict[str, Any], value: str | None = value) -> None:
            event.pop("dur") if value == "missing" else event.update(dur=value)

        trace = read(changed(change, 2), tmp_path)
        assert (10, 2) == (int((trace.category == Category.KERNEL).sum()), trace.lost)
        (note,) = trace.damage
        assert (RECORDS, True) == (note.kind, "2 events of a device left out" in str(note))


def test_no_readable_duration_at_all_is_no_missing_permission(tmp_path: Path) -> None:
    """The error says what is wrong with the records."""
    values: tuple[object, ...] = (None, "long", [], -5, 1e300)
    for value in values:
        file = changed(lambda event, value=value: event.update(dur=value))  # type: ignore[misc]
        with pytest.raises(TraceError, match=r"no readable kernel.*12 events") as error:
            build_timelines(read(file, tmp_path), 0)
        assert "permission" not in str(error.value)


def test_what_kineto_says_of_lost_records_is_said(tmp_path: Path) -> None:
    """Records outside the recording's window are none: most are of its warm-up."""
    full = "Exceeded max GPU buffer count (129 > 128) - terminating tracing"
    for lines, warnings, notes in (
        ([LOG.format(4181, "CUPTI", 0)], [], []),
        ([LOG.format(0, "CUPTI", 1)], [], ["stopped recording"]),
        ([LOG.format(0, "GPU", 1)], [full], ["stopped"]),
        ([], ["Dropped 17 activity records", "Dropped 3 activity records"], ["dropped 20 records"]),
        ("text", [5, None], []),
    ):
        file = steps()
        file.tail |= {"INFO": lines, "WARNING": warnings}
        trace = read(file, tmp_path)
        assert len(notes) == len(trace.damage)
        assert all(text in str(note) and note.kind == RECORDS for text, note in zip(notes, trace.damage, strict=True))
        assert (4181 if "4181" in str(lines) else 0) == trace.out_of_window


def test_kernels_that_kineto_left_out_explain_a_file_without_any(tmp_path: Path) -> None:
    """The error says so, in place of a missing permission."""
    file = steps()
    file.events = [event for event in file.events if event["cat"] != "kernel"]
    file.tail["INFO"] = [LOG.format(37, "CUPTI", 0)]

    with pytest.raises(TraceError, match=r"37 records.*Out-of-range"):
        build_timelines(read(file, tmp_path), 0)


@pytest.mark.heavy
def test_a_number_out_of_range_is_counted_and_costs_no_work(tmp_path: Path) -> None:
    """The event counts without it."""
    comm: dict[str, Any] = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2, "Seq": 1}

    def file(*odds: dict[str, Any]) -> KinetoFile:
        file = steps()
        for number, odd in enumerate(odds):
            at = 305 + 5 * number
            file.kernel("ncclDevKernel_AllReduce", at, at + 4, at - 3, **{"Collective name": "allreduce", **comm})
            file.events[-1]["args"] |= odd
        return file

    out_of_range: dict[str, tuple[object, ...]] = {
        "Group size": (2**31, -7, 2**70, "4294967296"),
        "Seq": (2**64, -(2**40), 1e300),
        "In msg nelems": (2**63, -5),
        "Src Rank": (2**31,),
        "Process Group Ranks": ("[0, 99999999999]", "[0, -4]"),
        "stream": (2**64,),
        "device": (2**31,),
        "correlation": (2**65,),
    }
    odds = [{key: value} for key, values in out_of_range.items() for value in values]
    whole = read(file({}), tmp_path).start_ns.tolist()
    for odd in odds:
        trace = read(file(odd), tmp_path)
        (note,) = map(str, trace.damage)
        assert whole == trace.start_ns.tolist(), odd
        assert "1 event with numbers out of range" in note, odd
        build_timelines(trace, 0)
    path = file(*odds).write(tmp_path / "all.json")
    assert f"{len(odds)} events with numbers out of range" in str(read_trace(path).damage[0])
    assert 0 == CliRunner().invoke(cli, ["analyze", str(path)]).exit_code

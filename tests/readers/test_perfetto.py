"""Perfetto traces, as torch writes them, read like Kineto's JSON."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from dptrace.commands.shared.main import cli
from dptrace.errors import TraceError
from dptrace.export.perfetto import varint
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.packets import Packets, begins_with_packets
from dptrace.readers.perfetto import Slices, TrackDescriptors
from dptrace.readers.trace import Trace
from tests.support.kineto_files import BASE_NS, KinetoFile, training_step
from tests.support.perfetto_files import as_torch_of_june, as_torch_of_september, as_tracer, packed

Layout = Callable[[list[dict[str, Any]], int], list[Any]]
LAYOUTS = [as_torch_of_june, as_torch_of_september, as_tracer]


def recording() -> KinetoFile:
    """Make two steps with every kind of GPU work, launches on two threads, and args of every type."""
    file = KinetoFile(rank=None)
    for step in range(2):
        at = 1000.0 + 100 * step
        training_step(file, step, at)
        file.kernel("Memcpy HtoD", at + 31, at + 32.001, at + 3, category="gpu_memcpy", stream=9, bytes=4096)
        file.kernel("Memset (Device)", at + 33, at + 33.5, at + 4, category="gpu_memset", stream=9)
    for event in file.events:
        if event["name"].startswith("nccl:"):
            event["cat"] = "user_annotation"  # as in torch's own traces
        if event["cat"] == "kernel":
            event["args"] |= {"grid": [1, 2, 3], "est. achieved occupancy %": 12.5, "Process Group Ranks": "[0, 1]"}
        elif event["cat"] == "cuda_runtime":
            event["args"] |= {"cbid": 211}
        elif event["cat"] == "user_annotation":
            event["args"] |= {"External id": 7, "Ev Idx": 3}
    return file


def content(trace: Trace) -> list[tuple[Any, ...]]:
    names = [trace.names[name] for name in trace.name]
    columns = (trace.start_ns, trace.end_ns, trace.category, trace.correlation, trace.device, trace.stream)
    comm = [trace.comm.get(index) for index in range(len(trace))]
    return sorted(zip(names, *(column.tolist() for column in columns), map(str, comm), strict=True))


def written(folder: Path, packets: list[Any], gzipped: bool = False) -> Path:
    path = folder / "rank1.pftrace"
    path.write_bytes(packed(packets, gzipped))
    return path


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_perfetto_trace_holds_what_kinetos_json_holds(layout: Layout, gzipped: bool, tmp_path: Path) -> None:
    """Every event with its times to the nanosecond, kind, correlation, device, stream and collective."""
    file = recording()
    expected = read_trace(file.write(tmp_path / "rank1.json"))

    found = read_trace(written(tmp_path, layout(file.events, BASE_NS), gzipped))

    assert content(expected) == content(found)
    assert (None, (), False) == (found.rank, found.damage, found.cut)
    assert len(set(expected.thread.tolist())) == len(set(found.thread.tolist()))


def test_a_clock_of_its_own_is_brought_to_the_epoch(tmp_path: Path) -> None:
    """A snapshot relates it to the epoch; compressed packets equal plain ones."""
    file = recording()
    expected = read_trace(file.write(tmp_path / "rank1.json"))

    found = read_trace(written(tmp_path, as_tracer(file.events, BASE_NS, clock=3, shift=12345, compressed=True)))

    assert content(expected) == content(found)


def test_slices_that_touch_or_overlap_keep_their_times(tmp_path: Path) -> None:
    """torch pairs begins and ends by order, and so does the reader; pairs by time would be wrong."""
    file = KinetoFile()
    for start in range(5):
        file.op(f"aten::op{start}", start, start + 1)
    file.op("aten::late", 4.5, 6)
    expected = read_trace(file.write(tmp_path / "rank1.json"))

    found = read_trace(written(tmp_path, as_torch_of_september(file.events, BASE_NS)))

    assert content(expected) == content(found)


def test_old_slices_whose_begin_shows_the_duration(tmp_path: Path) -> None:
    """Chrome's complete events are legacy events, which may hold the thread, too."""
    packet = proto.TracePacket(timestamp=BASE_NS, trusted_packet_sequence_id=1)
    packet.track_event.categories.append("cpu_op")
    packet.track_event.name = "aten::add"
    legacy = packet.track_event.legacy_event
    legacy.phase, legacy.duration_us, legacy.pid_override, legacy.tid_override = ord("X"), 7, 3, 4

    trace = read_trace(written(tmp_path, [packet, packet]))

    assert [("aten::add", BASE_NS, BASE_NS + 7000)] * 2 == [row[:3] for row in content(trace)]


@pytest.mark.heavy
def test_a_truncated_file_keeps_its_whole_slices_with_a_note(tmp_path: Path) -> None:
    """Cut anywhere, the events read are a part of the whole."""
    file = recording()
    whole = packed(as_torch_of_september(file.events, BASE_NS))
    every = set(content(read_trace(written(tmp_path, as_torch_of_september(file.events, BASE_NS)))))
    path = tmp_path / "cut.pftrace"
    read = 0
    for size in range(len(whole) // 2, len(whole) - 1, 97):
        path.write_bytes(whole[:size])
        try:
            trace = read_trace(path)
        except TraceError:
            continue
        read += 1
        assert set(content(trace)) <= every
        # Between two packets of the last kind, which need no end, a cut can't be seen.
        assert trace.cut or len(trace) > len(every) // 2
    assert read


@pytest.mark.parametrize("gzipped", [False, True])
def test_dptraces_own_export_is_refused(gzipped: bool, tmp_path: Path) -> None:
    """It holds figures, not the events that they come from."""
    trace, path = recording().write(tmp_path / "rank1.json"), tmp_path / "own.pftrace"
    result = CliRunner().invoke(cli, ["export", str(trace), "-o", str(path), "--no-cache"])
    assert 0 == result.exit_code, result.output
    if gzipped:
        path.write_bytes(gzip.compress(path.read_bytes()))

    with pytest.raises(TraceError, match="own export for Perfetto"):
        read_trace(path)


def test_a_trace_of_another_program_is_refused(tmp_path: Path) -> None:
    """Its slices have no category of torch's."""
    file = KinetoFile().event("sched", "idle", 0, 1).event("binder", "call", 2, 3)

    with pytest.raises(TraceError, match=r"holds 2 events.*not a trace of torch"):
        read_trace(written(tmp_path, as_tracer(file.events, BASE_NS)))


def test_categories_are_inferred_only_in_files_without_any(tmp_path: Path) -> None:
    """An event without a category is ignored if the file has categories."""
    file = KinetoFile().op("aten::add", 0, 1).op("aten::overhead", 2, 3)
    packets = as_torch_of_september(file.events, BASE_NS)
    for packet in packets:
        if packet.track_event.name_iid == 2:
            del packet.track_event.category_iids[:]

    assert ("aten::add",) == read_trace(written(tmp_path, packets)).names


def test_odd_annotations_do_no_harm(tmp_path: Path) -> None:
    """NaN, nested lists, interned strings of invalid UTF-8, and unknown names."""
    packets = as_torch_of_september(KinetoFile().op("aten::add", 0, 1).events, BASE_NS)
    begin = next(packet for packet in packets if packet.track_event.type == 1)
    annotations = begin.track_event.debug_annotations
    annotations.add(name="nan", double_value=float("nan"))
    annotations.add(name_iid=99, string_value_iid=99)
    annotations.add(name="deep").array_values.add().dict_entries.add(name="x", bool_value=True)
    annotations.add(name="correlation", string_value="seven")
    packets[0].interned_data.debug_annotation_string_values.add(iid=1, str=b"\xff")

    trace = read_trace(written(tmp_path, packets))

    assert (1, -1) == (len(trace), int(trace.correlation[0]))


def test_the_text_is_json_that_others_read_too(tmp_path: Path) -> None:
    """The HTA adapter and overlays read the pieces of a file as one document."""
    from dptrace.readers.formats import pieces

    path = written(tmp_path, as_torch_of_september(recording().events, BASE_NS))

    cut = list(pieces(path))
    document = json.loads(cut[0].head + b",".join(piece.text for piece in cut))

    assert len(recording().events) == len(document["traceEvents"])
    assert {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"} == set(document["traceEvents"][0])


def test_texts_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    """Names, keys and values with bytes of another encoding, as file names have them; no event is lost."""
    for layout in LAYOUTS:
        file = recording()
        for event in file.events:
            event["name"] += "MARK"
            event["args"]["MARK"] = "MARK"
        data = packed(layout(file.events, BASE_NS))
        path = tmp_path / "rank1.pftrace"
        path.write_bytes(data.replace(b"MARK", b"\xff\xfe\xc3\x28"))
        assert len(read_trace(file.write(tmp_path / "rank1.json"))) == len(read_trace(path))


# Slices, threads and times from Perfetto's packets.


def pairs(moments: str) -> tuple[list[tuple[str, int, int]], int]:
    """Pair the moments of a text: ``a0 b1 /2 /3`` begins a at 0 and b at 1, and ends two slices at 2 and 3."""
    slices = Slices()
    found = []
    for moment in moments.split():
        track = 2 if moment[0].isupper() or moment[0] == "!" else 1
        if moment[0] in "/!":
            slices.end(int(moment[1:]), track)
        else:
            found += slices.begin(int(moment[1:]), track, moment[0].encode())
    found += slices.flush()
    return sorted((body.decode(), start, end) for body, start, end in found), slices.unended


def test_ends_find_their_begins() -> None:
    """Nested by time, or in torch's columns; begins without an end are counted."""
    for moments, expected, unended in (
        ("a0 /2 b2 /3", [("a", 0, 2), ("b", 2, 3)], 0),
        ("a0 b1 /2 /3", [("a", 0, 3), ("b", 1, 2)], 0),
        ("a0 b1 /2 c3 /4 /5", [("a", 0, 5), ("b", 1, 2), ("c", 3, 4)], 0),
        ("a0 A1 /2 !3", [("A", 1, 3), ("a", 0, 2)], 0),
        # In columns: the second block's ends go back in time.
        ("a0 b4 c9 /3 /9 /10", [("a", 0, 3), ("b", 4, 9), ("c", 9, 10)], 0),
        ("a0 b1 c5 /4 /2 /6", [("a", 0, 4), ("b", 1, 2), ("c", 5, 6)], 0),
        # Neither: out of order, and as many ends as begins on no track.
        ("A5 a0 /1 c2 /3 !6", [("A", 5, 6), ("a", 0, 1), ("c", 2, 3)], 0),
        # A file that is cut in a column of ends keeps the slices before.
        ("a0 b4 c9 /3 /9", [("a", 0, 3), ("b", 4, 9)], 1),
        ("a0 b4", [], 2),
    ):
        assert (expected, unended) == pairs(moments)


def descriptor(uuid: int, **fields: Any) -> Any:
    return proto.TrackDescriptor(uuid=uuid, **fields)


def test_a_track_stands_on_its_thread_or_its_process() -> None:
    """A track without either is a thread of its parent's process; a cycle of parents has no process."""
    tracks = TrackDescriptors()
    tracks.update(descriptor(1, process=proto.ProcessDescriptor(pid=10)))
    tracks.update(descriptor(2, parent_uuid=1, thread=proto.ThreadDescriptor(pid=10, tid=11)))
    tracks.update(descriptor(3, parent_uuid=1, name="lane"))
    tracks.update(descriptor(4, parent_uuid=3))
    tracks.update(descriptor(5, parent_uuid=6))
    tracks.update(descriptor(6, parent_uuid=5))

    assert [(10, 11), (10, 3), (10, 4), (0, 5), (0, 9)] == [tracks.thread(uuid) for uuid in (2, 3, 4, 5, 9)]


# Packets of Perfetto's format.


class Chunks:
    """Bytes in chunks."""

    def __init__(self, data: bytes, size: int, damage: str = "") -> None:
        self.parts = [data[at : at + size] for at in range(0, len(data), size)]
        self.damage = damage

    @property
    def ended(self) -> bool:
        return not self.parts

    def read_chunk(self) -> bytes:
        return self.parts.pop(0) if self.parts else b""


def trace(count: int = 50) -> bytes:
    return bytes(proto.Trace(packet=[proto.TracePacket(timestamp=k) for k in range(count)]).SerializeToString())


def read(data: bytes, size: int = 1 << 20, damage: str = "") -> tuple[list[int], Packets]:
    packets = Packets(b"", Chunks(data, size, damage))  # type: ignore[arg-type]
    return [packet.timestamp for packet in packets], packets


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_cut_and_foreign_bytes_end_the_packets(size: int) -> None:
    """However the bytes come, earlier packets are kept, and the reason is reported; the bytes' own goes first."""
    whole, packets = read(trace(), size)
    assert (list(range(50)), 0, "") == (whole, packets.lost, packets.damage)
    cut, packets = read(trace()[:-1], size)
    assert (49, "it ends in the middle") == (len(cut), packets.damage)
    foreign, packets = read(trace() + b"}", size)
    assert (50, True) == (len(foreign), "not a packet" in packets.damage)
    assert "gone" == read(trace()[:-1], damage="gone")[1].damage


@pytest.mark.slow
def test_a_packet_that_is_damaged_inside_is_lost_alone() -> None:
    """Its neighbours are kept, and so are those compressed into one packet."""
    inner = proto.TracePacket(compressed_packets=zlib.compress(trace(3))).SerializeToString()
    bomb = proto.TracePacket(compressed_packets=zlib.compress(bytes(100 << 20))).SerializeToString()
    broken = b"\x0a\x02\x40\xff"  # a timestamp whose number does not end
    parts = [b"\x0a" + varint(len(part)) + part for part in (inner, bomb)]

    times, packets = read(trace(5) + broken + parts[0] + trace(5) + parts[1])

    assert ([0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4], 2) == (times, packets.lost)


def test_packets_are_distinguished_from_json() -> None:
    """JSON may start with a newline, which is also the first byte of a packet."""
    for start, packets in (
        (trace(), True),
        (trace()[:100], True),
        (b"\n" + b"{" + b"\x40" * 123 + trace(), True),
        (b'\n{"traceEvents":[]}', False),
        (b"\n{" + b" " * 200, False),
        (b"\n\n\n{}", False),
        (b"{}", False),
        (b"", False),
        (b"\n", False),
        # A newline is the tag of a packet and the length of one, but no packet is white space.
        *((blank + b"{}", False) for blank in (b"\n" * 20, b"\n\n \t" * 5000, b"\n" + b"\r\n" * 30)),
    ):
        assert packets == begins_with_packets(start)

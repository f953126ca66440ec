"""Read an exported trace of either format as Perfetto does, for tests that compare it with the run."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Slice:
    start_ns: int
    end_ns: int
    name: str
    args: dict[str, Any]
    link: int = 0
    """Number that it shares with linked slices; 0 for no link."""


@dataclass
class Line:
    """A counter."""

    process: str
    name: str
    points: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Track:
    process: str
    name: str
    order: tuple[int, int]
    slices: list[Slice] = field(default_factory=list)


def read_back(path: Path) -> list[Track]:
    """Return the tracks of slices in display order."""
    return sorted(_read(path)[0], key=lambda track: track.order)


def read_counters(path: Path) -> list[Line]:
    """Return the counters in file order."""
    return _read(path)[1]


def _read(path: Path) -> tuple[list[Track], list[Line]]:
    return _protobuf(path.read_bytes()) if path.suffix == ".pftrace" else _chrome(path)


def _chrome(path: Path) -> tuple[list[Track], list[Line]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text, parse_float=Decimal)
    base, events = document["baseTimeNanoseconds"], document["traceEvents"]
    metadata: dict[str, dict[int, Any]] = defaultdict(dict)
    slices: dict[tuple[int, int], list[Slice]] = defaultdict(list)
    lines: dict[tuple[int, str], Line] = {}
    threads: dict[int, int] = {}
    for event in events:
        if event["ph"] == "M":
            place = event["pid"] if event["name"].startswith("process") else event["tid"]
            metadata[event["name"]][place] = event["args"].get("name", event["args"].get("sort_index"))
            if event["name"] == "thread_name":
                assert event["tid"] not in threads, "a thread number is used twice"
                threads[event["tid"]] = event["pid"]
        elif event["ph"] == "X":
            start = base + _exact(event["ts"])
            slices[event["pid"], event["tid"]].append(
                Slice(start, start + _exact(event["dur"]), event["name"], event["args"])
            )
        elif event["ph"] == "C":
            ((series, value),) = event["args"].items()
            name = f"{event['name']} {series}"
            line = lines.setdefault((event["pid"], name), Line(metadata["process_name"][event["pid"]], name))
            line.points.append((base + _exact(event["ts"]), value))
    _bind(slices, [event for event in events if event["ph"] in "stf"], base)
    tracks = [
        Track(
            metadata["process_name"][pid],
            metadata["thread_name"][tid],
            (metadata["process_sort_index"][pid], metadata["thread_sort_index"][tid]),
            slices[pid, tid],
        )
        for tid, pid in threads.items()
    ]
    return tracks, list(lines.values())


def _bind(slices: dict[tuple[int, int], list[Slice]], flows: list[dict[str, Any]], base: int) -> None:
    """Set the ids of the slices that flow events bind to; each flow must be one chain of arrows by time."""
    by_id: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for flow in sorted(flows, key=lambda flow: _exact(flow["ts"])):
        assert (flow["name"], flow["cat"], flow["bp"]) == ("collective", "collective", "e")
        by_id[flow["id"]].append(flow)
        time = base + _exact(flow["ts"])
        row = slices[flow["pid"], flow["tid"]]
        (at,) = [k for k, each in enumerate(row) if each.start_ns <= time < each.end_ns]
        assert not row[at].link, "a slice is in two flows"
        row[at] = replace(row[at], link=flow["id"])
    for chain in by_id.values():
        assert "s" + "t" * (len(chain) - 2) + "f" == "".join(flow["ph"] for flow in chain)


def _exact(microseconds: Decimal) -> int:
    nanoseconds = microseconds * 1000
    assert nanoseconds == int(nanoseconds)
    return int(nanoseconds)


def _protobuf(data: bytes) -> tuple[list[Track], list[Line]]:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    trace: Any = perfetto_trace_pb2.Trace.FromString(data)
    event = perfetto_trace_pb2.TrackEvent
    assert trace.packet[0].first_packet_on_sequence
    names: dict[str, dict[int, str]] = defaultdict(dict)
    processes: dict[int, Any] = {}
    tracks: dict[int, Track] = {}
    lines: dict[int, Line] = {}
    open_slices: dict[int, list[tuple[int, str, dict[str, Any], int]]] = defaultdict(list)
    for packet in trace.packet:
        _learn(packet, names)
        if packet.HasField("track_descriptor"):
            row = packet.track_descriptor
            if row.HasField("process"):
                processes[row.uuid] = row
            elif row.uuid:
                parent = processes[row.parent_uuid]
                if row.HasField("counter"):
                    assert ("bytes" in row.name) == (
                        row.counter.unit == perfetto_trace_pb2.CounterDescriptor.UNIT_SIZE_BYTES
                    )
                    lines[row.uuid] = Line(parent.process.process_name, row.name)
                    continue
                order = (parent.sibling_order_rank, row.sibling_order_rank)
                tracks[row.uuid] = Track(parent.process.process_name, row.name, order)
        if not packet.HasField("track_event"):
            continue
        te = packet.track_event
        if te.type == event.TYPE_SLICE_BEGIN:
            args = {
                names["debug_annotation_names"][a.name_iid]: names["debug_annotation_string_values"][a.string_value_iid]
                if a.HasField("string_value_iid")
                else (a.double_value if a.HasField("double_value") else a.int_value)
                for a in te.debug_annotations
            }
            open_slices[te.track_uuid].append((packet.timestamp, names["event_names"][te.name_iid], args, _link(te)))
        elif te.type == event.TYPE_COUNTER:
            lines[te.track_uuid].points.append((packet.timestamp, te.counter_value))
        else:
            start, name, args, link = open_slices[te.track_uuid].pop()
            tracks[te.track_uuid].slices.append(Slice(start, packet.timestamp, name, args, link))
    assert not any(open_slices.values()), "a slice has no end"
    return list(tracks.values()), list(lines.values())


def _learn(packet: Any, names: dict[str, dict[int, str]]) -> None:
    """Add a packet's texts to the tables."""
    for table, text in (
        ("event_names", "name"),
        ("debug_annotation_names", "name"),
        ("debug_annotation_string_values", "str"),
    ):
        for entry in getattr(packet.interned_data, table):
            value = getattr(entry, text)
            assert entry.iid not in names[table], "a number is given twice"
            names[table][entry.iid] = value.decode() if isinstance(value, bytes) else value


def _link(event: Any) -> int:
    """Return the link of the slice; it must not be a flow, which would mean that one slice causes the next."""
    assert not event.flow_ids
    return int(event.correlation_id)

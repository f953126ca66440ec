"""Read an exported trace back, of either format, the way Perfetto does: for tests that compare it with the run."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

__all__ = ["Slice", "Track", "read_back"]


@dataclass(frozen=True)
class Slice:
    start_ns: int
    end_ns: int
    name: str
    args: dict[str, Any]


@dataclass
class Track:
    process: str
    name: str
    order: tuple[int, int]
    slices: list[Slice] = field(default_factory=list)


def read_back(path: Path) -> list[Track]:
    """Give the tracks in the order in which they are to be shown."""
    tracks = _protobuf(path.read_bytes()) if path.suffix == ".pftrace" else _chrome(path)
    return sorted(tracks, key=lambda track: track.order)


def _chrome(path: Path) -> list[Track]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text, parse_float=Decimal)
    base, events = document["baseTimeNanoseconds"], document["traceEvents"]
    told: dict[str, dict[int, Any]] = defaultdict(dict)
    slices: dict[tuple[int, int], list[Slice]] = defaultdict(list)
    threads: dict[int, int] = {}
    for event in events:
        if event["ph"] == "M":
            place = event["pid"] if event["name"].startswith("process") else event["tid"]
            told[event["name"]][place] = event["args"].get("name", event["args"].get("sort_index"))
            if event["name"] == "thread_name":
                assert event["tid"] not in threads, "a thread number is used twice"
                threads[event["tid"]] = event["pid"]
        else:
            start = base + _exact(event["ts"])
            slices[event["pid"], event["tid"]].append(
                Slice(start, start + _exact(event["dur"]), event["name"], event["args"])
            )
    return [
        Track(
            told["process_name"][pid],
            told["thread_name"][tid],
            (told["process_sort_index"][pid], told["thread_sort_index"][tid]),
            slices[pid, tid],
        )
        for tid, pid in threads.items()
    ]


def _exact(microseconds: Decimal) -> int:
    nanoseconds = microseconds * 1000
    assert nanoseconds == int(nanoseconds)
    return int(nanoseconds)


def _protobuf(data: bytes) -> list[Track]:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    trace: Any = perfetto_trace_pb2.Trace.FromString(data)
    event = perfetto_trace_pb2.TrackEvent
    assert trace.packet[0].first_packet_on_sequence
    names: dict[str, dict[int, str]] = defaultdict(dict)
    processes: dict[int, Any] = {}
    tracks: dict[int, Track] = {}
    open_slices: dict[int, list[tuple[int, str, dict[str, Any]]]] = defaultdict(list)
    for packet in trace.packet:
        for table, text in (
            ("event_names", "name"),
            ("debug_annotation_names", "name"),
            ("debug_annotation_string_values", "str"),
        ):
            for entry in getattr(packet.interned_data, table):
                value = getattr(entry, text)
                assert entry.iid not in names[table], "a number is given twice"
                names[table][entry.iid] = value.decode() if isinstance(value, bytes) else value
        if packet.HasField("track_descriptor"):
            row = packet.track_descriptor
            if row.HasField("process"):
                processes[row.uuid] = row
            elif row.uuid:
                parent = processes[row.parent_uuid]
                order = (parent.sibling_order_rank, row.sibling_order_rank)
                tracks[row.uuid] = Track(parent.process.process_name, row.name, order)
        if not packet.HasField("track_event"):
            continue
        te = packet.track_event
        if te.type == event.TYPE_SLICE_BEGIN:
            args = {
                names["debug_annotation_names"][a.name_iid]: names["debug_annotation_string_values"][a.string_value_iid]
                if a.HasField("string_value_iid")
                else a.int_value
                for a in te.debug_annotations
            }
            open_slices[te.track_uuid].append((packet.timestamp, names["event_names"][te.name_iid], args))
        else:
            start, name, args = open_slices[te.track_uuid].pop()
            tracks[te.track_uuid].slices.append(Slice(start, packet.timestamp, name, args))
    assert not any(open_slices.values()), "a slice has no end"
    return list(tracks.values())

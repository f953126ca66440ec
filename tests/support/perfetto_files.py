"""Perfetto traces as torch's CUPTI monitor writes them, made from Kineto's events, for tests of the reader."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

Events = list[dict[str, Any]]

_STAGES = {"kernel": (1, "Kernel"), "gpu_memcpy": (2, "Memcpy"), "gpu_memset": (3, "Memset")}
_LANES = 100


def packed(packets: Iterable[Any], gzipped: bool = False) -> bytes:
    """Return the bytes of a trace."""
    data = bytes(proto.Trace(packet=packets).SerializeToString())
    return gzip.compress(data) if gzipped else data


def _ns(event: dict[str, Any], base: int) -> tuple[int, int]:
    start = base + int(Decimal(str(event["ts"])) * 1000)
    return start, start + int(Decimal(str(event["dur"])) * 1000)


class _Writer:
    """Ids of tracks and names, and the packets that define them."""

    def __init__(self) -> None:
        self.tracks: dict[Any, int] = {}
        self.names: dict[str, int] = {}
        self.categories: dict[str, int] = {}
        self.packets: list[Any] = []

    def track(self, pid: Any, tid: Any) -> int:
        for key in ((pid,), (pid, tid)):
            if key not in self.tracks:
                self.tracks[key] = uuid = len(self.tracks) + 1
                packet = proto.TracePacket()
                packet.track_descriptor.uuid = uuid
                if len(key) == 1:
                    packet.track_descriptor.process.pid = pid
                    packet.track_descriptor.process.process_name = "python"
                else:
                    packet.track_descriptor.parent_uuid = self.tracks[(pid,)]
                    packet.track_descriptor.thread.pid, packet.track_descriptor.thread.tid = pid, tid
                self.packets.append(packet)
        return self.tracks[(pid, tid)]

    def packet(self, time: int) -> Any:
        return proto.TracePacket(timestamp=time, trusted_packet_sequence_id=1, sequence_flags=2)

    def begin(self, event: dict[str, Any], time: int, categorized: bool) -> Any:
        packet = self.packet(time)
        slice = packet.track_event
        slice.type, slice.track_uuid = 1, self.tracks[(event["pid"], event["tid"])]
        slice.name_iid = self.names.setdefault(event["name"], len(self.names) + 1)
        if categorized:
            slice.category_iids.append(self.categories.setdefault(event["cat"], len(self.categories) + 1))
        for key, value in event.get("args", {}).items():
            _annotate(slice.debug_annotations.add(name=key), value)
        return packet

    def end(self, event: dict[str, Any], time: int) -> Any:
        packet = self.packet(time)
        packet.track_event.type = 2
        packet.track_event.track_uuid = self.tracks[(event["pid"], event["tid"])]
        return packet

    def interned(self, specs: dict[int, str] | None = None) -> Any:
        packet = proto.TracePacket(trusted_packet_sequence_id=1, sequence_flags=1)
        for name, iid in self.names.items():
            packet.interned_data.event_names.add(iid=iid, name=name)
        for name, iid in self.categories.items():
            packet.interned_data.event_categories.add(iid=iid, name=name)
        for iid, name in (specs or {}).items():
            packet.interned_data.gpu_specifications.add(iid=iid, name=name)
        return packet


def _annotate(annotation: Any, value: Any) -> None:
    if isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, int):
        annotation.int_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    elif isinstance(value, list):
        for entry in value:
            _annotate(annotation.array_values.add(), entry)
    else:
        annotation.string_value = value if isinstance(value, str) else json.dumps(value)


def as_torch_of_june(events: Events, base: int) -> list[Any]:
    """Write all events as slices without categories; all begins of a category, then all ends (pytorch#187892)."""
    return _slices(events, base, categorized=False)


def _slices(events: Events, base: int, categorized: bool) -> list[Any]:
    writer = _Writer()
    kinds = sorted({event["cat"] for event in events})
    blocks = [[event for event in events if event["cat"] == kind] for kind in kinds]
    for event in events:
        writer.track(event["pid"], event["tid"])
    slices: list[Any] = []
    for block in blocks:
        slices += [writer.begin(event, _ns(event, base)[0], categorized) for event in block]
        slices += [writer.end(event, _ns(event, base)[1]) for event in block]
    return [*writer.packets, writer.interned(), *slices]


def as_torch_of_september(events: Events, base: int) -> list[Any]:
    """Write CPU events as slices with categories, and GPU work as render stages (pytorch's Cuspy)."""
    on_gpu = [event for event in events if event["cat"] in _STAGES]
    writer = _Writer()
    cpu = [event for event in events if event["cat"] not in _STAGES]
    for event in cpu:
        writer.track(event["pid"], event["tid"])
    slices = [writer.begin(event, _ns(event, base)[0], categorized=True) for event in cpu]
    slices += [writer.end(event, _ns(event, base)[1]) for event in cpu]
    lanes = {stream: _LANES + i for i, stream in enumerate(dict.fromkeys(event["args"]["stream"] for event in on_gpu))}
    stages = [_stage(writer, event, base, lanes[event["args"]["stream"]]) for event in on_gpu]
    specs = dict(_STAGES.values()) | {iid: f"[{stream:02d}] stream {stream}" for stream, iid in lanes.items()}
    return [_snapshot(base), *writer.packets, writer.interned(specs), *slices, *stages]


def _snapshot(base: int) -> Any:
    packet = proto.TracePacket(timestamp=base, trusted_packet_sequence_id=1)
    for clock in (6, 1):
        packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=base)
    return packet


def _stage(writer: _Writer, event: dict[str, Any], base: int, lane: int) -> Any:
    start, end = _ns(event, base)
    packet = writer.packet(start)
    stage = packet.gpu_render_stage_event
    stage.duration, stage.gpu_id, stage.hw_queue_iid = end - start, event["args"]["device"], lane
    stage.event_id, stage.stage_iid = 7, _STAGES[event["cat"]][0]
    stage.name_iid = writer.names.setdefault(event["name"], len(writer.names) + 1)
    for key, value in event["args"].items():
        name = {"device": "device id", "stream": "stream id", "context": "context id"}.get(key, key)
        stage.extra_data.add(name=name, value=value if isinstance(value, str) else json.dumps(value))
    return packet


def as_tracer(events: Events, base: int, clock: int = 6, shift: int = 0, compressed: bool = False) -> list[Any]:
    """Write all events as Perfetto's own SDK does: with categories, in order of time, the clock *shift* ns late."""
    writer = _Writer()
    for event in events:
        writer.track(event["pid"], event["tid"])
    moments = []
    for place, event in enumerate(events):
        start, end = _ns(event, base)
        # Enclosing events start first and end last.
        moments.append((start, 1, -end, place, writer.begin(event, start - shift, categorized=True)))
        moments.append((end, 0, -start, -place, writer.end(event, end - shift)))
    moments.sort(key=lambda moment: moment[:4])
    packets = [*writer.packets, writer.interned(), *(moment[-1] for moment in moments)]
    for packet in packets:
        packet.timestamp_clock_id = clock
    snapshot = proto.TracePacket(trusted_packet_sequence_id=1)
    snapshot.clock_snapshot.clocks.add(clock_id=clock, timestamp=base - shift)
    snapshot.clock_snapshot.clocks.add(clock_id=1, timestamp=base)
    return [snapshot, *(_compressed(packets) if compressed else packets)]


def _compressed(packets: list[Any]) -> Iterator[Any]:
    for first in range(0, len(packets), 100):
        data = proto.Trace(packet=packets[first : first + 100]).SerializeToString()
        yield proto.TracePacket(compressed_packets=zlib.compress(data))

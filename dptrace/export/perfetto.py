"""Write Perfetto's own format: TrackEvent protobuf, exact to the nanosecond, with every name written once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import IO, Any, TypeAlias

import numpy as np

from dptrace.core.intervals import Int64
from dptrace.export.tracks import AlignedRun, Argument, Counter, Process, Track, earliest, processes
from dptrace.run.run import Run

# Protobuf's wire format, as far as traces need it: many times at once, and packets with a time inserted.

_PACKET = b"\x0a"
"""Tag of Trace.packet: field 1, length-delimited."""
_TIMESTAMP = b"\x40"
"""Tag of TracePacket.timestamp: field 8, varint."""


def varint(number: int) -> bytes:
    """Encode a number of 0 or more, seven bits per byte, the lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def times(values: Int64) -> list[bytes]:
    """Encode times of 0 or more as varints, all as long as the longest one.

    A varint may be longer than necessary (its high digits are zeros). With one length for all, the lengths of the
    packets that contain them are known in advance.
    """
    width = len(varint(int(values.max(initial=0))))
    digits = np.empty((len(values), width), np.uint8)
    for place in range(width):
        digits[:, place] = values >> 7 * place & 0x7F
    digits[:, : width - 1] |= 0x80
    text = digits.tobytes()
    return [text[first : first + width] for first in range(0, len(text), width)]


def packet_head(rest: bytes, width: int) -> bytes:
    """Return the bytes before a packet's time of *width* bytes; *rest* are its other fields."""
    return _PACKET + varint(len(_TIMESTAMP) + width + len(rest)) + _TIMESTAMP


_Annotations: TypeAlias = dict[str, Callable[[Any], Any]]

_SEQUENCE = 1
"""All packets form one sequence, so that they share one table of interned names."""
_NAMES_PER_PACKET = 1000
"""So that no packet is large."""
_TRACKS_PER_PROCESS = 1 << 20
"""A process's tracks have the ids that follow its own."""


def write_perfetto(run: Run, aligned_run: AlignedRun, file: IO[bytes], progress: Callable[[float], None]) -> int:
    """Write *run* as packets: a process per GPU, in rank order, with a track per row and counter.

    The rows are named child tracks of the process, not threads: lanes of one stream then have the same name, which
    Perfetto draws as one row. Timestamps are nanoseconds of the recording's clock, or of the common clock.

    Returns:
        The number of slices written.
    """
    writer = _Writer(file, origin=min(earliest(run, aligned_run), 0))
    writer.begin()
    written = 0
    for number, process in enumerate(processes(run, aligned_run), start=1):
        uuid = number * _TRACKS_PER_PROCESS
        writer.process(uuid, number, process)
        done = 0
        for order, track in enumerate(process.tracks, start=1):
            writer.track(uuid + order, uuid, order, track.name)
            for chunk in track.chunks():
                writer.slices(uuid + order, chunk)
                done += len(chunk)
                progress(number - 1 + done / len(process))
        for order, counter in enumerate(process.counters, start=len(process.tracks) + 1):
            writer.track(uuid + order, uuid, order, counter.name, counter.unit)
            for points in counter.chunks():
                writer.points(uuid + order, points)
        written += done
    return written


class _Interned:
    """One of the sequence's tables of texts; texts are numbered from 1 in order of first use."""

    def __init__(self, field: str, text: str) -> None:
        self.field, self.text = field, text
        self.numbers: dict[str, int] = {}

    def add(self, packet: Any, text: str) -> int:
        """Return the number of *text*, and write the entry into *packet* when it is new."""
        number = self.numbers.get(text)
        if number is None:
            number = self.numbers[text] = len(self.numbers) + 1
            entry = getattr(packet.interned_data, self.field).add(iid=number)
            # The table of annotation strings contains bytes, the others contain text.
            setattr(entry, self.text, text.encode() if self.text == "str" else text)
        return number


class _Writer:
    """Writes the packets of one sequence in the order in which a reader needs them."""

    def __init__(self, file: IO[bytes], origin: int) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2

        self.proto: Any = perfetto_trace_pb2
        self.file = file
        # Timestamps are unsigned: a recording that starts before its clock's zero is moved to start at 0.
        self.origin = origin
        self.events = _Interned("event_names", "name")
        self.keys = _Interned("debug_annotation_names", "name")
        self.values = _Interned("debug_annotation_string_values", "str")

    def _packet(self, flags: int) -> Any:
        return self.proto.TracePacket(trusted_packet_sequence_id=_SEQUENCE, sequence_flags=flags)

    def _write(self, packet: Any) -> None:
        self.file.write(self.proto.Trace(packet=[packet]).SerializeToString())

    def begin(self) -> None:
        """Start the sequence's state, and request the given order of processes."""
        proto = self.proto
        packet = self._packet(proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED)
        packet.first_packet_on_sequence = True
        packet.previous_packet_dropped = 1
        # Perfetto applies the order of processes only if the root, uuid 0, asks for it (since version 57).
        if ordering := getattr(proto.TrackDescriptor, "PROCESS_ORDERING_EXPLICIT", None):
            packet.track_descriptor.uuid, packet.track_descriptor.process_ordering = 0, ordering
        self._write(packet)

    def process(self, uuid: int, number: int, process: Process) -> None:
        """Describe one GPU."""
        packet = self._packet(0)
        track = packet.track_descriptor
        track.uuid, track.sibling_order_rank = uuid, number
        track.child_ordering = self.proto.TrackDescriptor.EXPLICIT
        track.process.pid, track.process.process_name = number, process.name
        self._write(packet)

    def track(self, uuid: int, parent: int, order: int, name: str, unit: str = "") -> None:
        """Describe one row, or with a unit one counter."""
        packet = self._packet(0)
        row = packet.track_descriptor
        row.uuid, row.parent_uuid, row.sibling_order_rank, row.name = uuid, parent, order, name
        if unit == "bytes":
            row.counter.unit = self.proto.CounterDescriptor.UNIT_SIZE_BYTES
        elif unit:
            row.counter.unit_name = unit
        self._write(packet)

    def points(self, uuid: int, counter: Counter) -> None:
        """Write each point of a counter."""
        packet = self._event(uuid, self.proto.TrackEvent.TYPE_COUNTER)
        moments, values = times(counter.time_ns - self.origin), counter.value.tolist()
        width = len(moments[0])
        texts: dict[int, tuple[bytes, bytes]] = {}
        for value in set(values):
            packet.track_event.counter_value = value
            rest = packet.SerializeToString()
            texts[value] = packet_head(rest, width), rest
        parts: list[bytes] = []
        for moment, value in zip(moments, values, strict=True):
            head, rest = texts[value]
            parts += (head, moment, rest)
        self.file.write(b"".join(parts))

    def slices(self, uuid: int, track: Track) -> None:
        """Write each slice as a start event, with name and arguments, and an end event."""
        event = self.proto.TrackEvent
        names, annotations = self._labels(track), self._annotations(track.arguments)
        arguments = [argument.values.tolist() for argument in track.arguments if argument.name in annotations]
        links = [0] * len(track) if track.link is None else track.link.tolist()
        starts, ends = (times(moments - self.origin) for moments in (track.start_ns, track.end_ns))
        begin, end = self._event(uuid, event.TYPE_SLICE_BEGIN), self._event(uuid, event.TYPE_SLICE_END)
        closing = end.SerializeToString()
        closing_head = packet_head(closing, len(ends[0]))
        # Most slices differ from an earlier one only in their times.
        texts: dict[Any, tuple[bytes, bytes]] = {}
        parts: list[bytes] = []
        keys = zip(track.label.tolist(), links, *arguments, strict=True)
        for start, stop, key in zip(starts, ends, keys, strict=True):
            text = texts.get(key)
            if text is None:
                label, link, *values = key
                self._fill(begin.track_event, names[label], link, values, annotations)
                body = begin.SerializeToString()
                text = texts[key] = packet_head(body, len(start)), body + closing_head
            parts += (text[0], start, text[1], stop, closing)
        self.file.write(b"".join(parts))

    def _fill(self, event: Any, name: int, link: int, values: Sequence[Any], annotations: _Annotations) -> None:
        """Set name, arguments and link of the event that starts a slice."""
        event.name_iid = name
        del event.debug_annotations[:]
        event.debug_annotations.extend(
            make(value) for make, value in zip(annotations.values(), values, strict=True) if value >= 0
        )
        # Not a flow, which would mean that one slice causes the next.
        event.ClearField("correlation_id")
        if link:
            event.correlation_id = link

    def _event(self, uuid: int, event_type: int) -> Any:
        packet = self._packet(self.proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE)
        packet.track_event.type, packet.track_event.track_uuid = event_type, uuid
        return packet

    def _labels(self, track: Track) -> dict[int, int]:
        """Write the slices' names that are new; return each label's number."""
        used = sorted(set(track.label.tolist()))
        numbers: dict[int, int] = {}
        for first in range(0, len(used), _NAMES_PER_PACKET):
            packet = self._packet(self.proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE)
            for label in used[first : first + _NAMES_PER_PACKET]:
                numbers[label] = self.events.add(packet, track.labels[label])
            self._write(packet)
        return numbers

    def _annotations(self, arguments: Sequence[Argument]) -> _Annotations:
        """Write the arguments' names and texts that are new; return functions from values to annotations."""
        packet = self._packet(self.proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE)
        annotations = {
            argument.name: self._annotation(packet, argument) for argument in arguments if not argument.empty
        }
        self._write(packet)
        return annotations

    def _annotation(self, packet: Any, argument: Argument) -> Callable[[Any], Any]:
        make, key, texts = self.proto.DebugAnnotation, self.keys.add(packet, argument.name), argument.texts
        if texts is not None:
            numbers = {value: self.values.add(packet, texts[value]) for value in set(argument.values.tolist()) - {-1}}
            return lambda value: make(name_iid=key, string_value_iid=numbers[value])
        if argument.values.dtype.kind == "f":
            return lambda value: make(name_iid=key, double_value=value)
        return lambda value: make(name_iid=key, int_value=value)

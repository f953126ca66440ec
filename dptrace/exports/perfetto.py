"""Perfetto's own format: TrackEvent protobuf, exact to the nanosecond, with every name written once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any

from dptrace.exports.rows import Argument, Process, Track, earliest, processes
from dptrace.run import Run

if TYPE_CHECKING:
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

__all__ = ["write_perfetto"]

_SEQUENCE = 1
"""All packets are one sequence, so that they share one table of interned names."""
_NAMES_PER_PACKET = 1000
_TRACKS_PER_PROCESS = 1 << 20


def write_perfetto(run: Run, file: IO[bytes], progress: Callable[[float], None]) -> int:
    """Write *run* as packets: a process per GPU, in the order of ranks, and below it a track per row.

    The rows are named child tracks of the process and not threads: lanes of one stream then carry the same name,
    which Perfetto draws as one row. Timestamps are the recording's own nanoseconds.

    Returns:
        The number of slices written.
    """
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

    writer = _Writer(StreamingTraceProtoBuilder(file), origin=min(earliest(run), 0))
    writer.begin()
    written = 0
    for number, process in enumerate(processes(run), start=1):
        uuid = number * _TRACKS_PER_PROCESS
        writer.process(uuid, number, process)
        done = 0
        for order, track in enumerate(process.tracks, start=1):
            writer.track(uuid + order, uuid, order, track)
            for chunk in track.chunks():
                writer.slices(uuid + order, chunk)
                done += len(chunk)
                progress(number - 1 + done / len(process))
        written += done
    return written


class _Interned:
    """One of the sequence's tables of texts; a text's number is its place in order of first use, from 1."""

    def __init__(self, field: str, text: str) -> None:
        self.field, self.text = field, text
        self.numbers: dict[str, int] = {}

    def add(self, packet: Any, text: str) -> int:
        """Give the number of *text*, and write the entry into *packet* when it is new."""
        number = self.numbers.get(text)
        if number is None:
            number = self.numbers[text] = len(self.numbers) + 1
            entry = getattr(packet.interned_data, self.field).add(iid=number)
            # The table of annotation strings holds bytes, the others hold text.
            setattr(entry, self.text, text.encode() if self.text == "str" else text)
        return number


class _Writer:
    """Packets of one sequence, in the order in which a reader needs them."""

    def __init__(self, builder: StreamingTraceProtoBuilder, origin: int) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2

        self.proto: Any = perfetto_trace_pb2
        self.builder: Any = builder
        # Timestamps are unsigned: a recording whose clock passes through 0 is moved there.
        self.origin = origin
        self.events = _Interned("event_names", "name")
        self.keys = _Interned("debug_annotation_names", "name")
        self.values = _Interned("debug_annotation_string_values", "str")

    def _packet(self, flags: int) -> Any:
        return self.proto.TracePacket(trusted_packet_sequence_id=_SEQUENCE, sequence_flags=flags)

    def begin(self) -> None:
        """Start the sequence's state, and say that processes stand in the order given."""
        proto = self.proto
        packet = self._packet(proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED)
        packet.first_packet_on_sequence = True
        packet.previous_packet_dropped = 1
        # Ranks on processes are honoured only when the root, uuid 0, says so.
        packet.track_descriptor.uuid = 0
        packet.track_descriptor.process_ordering = proto.TrackDescriptor.PROCESS_ORDERING_EXPLICIT
        self.builder.write_packet(packet)

    def process(self, uuid: int, number: int, process: Process) -> None:
        """Describe one GPU."""
        packet = self._packet(0)
        track = packet.track_descriptor
        track.uuid, track.sibling_order_rank = uuid, number
        track.child_ordering = self.proto.TrackDescriptor.EXPLICIT
        track.process.pid, track.process.process_name = number, process.name
        self.builder.write_packet(packet)

    def track(self, uuid: int, parent: int, order: int, track: Track) -> None:
        """Describe one row."""
        packet = self._packet(0)
        row = packet.track_descriptor
        row.uuid, row.parent_uuid, row.sibling_order_rank, row.name = uuid, parent, order, track.name
        self.builder.write_packet(packet)

    def slices(self, uuid: int, track: Track) -> None:
        """Write each slice as its beginning, with name and arguments, and its end."""
        names, details = self._labels(track), self._details(track)
        event = self.proto.TrackEvent
        begin, end = (self._packet(self.proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE) for _ in range(2))
        begin.track_event.type, end.track_event.type = event.TYPE_SLICE_BEGIN, event.TYPE_SLICE_END
        begin.track_event.track_uuid = end.track_event.track_uuid = uuid
        starts, ends = ((times - self.origin).tolist() for times in (track.start_ns, track.end_ns))
        shown: tuple[Any, ...] | None = None
        for start, stop, label, detail in zip(starts, ends, track.label.tolist(), details, strict=True):
            begin.timestamp, end.timestamp = start, stop
            begin.track_event.name_iid = names[label]
            # Neighbours mostly agree in phase and step, and copying annotations is a fifth of the work.
            if detail != shown:
                del begin.track_event.debug_annotations[:]
                begin.track_event.debug_annotations.extend(filter(None, detail))
                shown = detail
            self.builder.write_packet(begin)
            self.builder.write_packet(end)

    def _labels(self, track: Track) -> dict[int, int]:
        """Write the slices' names that are new; give each label's number."""
        used = sorted(set(track.label.tolist()))
        numbers: dict[int, int] = {}
        for first in range(0, len(used), _NAMES_PER_PACKET):
            packet = self._packet(self.proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE)
            for label in used[first : first + _NAMES_PER_PACKET]:
                numbers[label] = self.events.add(packet, track.labels[label])
            self.builder.write_packet(packet)
        return numbers

    def _details(self, track: Track) -> Sequence[tuple[Any, ...]]:
        """Write the arguments' texts that are new; give each slice's annotations."""
        packet = self._packet(self.proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE)
        columns = [self._annotations(packet, argument) for argument in track.arguments]
        self.builder.write_packet(packet)
        return list(zip(*columns, strict=True)) if columns else [()] * len(track)

    def _annotations(self, packet: Any, argument: Argument) -> list[Any]:
        """Give one annotation per slice, nothing where it has none; equal texts share one object."""
        make, key = self.proto.DebugAnnotation, self.keys.add(packet, argument.name)
        values = argument.values.tolist()
        if argument.texts is None:
            return [make(name_iid=key, int_value=value) if value >= 0 else None for value in values]
        made: dict[int, Any] = {-1: None}
        for value in set(values) - {-1}:
            made[value] = make(name_iid=key, string_value_iid=self.values.add(packet, argument.texts[value]))
        return [made[value] for value in values]

"""Perfetto's ``.pftrace`` as torch writes it, converted to the events that Kineto would have written.

torch's CUPTI monitor (``export_chrome_trace("x.pftrace")``, torch/csrc/profiler/cupti/monitor_pftrace.cpp and
torch/profiler/_cupti/monitor_trace.py of 2026) writes (gzipped, whatever the name):

- operators, annotations and runtime calls as TrackEvent slices on threads, with ``args`` as debug annotations, at
  first without and later with Kineto's categories; all begins of one kind, then all their ends, not in order of time;
- GPU work at first as such slices, on a thread per stream, later as GpuRenderStageEvents whose stage is called Kernel,
  Memcpy or Memset and whose ``args`` are extra data, all text;
- nanoseconds since the epoch, and no ``distributedInfo``, so that the rank comes from the file's name.

Slices of other writers are read, too, if they have Kineto's categories.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from dptrace.errors import TraceError
from dptrace.readers.packets import Packets
from dptrace.readers.source import Source
from dptrace.readers.stream import ChunkedStream, EventPiece

# State across Perfetto's packets: slices from begins and ends, threads of tracks, and clocks.

CompleteSlice = tuple[bytes, int, int]
"""A slice: its text without times, start and end in ns."""

_REALTIME, _BOOTTIME = 1, 6
"""Numbers of the clocks in a snapshot."""
_OWN = range(64, 128)
"""Ids of clocks that are local to one packet sequence."""


class Slices:
    """Pairs of begins and ends of one packet sequence.

    Perfetto pairs them by time: an end closes the slice that started last on its track. torch writes them in columns,
    a block of begins and then as many ends in the same order, which also pairs slices that touch or overlap.
    """

    def __init__(self) -> None:
        self._begins: list[tuple[int, int, bytes]] = []
        self._ends: list[tuple[int, int]] = []
        self._open: list[tuple[int, int, int, bytes | None]] = []
        """Begins and ends not paired within a block: time, position in the file, track, text."""
        self.unended = 0
        """Slices without an end; known after :meth:`flush`."""

    def begin(self, time: int, track: int, body: bytes) -> list[CompleteSlice]:
        """Add a begin; return the slices of the block that it closes."""
        paired = self._paired(last=False) if self._ends else []
        self._begins.append((time, track, body))
        return paired

    def end(self, time: int, track: int) -> None:
        """Add an end."""
        self._ends.append((time, track))

    def _paired(self, last: bool) -> list[CompleteSlice]:
        begins, ends = self._begins, self._ends
        self._begins, self._ends = [], []
        times = [begin[0] for begin in begins] + [end[0] for end in ends]
        in_order = len(begins) > 1 and all(map(int.__le__, times, times[1:]))
        # A truncated file lacks some ends of its last block.
        whole = len(begins) == len(ends) or (last and len(begins) > len(ends) and not in_order)
        if whole and (found := _nested(begins, ends) if in_order else _in_columns(begins[: len(ends)], ends)):
            self.unended += len(begins) - len(ends)
            return found
        self._open += [(time, len(self._open) + i, track, body) for i, (time, track, body) in enumerate(begins)]
        self._open += [(time, len(self._open) + i, track, None) for i, (time, track) in enumerate(ends)]
        return []

    def flush(self) -> Iterator[CompleteSlice]:
        """Yield the slices of the last block, and those not paired within a block."""
        yield from self._paired(last=True)
        stacks: dict[int, list[tuple[int, bytes]]] = {}
        for time, _, track, body in sorted(self._open, key=lambda entry: entry[:2]):
            stack = stacks.setdefault(track, [])
            if body is not None:
                stack.append((time, body))
            elif stack:
                start, text = stack.pop()
                yield text, start, time
        self._open.clear()
        self.unended += sum(map(len, stacks.values()))


def _in_columns(begins: list[tuple[int, int, bytes]], ends: list[tuple[int, int]]) -> list[CompleteSlice]:
    """Pair the n-th begin with the n-th end; empty where tracks or times contradict that."""
    pairs = list(zip(begins, ends, strict=True))
    fits = all(track == end_track and start <= end for (start, track, _), (end, end_track) in pairs)
    return [(body, start, end) for (start, _, body), (end, _) in pairs] if fits else []


def _nested(begins: list[tuple[int, int, bytes]], ends: list[tuple[int, int]]) -> list[CompleteSlice]:
    """Pair each end with the last begin on its track; empty if an end has none."""
    stacks: dict[int, list[tuple[int, bytes]]] = {}
    for time, track, body in begins:
        stacks.setdefault(track, []).append((time, body))
    found: list[CompleteSlice] = []
    for time, track in ends:
        if not stacks.get(track):
            return []
        start, body = stacks[track].pop()
        found.append((body, start, time))
    return found


class TrackDescriptors:
    """Processes and threads of tracks, from the track descriptors."""

    def __init__(self) -> None:
        self._threads: dict[int, tuple[int, int]] = {}
        self._parents: dict[int, int] = {}

    def update(self, descriptor: Any) -> None:
        """Add a descriptor."""
        uuid = descriptor.uuid
        if descriptor.HasField("thread"):
            self._threads[uuid] = descriptor.thread.pid, descriptor.thread.tid
        elif descriptor.HasField("process"):
            self._threads[uuid] = descriptor.process.pid, uuid
        if descriptor.parent_uuid:
            self._parents[uuid] = descriptor.parent_uuid

    def thread(self, uuid: int) -> tuple[int, int]:
        """Return process and thread of a track; a track without a thread counts as a thread of its process."""
        if uuid in self._threads:
            return self._threads[uuid]
        above, seen = uuid, {uuid}
        while (above := self._parents.get(above, 0)) and above not in seen:
            seen.add(above)
            if above in self._threads:
                return self._threads[above][0], uuid
        return 0, uuid


class PerfettoClocks:
    """Conversion of any clock to ns since the epoch, or to its own ns if no snapshot relates it to the epoch."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[int, int], int] = {}
        self._units: dict[tuple[int, int], int] = {}
        self._counted: dict[tuple[int, int], int] = {}
        """Last time of each clock whose timestamps are differences."""

    def update(self, snapshot: Any, sequence: int) -> None:
        """Add the simultaneous readings of several clocks."""
        readings = {clock.clock_id: clock.timestamp * (clock.unit_multiplier_ns or 1) for clock in snapshot.clocks}
        target = readings.get(_REALTIME, readings.get(_BOOTTIME))
        for clock in snapshot.clocks:
            key = _key(clock.clock_id, sequence)
            self._units[key] = clock.unit_multiplier_ns or 1
            if clock.is_incremental:
                self._counted[key] = readings[clock.clock_id]
            if target is not None:
                # The first offset is kept: clocks drift, and durations must not jump at each snapshot.
                self._offsets.setdefault(key, target - readings[clock.clock_id])

    def time(self, timestamp: int, clock: int, sequence: int) -> int:
        """Return the time of a packet in ns."""
        key = _key(clock or _BOOTTIME, sequence)
        time = timestamp * self._units.get(key, 1)
        if key in self._counted:
            time = self._counted[key] = self._counted[key] + time
        return time + self._offsets.get(key, 0)


def _key(clock: int, sequence: int) -> tuple[int, int]:
    return (clock, sequence if clock in _OWN else 0)


_BETWEEN = b'},{"ph"'
"""Separator of two events in the text."""
_TEXT = 1 << 14
"""Events per piece, some megabytes of text."""
_BASE = 7_889_238 * 10**9
"""Kineto's time base is a multiple of this many ns, a quarter of a year: times since then fit a double."""

_STAGES = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Annotation": "gpu_user_annotation"}
_LANE = re.compile(r"stream (\d+)$")
_NUMBERS = frozenset({"correlation", "bytes", "In msg nelems", "Out msg nelems", "Group size", "Seq", "Rank"})
"""Extra data that hold numbers as text."""
_OWN_FIGURE = "exposed_comm_ns"
"""An argument that only dptrace's own exports write."""

_FUNCTION = re.compile(r"\.pyx?\(\d+\): |^<built-in |^nn\.Module: ")
_NODE = re.compile(r"::|Backward\d*$|^(?:detach_?|record_param_comms)$")
_BEGIN, _END, _LEGACY_COMPLETE = 1, 2, ord("X")
_CLEARED = 1
"""Flag of a packet from which a sequence begins anew."""


def pieces(source: Source, start: bytes, chunks: ChunkedStream) -> Iterator[EventPiece]:
    """Read a file's events as the JSON text that Kineto would have written, some megabytes at a time.

    Args:
        start: the file's first bytes, read from *chunks* before.

    Raises:
        TraceError: the file is dptrace's own export.
    """
    packets = Packets(start, chunks)
    events = _Events(source)
    head = b""
    for packet in packets:
        events.take(packet)
        if len(events.out) >= _TEXT:
            head = head or events.head()
            yield EventPiece(events.text(), head, _BETWEEN, last=False)
    events.finish()
    lost = f"{packets.lost:,} of its packets can't be decoded" if packets.lost else ""
    unended = f"{events.unended:,} of its slices have no end" if events.unended else ""
    damage = packets.damage or lost or unended
    text = events.text() + (b"" if damage else b"]}")
    yield EventPiece(text, head or events.head(), _BETWEEN, last=True, damage=damage)


class _Sequence:
    """Interned data of one packet sequence, by id."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.categories: dict[int, str] = {}
        self.keys: dict[int, str] = {}
        self.strings: dict[int, str] = {}
        self.specs: dict[int, str] = {}
        self.clock = 0
        self.track = 0

    def update(self, data: Any) -> None:
        for entries, table in (
            (data.event_names, self.names),
            (data.event_categories, self.categories),
            (data.debug_annotation_names, self.keys),
            (data.gpu_specifications, self.specs),
        ):
            table.update((entry.iid, _text(entry.name)) for entry in entries)
        self.strings.update(
            (entry.iid, entry.str.decode("utf-8", "replace")) for entry in data.debug_annotation_string_values
        )


class _Events:
    """The events of a file while its packets are read."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.sequences: dict[int, _Sequence] = {}
        self.tracks, self.clocks = TrackDescriptors(), PerfettoClocks()
        self.slices: dict[int, Slices] = {}
        self.base: int | None = None
        self.categorized = False
        """Whether the file has categories; a slice without one is then not Kineto's."""
        self.unended = 0
        self.out: list[bytes] = []
        self.encoded: dict[str, bytes] = {}

    def head(self) -> bytes:
        return b'{"baseTimeNanoseconds":%d,"traceEvents":[' % (self.base or 0)

    def text(self) -> bytes:
        """Return the text of the complete events, and drop them here."""
        text = b",".join(self.out)
        self.out.clear()
        return text

    def take(self, packet: Any) -> None:
        """Process one packet."""
        number = packet.trusted_packet_sequence_id
        sequence = self.sequences.get(number)
        if sequence is None or packet.sequence_flags & _CLEARED:
            sequence = self.sequences[number] = _Sequence()
        kind = packet.WhichOneof("data")
        if packet.HasField("interned_data"):
            sequence.update(packet.interned_data)
            if _OWN_FIGURE in sequence.keys.values():
                raise TraceError(
                    f"{self.source.address}: is dptrace's own export for Perfetto, which holds figures and not the "
                    "operators and calls that they come from. Name the original traces instead."
                )
        if packet.HasField("trace_packet_defaults"):
            sequence.clock = packet.trace_packet_defaults.timestamp_clock_id
            sequence.track = packet.trace_packet_defaults.track_event_defaults.track_uuid
        if kind == "track_event":
            self._slice(packet, sequence, number)
        elif kind == "gpu_render_stage_event":
            self._stage(packet, sequence, number)
        elif kind == "track_descriptor":
            self.tracks.update(packet.track_descriptor)
        elif kind == "clock_snapshot":
            self.clocks.update(packet.clock_snapshot, number)

    def finish(self) -> None:
        """Pair the remaining begins and ends."""
        for slices in self.slices.values():
            for body, start, end in slices.flush():
                self._write(body, start, end)
            self.unended += slices.unended

    def _time(self, packet: Any, sequence: _Sequence, number: int) -> int:
        return self.clocks.time(packet.timestamp, packet.timestamp_clock_id or sequence.clock, number)

    def _slice(self, packet: Any, sequence: _Sequence, number: int) -> None:
        event = packet.track_event
        time = self._time(packet, sequence, number)
        kind = event.type
        legacy = event.legacy_event if not kind and event.HasField("legacy_event") else None
        if legacy is not None:
            kind = {ord("B"): _BEGIN, ord("E"): _END}.get(legacy.phase, legacy.phase)
        if kind not in (_BEGIN, _END, _LEGACY_COMPLETE):
            return
        track = event.track_uuid or sequence.track
        slices = self.slices.setdefault(number, Slices())
        if kind == _END:
            slices.end(time, track)
            return
        pid, tid = self.tracks.thread(track)
        if legacy is not None:
            pid, tid = legacy.pid_override or pid, legacy.tid_override or tid
        body = self._body(*self._slice_fields(event, sequence), pid, tid)
        if kind == _LEGACY_COMPLETE and legacy is not None:
            self._write(body, time, time + legacy.duration_us * 1000)
            return
        for whole in slices.begin(time, track, body):
            self._write(*whole)

    def _slice_fields(self, event: Any, sequence: _Sequence) -> tuple[str, str, dict[str, Any]]:
        """Return a slice's category, name and args."""
        name = sequence.names.get(event.name_iid, "") if event.name_iid else _text(event.name)
        args = {}
        for annotation in event.debug_annotations:
            key = _text(annotation.name) or sequence.keys.get(annotation.name_iid, "")
            args[key] = _value(annotation, sequence)
        categories = [*map(_text, event.categories), *[sequence.categories.get(iid, "") for iid in event.category_iids]]
        if categories or self.categorized:
            self.categorized = True
            return categories[0] if categories else "", name, args
        return _category(name, args), name, args

    def _stage(self, packet: Any, sequence: _Sequence, number: int) -> None:
        event = packet.gpu_render_stage_event
        stage = sequence.specs.get(event.stage_iid, "")
        name = sequence.names.get(event.name_iid, "") or _text(event.name) or stage
        lane = _LANE.search(sequence.specs.get(event.hw_queue_iid, ""))
        stream: int = int(lane.group(1)) if lane else event.hw_queue_iid
        args: dict[str, Any] = {"device": event.gpu_id, "stream": stream}
        for extra in event.extra_data:
            key, value = _text(extra.name), _text(extra.value)
            number_like = value.isdecimal() and len(value) < 19
            args[key] = int(value) if number_like and key in _NUMBERS else value
            if key == "stream id" and number_like:
                args["stream"] = int(value)
        time = self._time(packet, sequence, number)
        body = self._body(_STAGES.get(stage, ""), name, args, event.gpu_id, args["stream"])
        self._write(body, time, time + event.duration)

    def _body(self, category: str, name: str, args: dict[str, Any], pid: int, tid: int) -> bytes:
        """Return the JSON text of an event without its times."""
        encoded = self.encoded.get(name) or self.encoded.setdefault(name, msgspec.json.encode(name))
        kind = self.encoded.get(category) or self.encoded.setdefault(category, msgspec.json.encode(category))
        return b'{"ph":"X","cat":%b,"name":%b,"pid":%d,"tid":%d,"args":%b,' % (
            kind,
            encoded,
            pid,
            tid,
            msgspec.json.encode(args),
        )

    def _write(self, body: bytes, start: int, end: int) -> None:
        if self.base is None:
            self.base = start - start % _BASE
        self.out.append(b'%b"ts":%b,"dur":%b}' % (body, _microseconds(start - self.base), _microseconds(end - start)))


def _microseconds(time: int) -> bytes:
    return b"%s%d.%03d" % (b"-" if time < 0 else b"", *divmod(abs(time), 1000))


def _value(annotation: Any, sequence: _Sequence) -> Any:
    kind = annotation.WhichOneof("value")
    if kind == "string_value_iid":
        return sequence.strings.get(annotation.string_value_iid, "")
    if kind == "string_value":
        return _text(annotation.string_value)
    if kind in ("int_value", "uint_value", "double_value", "bool_value"):
        return getattr(annotation, kind)
    if annotation.array_values:
        return [_value(entry, sequence) for entry in annotation.array_values]
    if annotation.dict_entries:
        return {
            _text(entry.name) or sequence.keys.get(entry.name_iid, ""): _value(entry, sequence)
            for entry in annotation.dict_entries
        }
    return None


def _text(value: str | bytes) -> str:
    """Return a text of a packet, which protobuf returns as bytes where it is not UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _category(name: str, args: dict[str, Any]) -> str:
    """Infer an event's category, in files from before torch wrote categories, from args that only one has."""
    if "cbid" in args:
        return "cuda_runtime" if name.startswith("cuda") else "cuda_driver"
    if {"device", "stream", "correlation"} <= args.keys():
        copies = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}.get(name[:6], "")
        return "cuda_sync" if "cuda_sync_kind" in args else "kernel" if "grid" in args else copies
    if "Python id" in args or _FUNCTION.search(name):
        return "python_function"
    # Torch's operators have a namespace or are autograd nodes; labels of record_function have other names.
    return "cpu_op" if _NODE.search(name) else "user_annotation" if args else ""

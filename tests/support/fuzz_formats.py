"""Good traces in other formats than JSON for the fuzzer, and damage that reaches the depths of their readers."""

from __future__ import annotations

import io
import random
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from dptrace.export.perfetto import varint
from tests.support.damage import damaged
from tests.support.kineto_files import BASE_NS
from tests.support.perfetto_files import as_torch_of_june, as_torch_of_september, as_tracer

_FEW = 400
"""Events of a recording that a Perfetto file is made of."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


def perfetto_files(documents: list[dict[str, Any]]) -> Iterator[list[bytes]]:
    """Yield the packets of each trace in each layout that torch, or Perfetto's own library, writes."""
    for document in documents:
        events = [event for event in document["traceEvents"] if _is_complete(event)][:_FEW]
        if not events:
            continue
        for packets in (
            as_torch_of_june(events, BASE_NS),
            as_torch_of_september(events, BASE_NS),
            as_tracer(events, BASE_NS),
            as_tracer(events, BASE_NS, clock=64, shift=1000, compressed=True),
        ):
            yield [packet.SerializeToString() for packet in packets]


def _is_complete(event: Any) -> bool:
    args = event.get("args")
    if event.get("ph") != "X" or "dur" not in event or not isinstance(args, dict) or not isinstance(event["tid"], int):
        return False
    return event["cat"] not in ("kernel", "gpu_memcpy", "gpu_memset") or {"device", "stream"} <= args.keys()


def damaged_packets(rng: random.Random, packets: list[bytes], others: list[bytes]) -> bytes:
    """Return a file whose packets were changed, moved, repeated or dropped, each with its right length."""
    packets = list(packets)
    for _ in range(rng.choice((1, 1, 2, 5, 40))):
        at, kind = rng.randrange(len(packets)), rng.randrange(6)
        if kind == 0 and len(packets) > 1:
            del packets[at]
        elif kind == 1:
            packets[at:at] = [packets[at]] * rng.choice((1, 3, 100))
        elif kind == 2:
            packets.insert(rng.randrange(len(packets)), packets.pop(at))
        elif kind == 3:
            packets[at] = _changed_number(rng, packets[at])
        else:
            packets[at] = damaged(rng, packets[at], others)
    return framed(packets)


def framed(packets: list[bytes]) -> bytes:
    """Return the file of these packets."""
    return b"".join(b"\x0a" + varint(len(packet)) + packet for packet in packets)


def _changed_number(rng: random.Random, packet: bytes) -> bytes:
    """Return a packet that can be decoded, with another time, sequence, type, track or duration."""
    try:
        decoded = proto.TracePacket.FromString(packet)
    except DecodeError:  # damaged before
        return packet
    number = rng.choice((0, 1, 2, 3, 7, 64, 127, 1 << 31, 1 << 53, (1 << 63) - 1, (1 << 64) - 1))
    slice_id = number % (1 << 31)
    kind = rng.randrange(6)
    if kind == 0:
        decoded.timestamp = number
    elif kind == 1:
        decoded.trusted_packet_sequence_id = slice_id
    elif kind == 2:
        decoded.timestamp_clock_id = slice_id
    elif kind == 3:
        decoded.track_event.track_uuid = number
    elif kind == 4:
        decoded.gpu_render_stage_event.duration = number
    else:
        decoded.clock_snapshot.clocks.add(
            clock_id=rng.choice((1, 6, 64)), timestamp=number, unit_multiplier_ns=slice_id, is_incremental=True
        )
    return bytes(decoded.SerializeToString())


def archived(rng: random.Random, name: str, data: bytes) -> tuple[str, bytes]:
    """Put a trace into an archive with other files; return the archive's extension and bytes."""
    members = [("run/run.json", b'{"schema": 1}'), (f"run/{name}", data), ("run/notes.txt", b"x" * 300)]
    rng.shuffle(members)
    buffer = io.BytesIO()
    if rng.random() < 0.3:
        with tarfile.open(
            fileobj=buffer, mode="w", format=rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
        ) as tape:
            for member, content in members:
                info = tarfile.TarInfo(member)
                info.size = len(content)
                tape.addfile(info, io.BytesIO(content))
        return ".tar", buffer.getvalue()
    with zipfile.ZipFile(buffer, "w", rng.choice(_METHODS)) as bundle:
        for member, content in members:
            bundle.writestr(zipfile.ZipInfo(member), content, bundle.compression)
    return ".zip", buffer.getvalue()

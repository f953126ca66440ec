"""Ways to damage a trace file: its bytes, and its events."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

Event = dict[str, Any]

# Private-use characters stand for bytes that json.dumps would escape, until the text is written.
_RAW = {"\ue000": b'"', "\ue001": b"\x01\n", "\ue002": b"\xff\xfe", "\ue003": b"\\", "\ue004": b"\\ud83d"}

_VALUES: tuple[Any, ...] = (
    *(None, True, [], {}, "", "x", 0, -1, 1, 7, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 1e308, -0.0, 1e-320),
    *(float("nan"), float("inf"), -float("inf"), "NaN", "123", "12.5", "-4", "1e999", "0x7f", [1, [2]]),
    *({"a": {"b": 1}}, "{\ue000device\ue000: \ue000cpu\ue000}(1): f", "a\ue000b", "a\ue001b", "a\ue002b", "\ue004"),
    *("C:\ue003dir", "x" * 5000, "\u202e\x1b[31m"),
    *("kernel", "cpu_op", "user_annotation", "cuda_runtime", "gpu_memcpy", "ProfilerStep#3", "X", "nccl", "gloo:x"),
    *("autograd::engine::evaluate_function: A", "Optimizer.step#A", "dptrace::forward"),
)
_TOP = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id")
_INSIDE = (
    *("correlation", "stream", "device", "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype"),
    *("Process Group Name", "Seq", "Input Dims", "Input type", "External id"),
)
_AROUND = ("traceEvents", "baseTimeNanoseconds", "distributedInfo", "deviceProperties", "schemaVersion", "other")


def mutated_document(rng: random.Random, document: Event) -> tuple[Event, bytes]:
    """Return a document with changed events and metadata, and its text."""
    document = {**document, "traceEvents": list(document["traceEvents"])}
    for _ in range(rng.choice((1, 1, 2, 5, 40))):
        rng.choice(_STRUCTURAL)(rng, document)
    separators = rng.choice(((",", ":"), (", ", ": "), (",\n  ", ": ")))
    text = json.dumps(document, separators=separators, ensure_ascii=False).encode("utf-8", "surrogatepass")
    for sign, raw in _RAW.items():
        text = text.replace(sign.encode(), raw)
    return document, text


def damaged(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Change bytes: flip, delete, insert, repeat, truncate, or replace them by a part of another file."""
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at, length = rng.randrange(len(raw) + 1), min(int(rng.expovariate(1 / rng.choice((2, 50, 3000)))), len(raw))
        kind = rng.randrange(8)
        if kind == 0 and at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del raw[at : at + length]
        elif kind == 2:
            piece = rng.choice(_PIECES)
            raw[at:at] = piece * rng.choice((1, 1, 1, 3, 100_000 // len(piece)))
        elif kind == 3:
            raw[at:at] = raw[at : at + length]
        elif kind == 4 and rng.random() < 0.3:
            del raw[at:]
        elif kind == 5:
            other = rng.choice(others)
            begin = rng.randrange(len(other) + 1)
            raw[at : at + length] = other[begin : begin + length]
        elif kind == 6 and at < len(raw):
            raw[at] = rng.randrange(256)
        else:
            raw[at : at + rng.randrange(4)] = rng.choice(_PIECES)
    return bytes(raw)


_PIECES = (
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\0", b"\xff", b"\n", b"-", b"9", b"e9", b".", b"null", b"NaN"),
    *(b"Infinity", b'"traceEvents": [', b'], "traceEvents": [', b"]}", b'{"ph": "X"', b'},{"ph": "X",'),
    *(b'}\n{"ph": "X",', b"\xef\xbb\xbf", b'"ts": "5"', b'"ts": -1', b'"dur": 1e30', b"\\ud800", b"/* */", b"'"),
    *(b"[" * 2000, b'{"a":' * 2000),
)


def _event(rng: random.Random, document: Event) -> tuple[list[Any], int]:
    events = document["traceEvents"]
    if not isinstance(events, list) or not events:
        document["traceEvents"] = events = [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {}}]
    return events, rng.randrange(len(events))


def _field(rng: random.Random, document: Event) -> None:
    """Change or remove a field of an event, or of its args."""
    events, at = _event(rng, document)
    if not isinstance(events[at], dict):
        return
    events[at] = event = dict(events[at])
    inside = rng.random() < 0.4 and isinstance(event.get("args"), dict)
    if inside:
        event["args"] = dict(event["args"])
    holder, keys = (event["args"], _INSIDE) if inside else (event, _TOP)
    key = rng.choice(keys)
    if rng.random() < 0.2:
        holder.pop(key, None)
    elif type(holder.get(key)) in (int, float) and rng.random() < 0.4:
        holder[key] = rng.choice((str, lambda n: -n, lambda n: n * 1000, lambda n: n + 0.0005))(holder[key])
    else:
        holder[key] = rng.choice(_VALUES)


def _many(rng: random.Random, document: Event) -> None:
    """Set one field of many events to one value."""
    key, value = rng.choice(_TOP), rng.choice(_VALUES)
    events, _ = _event(rng, document)
    step = rng.choice((1, 2, 7))
    document["traceEvents"] = [
        {**event, key: value} if isinstance(event, dict) and i % step == 0 else event for i, event in enumerate(events)
    ]


def _whole_event(rng: random.Random, document: Event) -> None:
    """Replace, repeat, move, remove or lengthen an event."""
    events, at = _event(rng, document)
    kind = rng.randrange(6)
    if kind == 0:
        events[at] = rng.choice(_VALUES)
    elif kind == 1:
        events[at:at] = [events[at]] * rng.choice((1, 3, 100))
    elif kind == 2:
        events.insert(rng.randrange(len(events)), events.pop(at))
    elif kind == 3:
        del events[at : at + rng.choice((1, 5, 200))]
    elif kind == 4:
        rng.shuffle(events)
    elif isinstance(events[at], dict) and type(events[at].get("dur")) in (int, float):
        events[at] = {**events[at], "dur": events[at]["dur"] * rng.choice((3, 50, 1e4, 1e9, 1e13))}


def _swap(rng: random.Random, document: Event) -> None:
    """Copy a field of one event to another."""
    events, target = _event(rng, document)
    other, key = rng.randrange(len(events)), rng.choice(("cat", "name", "ph", "args", "ts", "pid", "tid"))
    if isinstance(events[target], dict) and isinstance(events[other], dict) and key in events[other]:
        events[target] = {**events[target], key: events[other][key]}


def _deep(rng: random.Random, document: Event) -> None:
    """Nest deeply, within an event or around the events."""
    depth: Any = 1
    for _ in range(rng.choice((10, 400))):
        depth = [depth] if rng.random() < 0.5 else {"a": depth}
    events, at = _event(rng, document)
    if rng.random() < 0.5:
        document[rng.choice(_AROUND)] = depth
    else:
        events[at] = {**events[at], "args": {"x": depth}} if isinstance(events[at], dict) else depth


def _around(rng: random.Random, document: Event) -> None:
    """Change or remove the metadata around the events."""
    key = rng.choice(_AROUND)
    if rng.random() < 0.3 and key != "traceEvents":
        document.pop(key, None)
    elif isinstance(document.get(key), dict) and document[key] and rng.random() < 0.7:
        document[key] = {**document[key], rng.choice(sorted(document[key])): rng.choice(_VALUES)}
    elif key != "traceEvents" or rng.random() < 0.05:
        document[key] = rng.choice(_VALUES)


_STRUCTURAL: tuple[Callable[[random.Random, Event], None], ...] = (
    *(_field, _field, _field, _field, _whole_event, _whole_event),
    *(_many, _swap, _deep, _around),
)

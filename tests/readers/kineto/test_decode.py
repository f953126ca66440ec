"""The pieces of a file, decoded one after the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.readers.kineto.columns.events import Columns
from dptrace.readers.kineto.decode import PieceDecoder
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.stream import EventPiece

LOOKALIKE = {"ph": "X", "cat": "kernel", "name": "} , {", "ts": 9, "dur": 9}


def event(name: str, at: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": 1, "args": args}


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.lists(st.integers(0, 1200), max_size=6))
def test_objects_that_look_like_events_are_none(lookalikes: list[int], cuts: list[int]) -> None:
    """Wherever a text was cut at what looks like the end of an event, all events are there, and no others."""
    separator = b'}, {"ph":'
    text = json.dumps([event(f"e{k}", k, list=[LOOKALIKE] * count) for k, count in enumerate(lookalikes)])[
        1:-1
    ].encode()
    columns = Columns()
    decoder = PieceDecoder(columns)
    begin = 0
    for cut in sorted(text.find(separator, cut) for cut in set(cuts)):
        if cut >= begin:
            decoder.add(EventPiece(text[begin : cut + 1], b'{"traceEvents":[', separator, last=False))
            begin = cut + 3
    decoder.finish(EventPiece(text[begin:] + b"]}", b'{"traceEvents":[', separator, last=True))

    assert (len(lookalikes), 0, 0) == (columns.kept, columns.repaired, columns.dropped)


@pytest.mark.heavy
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_file_of_such_events_is_read_whole(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by several processes, which find that a piece is not whole events."""
    monkeypatch.setattr("dptrace.readers.stream.CHUNK", 3000)
    monkeypatch.setattr("dptrace.readers.kineto.parallel_decode._MIN_TEXT_BYTES", 0)
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [event(f"e{k}", k, list=[LOOKALIKE] * (k % 7)) for k in range(300)]}))

    trace = read_trace(path, jobs)

    assert (300, ()) == (len(trace), trace.damage)
    assert [f"e{k}" for k in range(300)] == [trace.names[name] for name in trace.name]


@pytest.mark.heavy
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("key", ["name", "id", "ph"])
def test_objects_behind_the_events_are_none(
    jobs: int, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a text was cut in the rest of its document, the devices there are read as devices."""
    monkeypatch.setattr("dptrace.readers.kineto.parallel_decode._MIN_TEXT_BYTES", 0)
    devices = [{key: k, "id": k, "name": f"GPU {k}", "more": "x" * 40} for k in range(40)]
    devices = [{**device, "name": f"GPU {device['id']}"} for device in devices]
    events = [{"name": "e", **event("e", k)} for k in range(20)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": devices, "distributedInfo": {"rank": 7}}))

    for chunk in (300, 700, 1100):
        monkeypatch.setattr("dptrace.readers.stream.CHUNK", chunk)
        trace = read_trace(path, jobs)

        assert (20, 7, ()) == (len(trace), trace.rank, trace.damage)
        assert {k: f"GPU {k}" for k in range(40)} == trace.device_names


@pytest.mark.parametrize("first_key", ["zz", "", "a{b", 'q"', "Ü", "traceEvents"])
def test_events_may_begin_with_any_key(first_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No event is lost where none begins with a key that is read."""
    monkeypatch.setattr("dptrace.readers.stream.CHUNK", 3000)
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [{first_key: [k], **event("e", k)} for k in range(300)]}))

    trace = read_trace(path)

    assert (300, ()) == (len(trace), trace.damage)


def test_damage_is_reported_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece with a damaged event is held, and costs no event of the pieces around it."""
    monkeypatch.setattr("dptrace.readers.stream.CHUNK", 3000)
    text = json.dumps({"traceEvents": [event(f"e{k}", k) for k in range(300)]})
    path = tmp_path / "rank0.json"
    path.write_text(text.replace('"e70"', '"e"70"').replace('"e200"', "nonsense"))

    trace = read_trace(path)

    assert {f"e{k}" for k in range(300) if k not in (70, 200)} <= {trace.names[name] for name in trace.name}
    assert any("repaired" in sentence for sentence in trace.damage)


def test_of_several_values_the_last_counts(tmp_path: Path) -> None:
    """As JSON's readers take it, also where the others are of a type that no event has."""
    one, two = (json.dumps(event("e", k))[1:] for k in (1, 2))
    path = tmp_path / "rank0.json"
    path.write_text(f'{{"traceEvents": [{{"ph": "M", "cat": 17, "args": [1], {one}, {{"ts": 5, "ph": [], {two}]}}')

    trace = read_trace(path)

    assert ([1000, 2000], ()) == (trace.start_ns.tolist(), trace.damage)


@pytest.mark.parametrize("key", ['"ph"', '"name"', '"args"'])
def test_a_key_that_is_no_text_is_damage(key: str, tmp_path: Path) -> None:
    """An event that lost a field to a changed byte looks like one that never had it."""
    text = json.dumps({"traceEvents": [event(f"e{k}", k) for k in range(9)]}).encode()
    at = text.index(key.encode(), 300) + 2
    path = tmp_path / "rank0.json"
    path.write_bytes(text[:at] + b"\xc1" + text[at + 1 :])

    assert any("1 event repaired" in sentence for sentence in read_trace(path).damage)

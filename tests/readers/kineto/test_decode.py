"""The pieces of a file, decoded one after the other."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import signal
import time
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dptrace.readers.stream
from dptrace.errors import DptraceError, TraceError
from dptrace.readers.kineto import decode
from dptrace.readers.kineto.columns import Columns
from dptrace.readers.kineto.decode import ParallelDecoder, PieceDecoder, is_worthwhile
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.kineto.repair import clean, last_values, recover_metadata_fields, split_events
from dptrace.readers.source import Source
from dptrace.readers.stream import EventPiece
from dptrace.readers.trace import Trace
from tests.support.kineto_files import BASE_NS, KinetoFile, training_step

LOOKALIKE = {"ph": "X", "cat": "kernel", "name": "} , {", "ts": 9, "dur": 9}


def event(name: str, at: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": 1, "args": args}


@pytest.mark.heavy
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
    monkeypatch.setattr("dptrace.readers.kineto.decode._MIN_TEXT_BYTES", 0)
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [event(f"e{k}", k, list=[LOOKALIKE] * (k % 7)) for k in range(300)]}))

    trace = read_trace(path, jobs)

    assert (300, ()) == (len(trace), trace.damage)
    assert [f"e{k}" for k in range(300)] == [trace.names[name] for name in trace.name]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("key", ["name", "id", "ph"])
def test_objects_behind_the_events_are_none(
    jobs: int, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a text was cut in the rest of its document, the devices there are read as devices."""
    monkeypatch.setattr("dptrace.readers.kineto.decode._MIN_TEXT_BYTES", 0)
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


def test_damage_is_reported_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece with a damaged event is held, and costs no event of the pieces around it."""
    monkeypatch.setattr("dptrace.readers.stream.CHUNK", 3000)
    text = json.dumps({"traceEvents": [event(f"e{k}", k) for k in range(300)]})

    trace = read(tmp_path, text.replace('"e70"', '"e"70"').replace('"e200"', "nonsense"))

    assert {f"e{k}" for k in range(300) if k not in (70, 200)} <= {trace.names[name] for name in trace.name}
    (sentence,) = map(str, trace.damage)
    assert sentence.startswith("t.json: 2 events left out")


def test_of_several_values_the_last_counts(tmp_path: Path) -> None:
    """As JSON's readers take it, also where the others are of a type that no event has."""
    one, two = (json.dumps(event("e", k))[1:] for k in (1, 2))
    first, second = f'{{"ph": "M", "cat": 17, "args": [1], {one}', f'{{"ts": 5, "ph": [], {two}'

    trace = read(tmp_path, f'{{"traceEvents": [{first}, {second}]}}')

    assert ([1000, 2000], ()) == (trace.start_ns.tolist(), trace.damage)


def test_a_key_that_is_no_text_is_damage(tmp_path: Path) -> None:
    """An event that lost a field to a changed byte looks like one that never had it."""
    text = json.dumps({"traceEvents": [event(f"e{k}", k) for k in range(9)]}).encode()
    for key in (b'"ph"', b'"name"', b'"args"'):
        at = text.index(key, 300) + 2
        trace = read(tmp_path, text[:at] + b"\xc1" + text[at + 1 :])
        assert any("1 event repaired" in str(sentence) for sentence in trace.damage), key


# The document around the events, whole and damaged.


def read(folder: Path, text: str | bytes) -> Trace:
    path = folder / "t.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(path)


def steps(first: int = 0, count: int = 3, rank: int = 3) -> KinetoFile:
    file = KinetoFile(rank=rank, world_size=4)
    for k in range(first, first + count):
        training_step(file, k, 100 * k)
    return file


def test_a_damaged_key_that_hides_its_value_is_reported(tmp_path: Path) -> None:
    """A byte in ``distributedInfo`` that is no UTF-8 costs no event, and a note says what was not read."""
    path = tmp_path / "t.json"
    steps().write(path)
    document = json.loads(path.read_text())
    events = document.pop("traceEvents")
    text = json.dumps({**document, "traceEvents": events}).encode()
    whole, damaged = read(tmp_path, text), read(tmp_path, text.replace(b"distributedInfo", b"distribut\xa4dInfo"))

    assert () == whole.damage
    assert "can't be decoded" in str(damaged.damage[0])
    assert whole.start_ns.tolist() == damaged.start_ns.tolist()


@pytest.mark.heavy
@pytest.mark.parametrize("tail", ["NaN", '"a"b"', "[" * 100_000 + "]" * 100_000, "{,}"])
def test_damage_around_the_events_costs_no_event(tail: str, tmp_path: Path) -> None:
    """Damaged metadata is reported; events, clock base and rank are read, and the file does not count as truncated."""
    file = steps()
    text = file.text()[:-1] + f', "more": {tail}}}'

    trace = read(tmp_path, text)

    assert (3, 4, False, len(file.events)) == (trace.rank, trace.world_size, trace.cut, len(trace))
    assert BASE_NS == trace.start_ns[0]
    assert any("around the events can't be decoded" in str(sentence) for sentence in trace.damage)


def test_a_damaged_last_event_does_not_make_a_file_a_cut_one(tmp_path: Path) -> None:
    """Kineto's own keys after the list show that the file is whole."""
    text = steps().text()
    at = text.rindex('"name": "multi_tensor_apply"')

    trace = read(tmp_path, text[:at] + '"name": "a"b, "c' + text[at + 8 :])

    assert not trace.cut
    assert 1 == len(trace.damage)


def test_what_is_no_event_costs_none(tmp_path: Path) -> None:
    """Around the document and among its events; a note says what was not read."""
    file = steps()
    text = file.text().encode()
    at = text.index(b'{\n    "ph"', text.index(b"{\n", len(text) // 2))
    # File systems pad files that were allocated and not filled; editors on Windows mark UTF-8.
    for read_as_it_is in (text + b"\0" * 4096, b"\xef\xbb\xbf" + text):
        trace = read(tmp_path, read_as_it_is)
        assert (len(file.events), False, ()) == (len(trace), trace.cut, trace.damage)
    # Output of a shell or a log shipper is not read.
    for garbage in (b"x", b"]}", b'{"a": 1}', b"\n\nconnection closed by remote host\n"):
        trace = read(tmp_path, text + garbage)
        assert (len(file.events), False, 1) == (len(trace), trace.cut, len(trace.damage))
        assert f"t.json: {len(garbage.strip())} bytes after the end of the document" in str(trace.damage[0])
    for junk in (b",", b",,", b"null,", b'"text",', b"5,", b"[1],"):
        trace = read(tmp_path, text[:at] + junk + text[at:])
        assert (len(file.events), False, 1) == (len(trace), trace.cut, len(trace.damage))


@pytest.mark.parametrize("joined", ["keys", "documents", "bare lists"])
@pytest.mark.parametrize(("lists", "chunk"), [(2, 1 << 20), (12, 3000), (12, 700)])
def test_several_lists_are_read_as_one(
    joined: str, lists: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists in one document, and documents in one file: all events are read, with one note that counts the lists."""
    monkeypatch.setattr("dptrace.readers.stream.CHUNK", chunk)
    files = [steps(k, 1 + k % 3) for k in range(0, 3 * lists, 3)]
    texts = [json.dumps(file.events, indent=2) for file in files]
    text = "\n".join(texts if joined == "bare lists" else [file.text() for file in files])
    if joined == "keys":
        text = files[0].text()[:-1] + "".join(f', "traceEvents": {more}' for more in texts[1:]) + "}"

    trace = read(tmp_path, text)

    (note,) = map(str, trace.damage)
    assert (sum(len(file.events) for file in files), False) == (len(trace), trace.cut)
    assert f"t.json: Holds {lists} lists" in note
    assert ((None, 0) if joined == "bare lists" else (3, BASE_NS)) == (trace.rank, trace.start_ns[0])


@pytest.mark.parametrize("joined", ["keys", "documents"])
def test_damage_in_one_list_costs_no_event_of_the_others(joined: str, tmp_path: Path) -> None:
    """What can't be decoded is counted; the lists before and behind it are read."""
    files = [steps(k, 3) for k in range(0, 36, 3)]
    texts = [file.text() for file in files]
    texts[5] = texts[5].replace('"dur": 30', '"dur": 3x0', 1)
    text = "\n".join(texts)
    if joined == "keys":
        text = texts[0][:-1] + "".join(', "traceEvents": [' + more.split("[", 1)[1][:-1] for more in texts[1:]) + "}"

    trace = read(tmp_path, text)

    assert sum(len(file.events) for file in files) - 1 <= len(trace)
    assert not trace.cut


def test_bare_events_one_to_a_line_are_read(tmp_path: Path) -> None:
    """Bare events are read, with a note; a truncated last line truncates the file."""
    file = steps()
    for separator in ("\n", "\r\n", ",\n", " "):
        text = separator.join(map(json.dumps, file.events))
        whole, cut = read(tmp_path, text), read(tmp_path, text[:-30])
        assert (len(file.events), False, True) == (len(whole), whole.cut, cut.cut)
        assert "bare events" in str(whole.damage[0])


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("more", [', "traceEvents": []', '} {"traceEvents": []'])
def test_thousands_of_lists_take_a_moment(more: str, tmp_path: Path) -> None:
    """Reading takes no longer for each further list."""
    file = steps()

    begin = process_time()
    trace = read(tmp_path, file.text()[:-1] + more * 20_000 + "}")

    assert process_time() - begin < 10
    assert (len(file.events), False) == (len(trace), trace.cut)


# Two processes that wrote one file.


def test_events_of_two_processes_in_one_file_are_refused(tmp_path: Path) -> None:
    """Their blocks alternate, so that the second header is within an event; whole files, too, unless of one rank."""
    texts = [steps(rank=rank).text() for rank in (0, 1)]
    for size in (900, 3001, 8192):
        blocks = [[text[at : at + size] for at in range(0, len(text), size)] for text in texts]
        with pytest.raises(TraceError, match="two headers"):
            read(tmp_path, "".join(block for pair in zip(*blocks, strict=False) for block in pair))
    with pytest.raises(TraceError, match="rank 0 and of rank 1"):
        read(tmp_path, "\n".join(texts))


def test_a_document_within_an_event_is_no_second_header(tmp_path: Path) -> None:
    """As an argument or in the metadata, also where the event beside it is damaged."""
    inner = {"schemaVersion": 1, "distributedInfo": {"rank": 5}, "traceEvents": [{"ph": "X"}]}
    file = steps()
    file.op("op", 301, 302, config=inner, several=[inner, 1]).op("bro?ken", 303, 304)
    file.head["distributedInfo"]["config"] = inner

    assert len(file.events) == len(read(tmp_path, file.text()))
    assert len(file.events) - 1 == len(read(tmp_path, file.text().replace("bro?ken", 'bro"ken')))


# Decoding of one file by several processes.

TEXT = b'{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}'
EVENT = EventPiece(TEXT, b"[", b"", last=False)


@pytest.fixture
def many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make several processes read small files."""
    monkeypatch.setattr(decode, "_MIN_TEXT_BYTES", 1)
    monkeypatch.setattr(dptrace.readers.stream, "CHUNK", 3000)


def damaged_file(path: Path) -> Path:
    file = steps(0, 60).op("x" * 10_000, 1, 2).op("bro?ken", 3, 4)
    for k in range(60, 90):
        training_step(file, k, 100 * k)
    path.write_bytes(gzip.compress(file.text().replace("bro?ken", "bro\x01ken").encode()))
    return path


@pytest.mark.heavy
@pytest.mark.usefixtures("many_pieces")
def test_many_processes_read_what_one_reads(tmp_path: Path) -> None:
    """Every column, name, collective and note is the same, in order, even with an event longer than a piece."""
    path = damaged_file(tmp_path / "t.json.gz")

    single, parallel = read_trace(path), read_trace(path, jobs=3)

    assert single.comm
    assert single.damage
    for field in dataclasses.fields(single):
        mine, theirs = getattr(single, field.name), getattr(parallel, field.name)
        if isinstance(mine, np.ndarray):
            assert np.array_equal(mine, theirs), field.name
            assert mine.dtype == theirs.dtype, field.name
        else:
            assert mine == theirs, field.name


def test_a_process_that_dies_is_reported_and_the_others_end(tmp_path: Path) -> None:
    """No hang, no orphan, and an error that names the file and a workaround."""
    with (
        pytest.raises(DptraceError, match=r"t\.json: a process .* killed by signal 9 .*--jobs 1"),
        ParallelDecoder(Source.of(tmp_path / "t.json"), Columns(), 2) as decoder,
    ):
        for k in range(100):
            decoder.add(EVENT)
            if k == 5:
                os.kill(decoder.workers[0].process.pid, signal.SIGKILL)
                decoder.workers[0].process.wait()
        decoder.finish()

    assert all(worker.process.poll() is not None for worker in decoder.workers)


@pytest.mark.heavy
def test_a_process_that_fails_is_reported(tmp_path: Path) -> None:
    """A failed process does not lose events silently."""
    with (
        pytest.raises(DptraceError, match=r"t\.json: a process .* failed .*--jobs 1"),
        ParallelDecoder(Source.of(tmp_path / "t.json"), Columns(), 1) as decoder,
    ):
        decoder.add(EventPiece(TEXT, b"[", None, last=False))  # type: ignore[arg-type]
        decoder.finish()


@pytest.mark.heavy
def test_processes_end_when_the_one_that_asks_is_gone(tmp_path: Path) -> None:
    """The workers end if the parent is killed."""
    with ParallelDecoder(Source.of(tmp_path / "t.json"), Columns(), 1) as decoder:
        (worker,) = decoder.workers
        decoder.add(EVENT)
        decoder.finish()
        worker.connection.close()
        until = time.monotonic() + 60
        while worker.process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)

        assert 0 == worker.process.poll()
        assert 1 == decoder.columns.kept


def test_only_large_files_pay(tmp_path: Path) -> None:
    """One process reads a file that takes a second, and a pipe, whose size is unknown."""
    small, large, zipped, pipe = (tmp_path / name for name in ("a.json", "b.json", "c.json.gz", "d.json"))
    for path, size in ((small, 2), (large, 500 << 20), (zipped, 100 << 20)):
        path.touch()
        os.truncate(path, size)
    os.mkfifo(pipe)

    asked = ((small, 4), (large, 4), (large, 1), (zipped, 4), (pipe, 4))
    assert [False, True, False, True, False] == [is_worthwhile(Source.of(path), jobs) for path, jobs in asked]


# Damaged JSON, as real bugs wrote it: what needs no guess is read, the rest is counted.

PLAIN = '{"ph": "X", "cat": "kernel", "name": %s, "pid": 0, "tid": 7, "ts": 5, "dur": 3, "args": {"x": %s}}'


def test_what_needs_no_guess_is_read() -> None:
    """Characters that no string may hold and invalid numbers do not cost the event or its time."""
    for name, x, read in (
        # pytorch#98432: Windows paths.
        ('"torch\\cuda\\__init__.py(219)"', "0", ("torch\\cuda\\__init__.py(219)", 0)),
        # pytorch#136180: control characters from code objects.
        ('"config.py(0): \x01\x02"', "0", ("config.py(0):   ", 0)),
        ('"half \\ud83d of it"', "0", ("half \ufffd of it", 0)),
        ('"a\udcffb"', "0", ("a\ufffdb", 0)),
        # A copy of length 0 has infinite bandwidth.
        ('"k"', "[inf, -nan, NaN, -Infinity]", ("k", [None] * 4)),
    ):
        event = json.loads(clean((PLAIN % (name, x)).encode(errors="surrogateescape")))
        assert (*read, 5, 3) == (event["name"], event["args"]["x"], event["ts"], event["dur"])


@given(st.binary(max_size=300))
def test_any_bytes_can_be_looked_at(text: bytes) -> None:
    """No bytes make the repair fail."""
    clean(text), last_values(text), split_events(text), recover_metadata_fields(text)


@pytest.mark.heavy
@pytest.mark.parametrize("sign", [b'"', b'\\"', b"[", b'"}', b'" ', b'"name":"', b', "', b"} "])
def test_no_text_is_walked_over_and_over(sign: bytes) -> None:
    """Half a megabyte of any character takes a moment: nothing is quadratic."""
    text = b'{"ph": "X", "ts": 1, "name": "' + sign * (500_000 // len(sign))

    begin = process_time()
    clean(text), last_values(text), split_events(text), recover_metadata_fields(text)

    assert process_time() - begin < 5


def test_repairs_are_reported_once_with_their_count(tmp_path: Path) -> None:
    """Three damaged names and one lost comma: what was repaired and what was left out, a note each."""
    file = KinetoFile()
    for k in range(300):
        file.kernel(f"bad{k}" if k in (5, 50, 299) else "k", 10 * k, 10 * k + 5, 10 * k - 3)
    text = file.text().replace('"bad5"', '"a"b"').replace('"bad50"', '"a\\d"').replace('"bad299"', '"a\x07"')
    at = text.index('},\n  {\n    "ph"', len(text) // 2)
    path = tmp_path / "t.json"
    path.write_text(text[: at + 1] + text[at + 2 :])

    trace = read_trace(path)

    assert (599, False, BASE_NS - 3000) == (len(trace), trace.cut, trace.start_ns[0])
    repaired, dropped = map(str, trace.damage)
    assert repaired.startswith("t.json: 3 events repaired")
    assert dropped.startswith("t.json: 1 event left out")


# Documents and numbers, however JSON lets them be spelled.


@pytest.mark.parametrize("number", ["9" * 400, "1e999", "-" + "9" * 400])
def test_a_number_of_any_length_is_at_most_damage(number: str, tmp_path: Path) -> None:
    """An id that is none counts as absent; an event without a possible time is left out, with a note."""
    for field in ("ts", "dur", "pid", "tid", "correlation", "stream", "device", "In msg nelems", "Seq"):
        file = training_step(KinetoFile(), 0, 0)
        kernel = next(event for event in file.events if event["cat"] == "kernel")
        (kernel if field in kernel else kernel["args"])[field] = "NUMBER"
        trace = read(tmp_path, file.text().replace('"NUMBER"', number))
        assert len(trace) + (field in ("ts", "dur")) == len(file.events) or trace.damage, field


def test_the_list_of_the_document_itself_is_read(tmp_path: Path) -> None:
    """One of the same name deeper in the document, before or after it, is none; nor is white space anything."""
    events = training_step(KinetoFile(), 0, 0).events
    kernel = '{"ph": "X", "cat": "kernel", "ts": 5, "dur": 5}'
    for document in (
        '{"a": {"traceEvents": []}, %s}',
        f'{{"a": {{"traceEvents": [{kernel}]}}, %s}}',
        '{%s, "a": {"traceEvents": []}}',
        f'{{%s, "a": [{{"traceEvents": [{kernel}]}}]}}',
        '{"a": "\\"traceEvents\\": [", %s}',
        '{%s, "a": "\\"traceEvents\\": [1"}',
        "\n" * 5000 + "{%s}",
        " \t\r\n" * 800_000 + "{%s}",
    ):
        trace = read(tmp_path, document % f'"traceEvents": {json.dumps(events)}')
        assert (len(events), ()) == (len(trace), trace.damage), document.strip()

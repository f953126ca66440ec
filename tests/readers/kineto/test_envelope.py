"""The document around the events, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time

import pytest

from dptrace.readers.kineto.envelope import decode_document, end_of, recover_metadata
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.trace import Trace
from tests.support.kineto_files import BASE_NS, KinetoFile, training_step


def read(folder: Path, text: str | bytes) -> Trace:
    path = folder / "t.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(path)


def steps(first: int = 0, count: int = 3) -> KinetoFile:
    file = KinetoFile(rank=3, world_size=4)
    for k in range(first, first + count):
        training_step(file, k, 100 * k)
    return file


def test_metadata_is_what_stands_around_an_emptied_list() -> None:
    """Before or after the list of events."""
    metadata = decode_document(b'{"distributedInfo": {"rank": 2}, "traceEvents": [', b'], "baseTimeNanoseconds": 5}')

    assert metadata is not None
    assert (5, {"rank": 2}, ()) == (metadata.base, metadata.distributed, metadata.damage)
    assert decode_document(b'{"traceEvents": [', b'], "x": NaN}') is None


def test_what_can_be_found_in_damaged_metadata_is() -> None:
    """The clock's base and the rank are recovered."""
    metadata = recover_metadata(b'{"rank": 2, "world_size": 8, "x": NaN, "traceEvents": [], "baseTimeNanoseconds": 17}')

    assert (17, {"rank": 2, "world_size": 8}) == (metadata.base, metadata.distributed)
    assert "can't be decoded" in metadata.damage[0]


def test_a_damaged_key_that_hides_its_value_is_reported(tmp_path: Path) -> None:
    """A byte in ``distributedInfo`` that is no UTF-8 costs no event, and a note says what was not read."""
    path = tmp_path / "t.json"
    steps().write(path)
    document = json.loads(path.read_text())
    events = document.pop("traceEvents")
    text = json.dumps({**document, "traceEvents": events}).encode()
    whole, damaged = read(tmp_path, text), read(tmp_path, text.replace(b"distributedInfo", b"distribut\xa4dInfo"))

    assert () == whole.damage
    assert "can't be decoded" in damaged.damage[0]
    assert whole.start_ns.tolist() == damaged.start_ns.tolist()


@pytest.mark.parametrize("sound", [True, False])
def test_the_list_ends_before_what_follows_it(sound: bool) -> None:
    """Brackets in the last event and after the list are not its end."""
    text = b'{"ph": "X", "args": {"Dims": [[1], [2]]}}], "more": [{"ph": 1}], "x": "]"}  '
    found = end_of(b'{"traceEvents": [', text, 0, sound)

    assert found is not None
    assert b'], "more"' == text[found.end : found.end + 9]


@pytest.mark.heavy
@pytest.mark.parametrize("tail", ["NaN", '"a"b"', "[" * 100_000 + "]" * 100_000, "{,}"])
def test_damage_around_the_events_costs_no_event(tail: str, tmp_path: Path) -> None:
    """Damaged metadata is reported; events, clock base and rank are read, and the file does not count as truncated."""
    file = steps()
    text = file.text()[:-1] + f', "more": {tail}}}'

    trace = read(tmp_path, text)

    assert (3, 4, False, len(file.events)) == (trace.rank, trace.world_size, trace.cut, len(trace))
    assert BASE_NS == trace.start_ns[0]
    assert any("around the events can't be decoded" in sentence for sentence in trace.damage)


def test_a_damaged_last_event_does_not_make_a_file_a_cut_one(tmp_path: Path) -> None:
    """Kineto's own keys after the list show that the file is whole."""
    text = steps().text()
    at = text.rindex('"name": "multi_tensor_apply"')

    trace = read(tmp_path, text[:at] + '"name": "a"b, "c' + text[at + 8 :])

    assert not trace.cut
    assert 1 == len(trace.damage)


@pytest.mark.parametrize("garbage", ["x", "]}", '{"a": 1}', "\n\nconnection closed by remote host\n"])
def test_what_follows_the_document_is_reported_and_not_read(garbage: str, tmp_path: Path) -> None:
    """Output of a shell or a log shipper, for example."""
    file = steps()

    trace = read(tmp_path, file.text() + garbage)

    assert (len(file.events), False) == (len(trace), trace.cut)
    assert f"t.json: {len(garbage.strip())} bytes after the end of the document" in trace.damage[0]


def test_zeros_after_the_document_are_no_damage(tmp_path: Path) -> None:
    """File systems pad files that were allocated and not filled."""
    assert () == read(tmp_path, steps().text().encode() + b"\0" * 4096).damage


@pytest.mark.parametrize("joined", ["keys", "documents", "bare lists"])
@pytest.mark.parametrize(("lists", "chunk"), [(2, 1 << 20), (12, 1 << 20), (12, 3000), (12, 700)])
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

    assert sum(len(file.events) for file in files) == len(trace)
    assert (False, (f"t.json: Holds {lists} lists of events; they were read as one.",)) == (trace.cut, trace.damage)
    assert (None if joined == "bare lists" else 3, BASE_NS * (joined != "bare lists")) == (
        trace.rank,
        trace.start_ns[0],
    )


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


@pytest.mark.parametrize("separator", ["\n", "\r\n", ",\n", " "])
def test_bare_events_one_to_a_line_are_read(separator: str, tmp_path: Path) -> None:
    """Bare events are read, with a note; a truncated last line truncates the file."""
    file = steps()
    text = separator.join(map(json.dumps, file.events))

    whole, cut = read(tmp_path, text), read(tmp_path, text[:-30])

    assert (len(file.events), False) == (len(whole), whole.cut)
    assert "bare events" in whole.damage[0]
    assert cut.cut


def test_a_mark_before_utf_8_is_no_damage(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    assert () == read(tmp_path, b"\xef\xbb\xbf" + steps().text().encode()).damage


@pytest.mark.parametrize("junk", [",", ",,", "null,", '"text",', "5,", "[1],", "{},", "{"])
def test_junk_among_the_events_costs_none_of_them(junk: str, tmp_path: Path) -> None:
    """Values that are not events are dropped, counted and reported."""
    file = steps()
    text = file.text()
    at = text.index("{\n", len(text) // 2)
    at = text.index('{\n    "ph"', at)

    trace = read(tmp_path, text[:at] + junk + text[at:])

    assert (len(file.events), False) == (len(trace), trace.cut)
    assert junk == "{}," or 1 == len(trace.damage)


def test_events_beside_junk_are_all_read_though_a_text_could_swallow_one(tmp_path: Path) -> None:
    """An event that ends with a string, junk, another event: none becomes a name with quotation marks."""
    texts = [json.dumps({"ph": "X", "ts": k, "dur": 1, "cat": "cpu_op", "name": "op"}) for k in range(9)]
    text = ", ".join(texts[:4]) + ', "0x7f", ' + ", ".join(texts[4:])

    assert 9 == len(read(tmp_path, f'{{"traceEvents": [{text}]}}'))


@pytest.mark.heavy
@pytest.mark.parametrize("more", [', "traceEvents": []', '} {"traceEvents": []', "} []"])
def test_thousands_of_lists_take_a_moment(more: str, tmp_path: Path) -> None:
    """Reading takes no longer for each further list."""
    file = steps()

    begin = process_time()
    trace = read(tmp_path, file.text()[:-1] + more * 20_000 + "}")

    assert process_time() - begin < 10
    assert (len(file.events), False) == (len(trace), trace.cut)

"""A file's text, split into pieces."""

from __future__ import annotations

import gzip
import json
import pickle
import tracemalloc
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dptrace.readers.kineto.json_stream
import dptrace.readers.stream
from dptrace.errors import TraceError, UsageError
from dptrace.readers.formats import pieces
from dptrace.readers.kineto.json_stream import State, count_brackets, cut_between_events, find_list, is_list
from dptrace.readers.kineto.reader import read_trace
from tests.support.kineto_files import KinetoFile, training_step


def file_text() -> str:
    file = KinetoFile()
    for k in range(30):
        training_step(file, k, 100 * k)
    return file.text()


@pytest.mark.parametrize("size", [200, 997, 1 << 20])
def test_pieces_put_together_are_the_text(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No byte between the brackets is lost or repeated, and only the last piece is last."""
    monkeypatch.setattr(dptrace.readers.stream, "CHUNK", size)
    text = file_text().encode()
    path = tmp_path / "t.json"
    path.write_bytes(text)

    cut = list(pieces(path))

    assert [False] * (len(cut) - 1) + [True] == [piece.last for piece in cut]
    # Between two pieces are a comma and white space.
    together = cut[0].head + b",".join(piece.text for piece in cut)
    assert text.translate(None, b" \n") == together.translate(None, b" \n")


def test_several_gzip_members_are_one_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files joined with cat, as log shippers do, are read to the end."""
    text = file_text().encode()
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(text[:5000]) + gzip.compress(text[5000:]) + b"\0" * 16)

    (only,) = pieces(path)

    assert text == only.head + only.text
    assert "" == only.damage


def _spelled(events: list[dict[str, Any]], spelling: str) -> str:
    """Write a trace as tools write it: with other white space, and with another order of keys or events."""
    if spelling == "metadata first":
        events = [{"name": "process_name", "ph": "M", "pid": k} for k in range(5)] + events
    elif spelling == "any first key":
        events = [{f"key {k}": 1, **event} for k, event in enumerate(events)]
    elif spelling == "sorted keys":
        events = [dict(sorted(event.items())) for event in events]
    elif spelling == "mixed":
        events = [dict(sorted(event.items())) if k % 50 == 0 else event for k, event in enumerate(events)]
    separators = (",", ":") if spelling in ("compact", "metadata first") else None
    text = json.dumps({"traceEvents": events}, indent=4 if spelling == "pretty" else None, separators=separators)
    return text.replace("}, {", "},\r\n{") if spelling == "CRLF" else text


def test_memory_stays_by_the_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece is at most two chunks and an event long, whatever the order of keys and events: all are cut alike."""
    monkeypatch.setattr(dptrace.readers.stream, "CHUNK", 2000)
    path, events = tmp_path / "t.json.gz", json.loads(file_text())["traceEvents"]
    for spelling in ("default", "compact", "pretty", "CRLF", "metadata first", "any first key", "sorted keys", "mixed"):
        path.write_bytes(gzip.compress(_spelled(events, spelling).encode(), 1))
        assert all(len(piece.text) < 5500 for piece in pieces(path)), spelling


@pytest.mark.heavy
@pytest.mark.parametrize("sign", [b"{", b"[", b'{"a":', b"0,", b"\\"])
def test_a_file_of_one_sign_is_refused_soon(sign: bytes, tmp_path: Path) -> None:
    """Ten megabytes of it take little time and memory, and the error names the file."""
    path = tmp_path / "t.json.gz"
    head = b"" if sign == b"[" else b'{"traceEvents":['
    path.write_bytes(gzip.compress(head + sign * (10_000_000 // len(sign)), 1))

    begin = process_time()
    tracemalloc.start()
    with pytest.raises(TraceError, match=r"t\.json\.gz: "):
        read_trace(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert process_time() - begin < 3
    assert peak < 100_000_000


@pytest.mark.heavy
def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of over a gigabyte that expands 200 times is not a trace; an environment variable lifts the limit."""
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 12_000_000 + b"]}"))
    assert "" == list(pieces(path))[-1].damage
    monkeypatch.setattr(dptrace.readers.stream, "_MAX_UNCHECKED", 10_000_000)

    with pytest.raises(TraceError, match="gzip bomb") as error:
        list(pieces(path))
    assert str(path) in str(error.value)
    assert "DPTRACE_GZIP_LIMIT=0" in str(error.value)

    monkeypatch.setenv("DPTRACE_GZIP_LIMIT", "0")
    assert list(pieces(path))[-1].text.endswith(b"]}")
    monkeypatch.setenv("DPTRACE_GZIP_LIMIT", "much")
    with pytest.raises(UsageError, match="DPTRACE_GZIP_LIMIT='much'"):
        list(pieces(path))


def test_other_forms_are_named_with_what_to_do(tmp_path: Path) -> None:
    """The error for an unsupported format names it, and the command that converts it."""
    path = tmp_path / "t.json"
    for content, message in [
        ('{"traceEvents": []}'.encode("utf-16"), "UTF-16 text; .*iconv"),
        *(
            (f'{start}{{"traceEvents": []}}'.encode(f"utf-16-{order}"), f"UTF-16 text; .*-f UTF-16{order.upper()} ")
            for order in ("le", "be")
            for start in ("", "\n", " ", "[", "\r\n  ")
        ),
        (b"\x28\xb5\x2f\xfd\0\0", "zstd -d"),
        (b"BZh91AY", "bunzip2"),
        (b"\xfd7zXZ\0", "unxz"),
        *((pickle.dumps({}, protocol), "does not load .*memory_viz") for protocol in (2, 3, 4, 5)),
    ]:
        path.write_bytes(content)
        with pytest.raises(TraceError, match=message):
            list(pieces(path))


def test_no_memory_is_filled_where_no_event_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text without the end of an event, longer than any event, ends the reading, with a note."""
    monkeypatch.setattr(dptrace.readers.stream, "CHUNK", 1000)
    monkeypatch.setattr(dptrace.readers.kineto.json_stream, "_STRETCH", 5000)
    path = tmp_path / "t.json"
    path.write_text(file_text().replace("]", ', {"ph": "X", "name": "' + "x" * 100_000, 1))

    last = list(pieces(path))[-1]

    assert "in which no event ends" in last.damage
    assert len(last.text) < 10_000


def test_what_stands_before_damage_in_a_block_is_given(tmp_path: Path) -> None:
    """A wrong checksum is found at the end, after decompression: nothing before it is lost."""
    text = file_text().encode()
    data = bytearray(gzip.compress(text))
    data[-6] ^= 1
    path = tmp_path / "t.json.gz"
    path.write_bytes(bytes(data))

    cut = list(pieces(path))

    assert text.endswith(cut[-1].text)
    assert "damaged" in cut[-1].damage


# The structure of JSON text that is not whole.

_TEXTS = st.text(st.sampled_from('ab{}[],:"\\ \n\u00e9'), max_size=6)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS | st.just("traceEvents"), inner, max_size=3),
    max_leaves=8,
)
_EVENTS = st.lists(st.dictionaries(_TEXTS, _VALUES, max_size=3), min_size=2, max_size=6)
_SPELLINGS = st.sampled_from([(None, (",", ":")), (None, (", ", ": ")), (2, (" ,", " : ")), ("\t", (",\n\n", ":\r\n"))])


@pytest.mark.slow
@given(st.lists(st.tuples(_TEXTS, _VALUES), max_size=4), _EVENTS, _SPELLINGS)
def test_the_list_of_the_document_itself_is_found(
    around: list[tuple[str, Any]], events: list[Any], spelling: tuple[Any, tuple[str, str]]
) -> None:
    """Lists of the same name deeper in the document are passed over, whatever comes before."""
    indent, separators = spelling
    before = {key: value for key, value in around if key not in ("ph", "traceEvents")}
    text = json.dumps(before | {"traceEvents": events}, indent=indent, separators=separators).encode()

    found = find_list(text)

    assert isinstance(found, int)
    assert events == json.loads(text[found - 1 : -1])
    assert all(find_list(text[:end]) is State.MORE for end in range(1, found))


def test_without_a_list_the_reason_is_known() -> None:
    """A whole document, an event and damage are told apart."""
    states = {
        b'{"a": {"traceEvents": []}}': State.NONE,
        b'{"traceEvents": {"a": 1}}\n': State.NONE,
        b'{"x": 1, "ph": "X"}\n{"ph": "X"}': State.EVENT,
        b'{"a": "b"c", "traceEvents": []}': State.MORE,
        b'{"a": 1 "traceEvents" []}': State.MORE,
        b'{a: 1, "traceEvents": []}': State.BROKEN,
        b'{"a": 1} x': State.BROKEN,
    }
    assert states == {text: find_list(text) for text in states}


def test_a_name_may_be_escaped_and_another_document_come_first() -> None:
    """As JSON spells it; several documents follow each other in files that were joined."""
    text = b'{"a": 1}\n{"trace\\u0045vents": [1]}'

    assert text.index(b"[") + 1 == find_list(text)


@pytest.mark.heavy
@given(_EVENTS, _SPELLINGS, st.data())
def test_a_cut_is_between_two_events(events: list[Any], spelling: tuple[Any, tuple[str, str]], data: Any) -> None:
    """At any key, order, spacing and nesting; there is none only if no event is followed by another.

    The cut is a guess where the arguments of an event hold objects that look like events: then the text before it is no
    list, which decoding shows, and counting the brackets is right.
    """
    indent, separators = spelling
    texts = [json.dumps(event, indent=indent, separators=separators) for event in events]
    text = separators[0].join(texts).encode()
    ends = [len(separators[0].join(texts[: k + 1])) for k in range(len(texts))]
    shown = text[: data.draw(st.integers(0, len(text)))]
    # Another event follows if its brace is there.
    whole = [end - 1 for end in ends[:-1] if b"{" in shown[end:]] or [-1]

    learned = cut_between_events(text[: data.draw(st.integers(0, len(text)))], b"")[1]
    cut, _ = cut_between_events(shown, learned)

    assert cut in whole or (cut >= 0 and not is_list(shown[: cut + 1]))
    assert count_brackets(shown).last_end == whole[-1]

"""Repair of damaged JSON, as real bugs wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.readers.kineto.json_stream import closing_bracket
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.kineto.repair import (
    clean,
    escape_quotes,
    last_values,
    recover_metadata_fields,
    salvage,
    split_at_braces,
    split_events,
)
from tests.support.kineto_files import BASE_NS, KinetoFile

PLAIN = '{"ph": "X", "cat": "kernel", "name": %s, "pid": 0, "tid": 7, "ts": 5, "dur": 3, "args": %s}'


def first_whole(event: str | bytes) -> Any:
    """Return the first repaired text that is JSON."""
    text = event if isinstance(event, bytes) else event.encode()
    for repaired in (clean(text), escape_quotes(text), *salvage(text)):
        try:
            return json.loads(repaired)
        except ValueError:
            continue
    raise AssertionError(f"no repair of {text!r} is JSON")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        # pytorch/kineto#1459: torch.compile's file names.
        ('"{"device": "cpu", "dtype": "float32"}(12): run"', '{"device": "cpu", "dtype": "float32"}(12): run'),
        # pytorch#113001: source lines of modules.
        ('"_lib = Library("_test", "IMPL")\n(1): <module>"', '_lib = Library("_test", "IMPL") (1): <module>'),
        # pytorch#98432: Windows paths.
        ('"torch\\cuda\\__init__.py(219)"', "torch\\cuda\\__init__.py(219)"),
        # pytorch#136180: control characters from code objects.
        ('"config.py(0): \x01\x02"', "config.py(0):   "),
        ('"half \\ud83d of it"', "half \ufffd of it"),
        ('"", not the end"', '", not the end'),
    ],
)
def test_names_of_real_bugs_are_read(name: str, read: str) -> None:
    """A name with quotation marks, backslashes or control characters does not cost the event or its time."""
    event = first_whole(PLAIN % (name, '{"stream": 7}'))

    assert (read, 5, 3, {"stream": 7}) == (event["name"], event["ts"], event["dur"], event["args"])


@pytest.mark.parametrize(
    ("args", "read"),
    [
        # pytorch/kineto#1508: names of threads and of custom calls.
        ('{"name": "thread "with" quotes"}', {"name": 'thread "with" quotes'}),
        ('{"target": "custom="tpu"", "stream": 7}', {"target": 'custom="tpu"', "stream": 7}),
        ('{"Input type": ["a"b", "c"], "stream": 7}', {"Input type": ['a"b', "c"], "stream": 7}),
        # A copy of length 0 has infinite bandwidth.
        ('{"memory bandwidth (GB/s)": inf, "x": [-nan, NaN, -Infinity]}', None),
    ],
)
def test_arguments_of_real_bugs_are_read(args: str, read: dict[str, Any] | None) -> None:
    """The same holds for strings in args, and for invalid numbers."""
    event = first_whole(PLAIN % ('"k"', args))

    assert (read or {"memory bandwidth (GB/s)": None, "x": [None] * 3}) == event["args"]


def test_bytes_that_are_no_text_become_signs() -> None:
    """Invalid UTF-8 becomes a replacement character."""
    event = (PLAIN % ('"a?b"', "{}")).encode().replace(b"?", b"\xff")

    assert "a\ufffdb" == first_whole(event)["name"]


def test_the_essence_survives_what_nothing_can_mend() -> None:
    """Name, times, thread and correlation are salvaged from an event with broken args."""
    event = first_whole(PLAIN % ('"a "b"', '{"broken": [1, 2, "stream": 7, "correlation": 9, "Seq": 4'))

    assert ("kernel", "a 'b", 7, 5, 3) == tuple(event[key] for key in ("cat", "name", "tid", "ts", "dur"))
    assert {"stream": 7, "correlation": 9, "Seq": 4} == event["args"]


@given(st.binary(max_size=300))
def test_any_bytes_can_be_looked_at(text: bytes) -> None:
    """No bytes make the repair fail."""
    for _ in (clean(text), escape_quotes(text), *salvage(text), *split_at_braces(text), *split_events(text)):
        pass
    closing_bracket(text, 0)
    recover_metadata_fields(text)


@pytest.mark.parametrize("cut", [split_at_braces, split_events])
def test_events_that_lost_their_comma_are_separated(cut: Callable[[bytes], list[bytes]]) -> None:
    """The events are separated, and none is lost."""
    assert [b'{"ph": "X"}', b'{"name": 1}', b'{"ts": 2}'] == cut(b'{"ph": "X"}\n {"name": 1},,{"ts": 2}')
    assert [b'{"ph": "X"}', b'{"name": 1}', b'{"ts": 2}'] == cut(b'{"ph": "X"}, null,{"name": 1}, "0x7f", {"ts": 2}')
    assert [b'{"ph": 1}', b'{"ts": 2}'] == cut(b'{"ph": 1}, "%s", {"ts": 2}' % (b"x" * 5000))
    if cut is split_events:
        assert [b'{"ph": 1}', b'{"ts": 2}'] == cut(b'{"ph": 1}, "a"b", {"ts": 2}')
    assert [b'{"ph": [{"x": 1}]}'] == cut(b'{"ph": [{"x": 1}]}')


def test_damaged_events_of_another_spelling_are_all_read(tmp_path: Path) -> None:
    """Where the first events are spelled differently, many are repaired one by one: none are merged."""
    events = ['{"name": "m", "ph": "M"}', '{"name": "m", "ph": "M"}']
    for k in range(60):
        name = '"a"b"' if k % 3 else '"f"'
        events.append(f'{{"ph": "X", "cat": "cpu_op", "name": {name}, "ts": {k}, "dur": 1, "args": "{k}"}}')
        events += ['{"name": "m", "ph": "M", "args": NaN}'] * (k % 7 == 0)
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": [{", ".join(events)}]}}')

    assert [1000 * k for k in range(60)] == read_trace(path).start_ns.tolist()


@pytest.mark.heavy
@pytest.mark.parametrize("sign", [b'"', b'\\"', b"[", b'"}', b'" ', b'"name":"', b', "', b"} "])
def test_no_text_is_walked_over_and_over(sign: bytes) -> None:
    """Half a megabyte of any character takes a moment: nothing is quadratic."""
    text = b'{"ph": "X", "ts": 1, "name": "' + sign * (500_000 // len(sign))

    begin = process_time()
    for _ in (clean(text), escape_quotes(text), *salvage(text), *split_at_braces(text), *split_events(text)):
        pass
    closing_bracket(text, 0)

    assert process_time() - begin < 5


def test_repairs_are_reported_once_with_their_count(tmp_path: Path) -> None:
    """A file with three damaged names and one lost comma is read completely, with one note."""
    file = KinetoFile()
    for k in range(300):
        file.kernel(f"bad{k}" if k in (5, 50, 299) else "k", 10 * k, 10 * k + 5, 10 * k - 3)
    text = file.text().replace('"bad5"', '"a"b"').replace('"bad50"', '"a\\d"').replace('"bad299"', '"a\x07"')
    at = text.index('},\n  {\n    "ph"', len(text) // 2)
    path = tmp_path / "t.json"
    path.write_text(text[: at + 1] + text[at + 2 :])

    trace = read_trace(path)

    assert (600, False, BASE_NS - 3000) == (len(trace), trace.cut, trace.start_ns[0])
    (sentence,) = trace.damage
    assert sentence.startswith("t.json: 4 events repaired")


@pytest.mark.parametrize(
    ("event", "without"),
    [
        (b'{"a": 1, "b": {"a": 2}, "a": [1.50]}', b'{"a":[1.50],"b":{"a": 2}}'),
        (b'{"\\u0061": 1, "a": 2}', b'{"a":2}'),
        (b'{"a": 1}, {"a": 2}', b'{"a": 1}, {"a": 2}'),
        (b'{"a": "b"c"}', b'{"a": "b"c"}'),
    ],
)
def test_only_the_last_value_of_a_key_stays(event: bytes, without: bytes) -> None:
    """Numbers keep their digits; what is not one event stays as it is."""
    assert without == last_values(event)

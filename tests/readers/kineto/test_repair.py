"""Damaged JSON, as real bugs wrote it: what needs no guess is read, the rest is counted."""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.kineto.repair import clean, last_values, recover_metadata_fields, split_events
from tests.support.kineto_files import BASE_NS, KinetoFile

PLAIN = '{"ph": "X", "cat": "kernel", "name": %s, "pid": 0, "tid": 7, "ts": 5, "dur": 3, "args": {"x": %s}}'


@pytest.mark.parametrize(
    ("name", "x", "read"),
    [
        # pytorch#98432: Windows paths.
        ('"torch\\cuda\\__init__.py(219)"', "0", ("torch\\cuda\\__init__.py(219)", 0)),
        # pytorch#136180: control characters from code objects.
        ('"config.py(0): \x01\x02"', "0", ("config.py(0):   ", 0)),
        ('"half \\ud83d of it"', "0", ("half \ufffd of it", 0)),
        ('"a\udcffb"', "0", ("a\ufffdb", 0)),
        # A copy of length 0 has infinite bandwidth.
        ('"k"', "[inf, -nan, NaN, -Infinity]", ("k", [None] * 4)),
    ],
)
def test_what_needs_no_guess_is_read(name: str, x: str, read: tuple[str, object]) -> None:
    """Characters that no string may hold and invalid numbers do not cost the event or its time."""
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


def test_an_event_that_could_be_read_in_several_ways_costs_only_itself(tmp_path: Path) -> None:
    """Unescaped quotation marks (pytorch/kineto#1459), among events of another spelling than the first ones."""
    events = ['{"name": "m", "ph": "M"}', '{"name": "m", "ph": "M"}']
    for k in range(60):
        name = '"{"device": "cpu"}(12): run"' if k % 3 == 0 else '"f"'
        events.append(f'{{"ph": "X", "cat": "cpu_op", "name": {name}, "ts": {k}, "dur": 1, "args": {{"x": {k}}}}}')
        events += ['{"name": "m", "ph": "M", "args": NaN}'] * (k % 7 == 0)
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": [{", ".join(events)}]}}')

    trace = read_trace(path)

    assert [1000 * k for k in range(60) if k % 3] == trace.start_ns.tolist()
    assert any("20 events left out" in sentence for sentence in map(str, trace.damage))


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

"""Documents and numbers, however JSON lets them be spelled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dptrace.readers.kineto.reader import read_trace
from tests.support.kineto_files import KinetoFile, training_step


@pytest.mark.parametrize(
    "field", ["ts", "dur", "pid", "tid", "correlation", "stream", "device", "In msg nelems", "Seq"]
)
@pytest.mark.parametrize("number", ["9" * 400, "1e999", "-" + "9" * 400])
def test_a_number_of_any_length_is_at_most_damage(field: str, number: str, tmp_path: Path) -> None:
    """An id that is none counts as absent; an event without a possible time is left out, with a note."""
    file = training_step(KinetoFile(), 0, 0)
    kernel = next(event for event in file.events if event["cat"] == "kernel")
    (kernel if field in kernel else kernel["args"])[field] = "NUMBER"
    path = tmp_path / "rank0.json"
    path.write_text(file.text().replace('"NUMBER"', number))

    trace = read_trace(path)

    assert len(trace) + (1 if field in ("ts", "dur") else 0) == len(file.events) or trace.damage


@pytest.mark.parametrize(
    "document",
    [
        '{"a": {"traceEvents": []}, %s}',
        '{"a": {"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 5, "dur": 5}]}, %s}',
        '{%s, "a": {"traceEvents": []}}',
        '{%s, "a": [{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 5, "dur": 5}]}]}',
        '{"a": "\\"traceEvents\\": [", %s}',
        '{%s, "a": "\\"traceEvents\\": [1"}',
        "\n" * 5000 + "{%s}",
        " \t\r\n" * 800_000 + "{%s}",
    ],
)
def test_the_list_of_the_document_itself_is_read(document: str, tmp_path: Path) -> None:
    """One of the same name deeper in the document, before or after it, is none; nor is white space anything."""
    file = training_step(KinetoFile(), 0, 0)
    path = tmp_path / "rank0.json"
    path.write_text(document % f'"traceEvents": {json.dumps(file.events)}')

    trace = read_trace(path)

    assert (len(file.events), ()) == (len(trace), trace.damage)


@pytest.mark.parametrize("spelled", [float, str])
def test_ids_may_be_spelled_as_floats_or_strings(spelled: type, tmp_path: Path) -> None:
    """Kernels find their launches, and events of a thread stay together."""
    file = training_step(KinetoFile(), 0, 0)
    path = tmp_path / "rank0.json"
    path.write_text(file.text())
    expected = read_trace(path)
    for k, event in enumerate(file.events):
        if k % 2:
            event["tid"] = spelled(event["tid"])
            event["args"] |= {
                key: spelled(event["args"][key]) for key in ("correlation", "stream", "device") if key in event["args"]
            }
    path.write_text(file.text())

    found = read_trace(path)

    for column in ("thread", "correlation", "stream", "device"):
        assert getattr(expected, column).tolist() == getattr(found, column).tolist()

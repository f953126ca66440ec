"""Memory events: read on request, with the other events unchanged, whatever the file spells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptrace.readers.kineto.columns.memory import has_memory_events
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.memory_events import TOTAL_UNKNOWN, MemoryEvents
from dptrace.readers.sources.source import Source
from tests.support.kineto_files import BASE_NS, KinetoFile
from tests.support.real_traces import needs_real_traces, real


def memory_of(path: Path) -> MemoryEvents:
    events = read_trace(path, memory=True).memory
    assert events is not None
    return events


def test_allocations_and_frees_have_the_clock_and_the_threads_of_the_other_events(tmp_path: Path) -> None:
    """An allocation in the middle of an operator lies there to the nanosecond, and on its thread."""
    file = KinetoFile().op("aten::add", 10, 20, tid=3)
    file.memory(15.125, 512, 4096, allocated=1536, reserved=2048, tid=3, device=0).op("aten::mul", 30, 40, tid=4)
    file.memory(35, -512, 4096, allocated=1024, reserved=2048, tid=4, device=0)
    trace = read_trace(file.write(tmp_path / "a.json"), memory=True)
    events = trace.memory
    assert events is not None

    assert [BASE_NS + 15_125, BASE_NS + 35_000] == events.time_ns.tolist()
    assert trace.thread.tolist() == events.thread.tolist()
    assert [512, -512] == events.bytes.tolist()
    assert [1536, 1024] == events.allocated.tolist()
    assert [(1, 0)] * 2 == list(zip(events.device_type.tolist(), events.device.tolist(), strict=True))


def test_plain_reading_skips_them(tmp_path: Path) -> None:
    """Without the request a trace has no memory events, and the same other events."""
    path = KinetoFile().op("aten::add", 10, 20).memory(15, 8, 1, 8).write(tmp_path / "a.json")

    assert read_trace(path).memory is None
    assert len(read_trace(path)) == len(read_trace(path, memory=True)) == 1


def test_events_at_one_time_stay_in_the_order_of_the_file(tmp_path: Path) -> None:
    """Old files are rounded to microseconds: a block freed and taken again within one has its order from the file."""
    file = KinetoFile().op("aten::add", 10, 20).memory(19, 8, 1, 8)
    file.memory(15, 4, 2, 4).memory(15, -4, 2, 0)

    assert [4, -4, 8] == memory_of(file.write(tmp_path / "a.json")).bytes.tolist()


def test_a_failed_allocation_is_marked(tmp_path: Path) -> None:
    """``[OutOfMemory]`` is not an allocation."""
    file = KinetoFile().op("aten::add", 10, 20).memory(12, 8, 1, 8).memory(15, 1 << 40, 0, 8, name="[OutOfMemory]")

    assert [False, True] == memory_of(file.write(tmp_path / "a.json")).failed.tolist()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"Bytes": "-16"}, -16),
        ({"Bytes": 16.0}, 16),
        ({"Bytes": None}, None),
        ({"Bytes": 1 << 63}, None),
        ({"Bytes": 0}, None),
        ({"Addr": [1]}, None),
        ({"Device Id": "gpu"}, None),
        ({"Device Type": -1}, None),
    ],
)
def test_odd_arguments_are_read_or_counted(tmp_path: Path, changes: dict[str, Any], expected: int | None) -> None:
    """A number may be spelled as text or with decimals; an event that lacks one is left out and counted."""
    file = KinetoFile().op("aten::add", 10, 20).memory(12, 8, 1, 8).memory(15, 8, 1, 8)
    file.events[-1]["args"].update(changes)
    events = memory_of(file.write(tmp_path / "a.json"))

    assert ([8] if expected is None else [8, expected]) == events.bytes.tolist()
    assert int(expected is None) == events.unreadable


@pytest.mark.parametrize("args", [None, [1, 2], "text", {}])
def test_odd_events_cost_no_other(tmp_path: Path, args: object) -> None:
    """An event whose arguments are no object, or one without a time, is counted; the others are read."""
    file = KinetoFile().op("aten::add", 10, 20).memory(15, 8, 1, 8).memory(16, 8, 2, 16).memory(17, 4, 3, 20)
    file.events[1]["args"] = args
    del file.events[2]["ts"]
    file.events.append({"name": "no phase", "args": args})
    trace = read_trace(file.write(tmp_path / "a.json"), memory=True)
    assert trace.memory is not None

    assert [4] == trace.memory.bytes.tolist()
    assert 2 == trace.memory.unreadable
    assert 1 == len(trace)


def test_totals_that_a_file_does_not_have_are_unknown(tmp_path: Path) -> None:
    """Torch before 1.11 wrote the sizes only."""
    file = KinetoFile().op("aten::add", 10, 20).memory(15, 8, 1, 8)
    del file.events[-1]["args"]["Total Allocated"]

    assert [TOTAL_UNKNOWN] == memory_of(file.write(tmp_path / "a.json")).allocated.tolist()


def test_times_with_too_many_digits_for_a_double_are_exact(tmp_path: Path) -> None:
    """Files of spring 2024 hold microseconds since 1970 with decimals."""
    file = KinetoFile(base=False).op("aten::add", 1710000000000000, 1710000000000009).memory(1, 8, 1, 8)
    file.events[-1]["ts"] = "SPLIT"
    text = json.dumps(json.loads(file.text())).replace('"SPLIT"', "1710000000000001.123")
    (tmp_path / "a.json").write_text(text)

    assert [1_710_000_000_000_001_123] == memory_of(tmp_path / "a.json").time_ns.tolist()


def test_a_file_that_was_cut_off_keeps_what_came_before(tmp_path: Path) -> None:
    """Half an event at the end costs that event only."""
    file = KinetoFile().op("aten::add", 10, 20)
    for i in range(50):
        file.memory(11 + i / 10, 8, i + 1, 8 * (i + 1))
    text = file.text()
    (tmp_path / "a.json").write_text(text[: text.rindex('"Addr"')])

    assert 49 <= len(memory_of(tmp_path / "a.json")) <= 50


@needs_real_traces
def test_totals_of_a_real_recording_continue_each_other() -> None:
    """Of 2,692 events on an MI300, each device's total is the one before plus the event's bytes."""
    events = memory_of(Path(real("compute/mi300_qwen_0.5b/trace.json.gz")))

    assert 2692 == len(events)
    for kind in (0, 6):
        own = events.device_type == kind
        assert np.array_equal(np.diff(events.allocated[own]), events.bytes[own][1:])


@pytest.mark.parametrize("padding", [0, 1 << 20, (1 << 20) - 200, (1 << 20) - 3])
def test_a_file_is_searched_for_them_wherever_they_are(tmp_path: Path, padding: int) -> None:
    """Also across two chunks of it; a file without them is not read as a whole."""
    without = KinetoFile().op("aten::add", 10, 20).op("x" * padding, 30, 40)
    assert not has_memory_events(Source.of(without.write(tmp_path / "a.json")))
    for shift in range(12 if padding else 1):
        text = " " * shift + without.memory(15, 8, 1, 8).text()
        (tmp_path / "b.json").write_text(text)
        assert has_memory_events(Source.of(tmp_path / "b.json"))
        without.events.pop()

"""Details of single events: read on request, the same events in the same order, whatever the file spells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptrace.readers.kineto.details import has_memory_events
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.source import Source
from dptrace.readers.trace import TOTAL_UNKNOWN, Category, EventDetails, MemoryEvents, Trace
from tests.support.kineto_files import BASE_NS, KinetoFile
from tests.support.layered_files import MM, layered_file
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real


def details_of(trace: Trace, name: str) -> EventDetails:
    [index] = [i for i in range(len(trace)) if trace.names[trace.name[i]] == name]
    found: EventDetails = trace.details[trace.detail[index]]
    return found


def test_details_are_those_of_each_event(tmp_path: Path) -> None:
    """Shapes and types of an operator's tensors, grid and block of a kernel, the size of a copy, a stack."""
    shapes: dict[str, Any] = {"Input Dims": [[8, 512], [], [[2, 2], [3]]]}
    shapes["Input type"] = ["float", "Scalar", "TensorList"]
    shapes["Call stack"] = "inner.py(3): f;outer.py(7): main"
    file = KinetoFile().op("aten::add", 0, 5, **shapes)
    file.kernel("gemm", 10, 20, 3, grid=[32, 1, 2], block=[128, 1, 1])
    file.kernel("Memcpy HtoD", 30, 40, 6, category="gpu_memcpy", bytes=4096)
    trace = read_trace(file.write(tmp_path / "a.json"), detailed=True)

    assert details_of(trace, "aten::add") == EventDetails(
        "[8, 512] × [[2, 2], [3]]", "float, TensorList", stack="inner.py(3): f\nouter.py(7): main"
    )
    assert details_of(trace, "gemm") == EventDetails(grid="[32, 1, 2]", block="[128, 1, 1]")
    assert details_of(trace, "Memcpy HtoD") == EventDetails(bytes=4096)
    assert {"1", "7"} == set(trace.threads)


def test_odd_details_cost_no_event(tmp_path: Path) -> None:
    """Shapes, grids and stacks of other types than Kineto writes are read as absent or as text."""
    file = KinetoFile()
    odd: dict[str, Any] = {"Input Dims": "no list", "Input type": 7, "Call stack": [1], "grid": {"x": 1}, "bytes": -3}
    hostile: dict[str, Any] = {"Input Dims": [["\u202e<script>"]], "Input type": ["x" * 5000]}
    file.op("odd", 0, 5, **odd).op("hostile", 6, 9, **hostile)
    trace = read_trace(file.write(tmp_path / "a.json"), detailed=True)

    assert details_of(trace, "odd") == EventDetails(grid="[]")
    found = details_of(trace, "hostile")
    assert "\u202e" not in found.shapes
    assert len(found.dtypes) < 2100


def test_the_events_are_the_same_with_details() -> None:
    """Times, names, threads and collectives do not depend on whether details are read."""
    path = ROOT / "traces/ddp_cpu_2ranks/rank0.pt.trace.json.gz"
    plain, detailed = (read_trace(path, detailed=yes) for yes in (False, True))

    assert (plain.start_ns == detailed.start_ns).all()
    assert (plain.name == detailed.name).all()
    assert plain.comm == detailed.comm
    assert (len(plain), 0) == (len(detailed.detail), len(plain.detail))
    assert any(one.shapes for one in detailed.details)


# Memory events: read on request, with the other events unchanged, whatever the file spells.


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


def test_a_failed_allocation_is_marked_and_the_order_of_the_file_kept(tmp_path: Path) -> None:
    """Old files are rounded to µs, so events at one time stay in order; before torch 1.11 they have no totals."""
    file = KinetoFile().op("aten::add", 10, 20).memory(19, 1 << 40, 0, 8, name="[OutOfMemory]")
    file.memory(15, 4, 2, 4).memory(15, -4, 2, 0)
    del file.events[-1]["args"]["Total Allocated"]
    events = memory_of(file.write(tmp_path / "a.json"))

    assert [(4, False), (-4, False), (1 << 40, True)] == list(
        zip(events.bytes.tolist(), events.failed.tolist(), strict=True)
    )
    assert [4, TOTAL_UNKNOWN, 8] == events.allocated.tolist()


def test_odd_arguments_are_read_or_counted(tmp_path: Path) -> None:
    """A number may be spelled as text or with decimals; an event that lacks one is left out and counted."""
    for changes, expected in (
        ({"Bytes": "-16"}, -16),
        ({"Bytes": 16.0}, 16),
        ({"Bytes": None}, None),
        ({"Bytes": 1 << 63}, None),
        ({"Bytes": 0}, None),
        ({"Addr": [1]}, None),
        ({"Device Id": "gpu"}, None),
        ({"Device Type": -1}, None),
    ):
        file = KinetoFile().op("aten::add", 10, 20).memory(12, 8, 1, 8).memory(15, 8, 1, 8)
        file.events[-1]["args"].update(changes)
        events = memory_of(file.write(tmp_path / "a.json"))
        assert ([8] if expected is None else [8, expected]) == events.bytes.tolist()
        assert int(expected is None) == events.unreadable


def test_odd_events_cost_no_other(tmp_path: Path) -> None:
    """An event whose arguments are no object, or one without a time, is counted; the others are read."""
    rows: list[object] = [None, [1, 2], "text", {}]
    for args in rows:
        file = KinetoFile().op("aten::add", 10, 20).memory(15, 8, 1, 8).memory(16, 8, 2, 16).memory(17, 4, 3, 20)
        file.events[1]["args"] = args
        del file.events[2]["ts"]
        file.events.append({"name": "no phase", "args": args})
        trace = read_trace(file.write(tmp_path / "a.json"), memory=True)
        assert trace.memory is not None
        assert [4] == trace.memory.bytes.tolist()
        assert 2 == trace.memory.unreadable
        assert 1 == len(trace)


def test_times_with_too_many_digits_for_a_double_are_exact(tmp_path: Path) -> None:
    """Files of spring 2024 hold microseconds since 1970 with decimals."""
    file = KinetoFile(base=False).op("aten::add", 1710000000000000, 1710000000000009).memory(1, 8, 1, 8)
    file.events[-1]["ts"] = "SPLIT"
    text = json.dumps(json.loads(file.text())).replace('"SPLIT"', "1710000000000001.123")
    (tmp_path / "a.json").write_text(text)

    assert [1_710_000_000_000_001_123] == memory_of(tmp_path / "a.json").time_ns.tolist()


@pytest.mark.heavy
@needs_real_traces
def test_totals_of_a_real_recording_continue_each_other() -> None:
    """Of 2,692 events on an MI300, each device's total is the one before plus the event's bytes."""
    events = memory_of(Path(real("compute/mi300_qwen_0.5b/trace.json.gz")))

    assert 2692 == len(events)
    for kind in (0, 6):
        own = events.device_type == kind
        assert np.array_equal(np.diff(events.allocated[own]), events.bytes[own][1:])


@pytest.mark.heavy
def test_a_file_is_searched_for_them_wherever_they_are(tmp_path: Path) -> None:
    """Also across two chunks of it; a file without them is not read as a whole."""
    for padding in (0, 1 << 20, (1 << 20) - 200, (1 << 20) - 3):
        without = KinetoFile().op("aten::add", 10, 20).op("x" * padding, 30, 40)
        assert not has_memory_events(Source.of(without.write(tmp_path / "a.json")))
        for shift in range(12 if padding else 1):
            text = " " * shift + without.memory(15, 8, 1, 8).text()
            (tmp_path / "b.json").write_text(text)
            assert has_memory_events(Source.of(tmp_path / "b.json"))
            without.events.pop()


# Inputs of operators and autograd's numbers are read where a command needs them, and change nothing else.


def read(file: KinetoFile, folder: Path) -> Trace:
    return read_trace(file.write(folder / "rank0.json"), operators=True)


def numbered(number: object, thread: object = 0) -> dict[str, Any]:
    return {"Sequence number": number, "Fwd thread id": thread}


def test_inputs_are_kept_as_the_file_has_them(tmp_path: Path) -> None:
    """Calls with equal inputs share an entry; events that are no operators have none."""
    trace = read(layered_file(steps=2), tmp_path)
    assert trace.operators is not None
    products = np.flatnonzero(trace.named("aten::mm"))
    (entry,) = set(trace.operators.inputs[products].tolist())

    assert 4 == len(products)
    assert list(MM.values()) == [
        json.loads(getattr(trace.operators.table[entry], column))
        for column in ("dims", "dtypes", "concrete", "strides")
    ]
    assert {-1} == set(trace.operators.inputs[trace.named("gemm_kernel", "ProfilerStep#")].tolist())


def test_numbers_tie_backward_to_forward(tmp_path: Path) -> None:
    """Operators have autograd's number, backward functions the forward thread's too."""
    trace = read(layered_file(steps=1), tmp_path)
    assert trace.operators is not None
    numbered = np.flatnonzero(trace.operators.sequence >= 0)
    found = [
        (trace.names[trace.name[i]].rpartition(" ")[2], trace.operators.sequence[i], trace.operators.forward_thread[i])
        for i in numbered
    ]

    assert [
        ("aten::linear", 7, 0),
        ("aten::mm", 7, 0),
        ("aten::relu", 8, 0),
        ("MmBackward0", 7, 1),
        ("MmBackward0", 7, 1),
    ] == found


def test_numbers_are_read_however_they_are_spelled(tmp_path: Path) -> None:
    """As a text or with a decimal point, as any other number; what is no number counts as none."""
    for value, sequence, thread in (
        ("7", 7, 7),
        (7.0, 7, 7),
        *((odd, -1, 0) for odd in ("many", -3, None, [1], 1 << 70)),
    ):
        numbers: dict[str, Any] = {"Sequence number": value, "Fwd thread id": value}
        file = KinetoFile().op("aten::mm", 0, 5, **numbers)
        operators = read(file.kernel("gemm", 6, 7, 1), tmp_path).operators
        assert operators is not None
        assert (sequence, thread) == (operators.sequence.max(), operators.forward_thread.max())


def test_short_modules_are_kept(tmp_path: Path) -> None:
    """A layer of a small model takes less time than the shortest Python function that is read."""
    file = KinetoFile().event("python_function", "nn.Module: Linear_0", 1, 2)
    file.event("python_function", "torch/nn/functional.py(12): relu", 3, 4).kernel("gemm", 6, 7, 1)

    trace = read(file, tmp_path)

    assert ["nn.Module: Linear_0"] == [trace.names[name] for name in trace.name[trace.category == Category.PYTHON]]

"""Details of single events: read on request, the same events in the same order, whatever the file spells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.trace import EventDetails, Trace
from tests.support.kineto_files import KinetoFile
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real


def details_of(trace: Trace, name: str) -> EventDetails:
    [index] = [i for i in range(len(trace)) if trace.names[trace.name[i]] == name]
    found: EventDetails = trace.details[trace.detail[index]]
    return found


def test_details_are_those_of_each_event(tmp_path: Path) -> None:
    """Shapes and types of an operator's tensors, grid and block of a kernel, the size of a copy, a stack."""
    file = KinetoFile()
    shapes: dict[str, Any] = {
        "Input Dims": [[8, 512], [], [[2, 2], [3]]],
        "Input type": ["float", "Scalar", "TensorList"],
    }
    shapes["Call stack"] = "inner.py(3): f;outer.py(7): main"
    file.op("aten::add", 0, 5, **shapes)
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


@pytest.mark.parametrize("name", ["traces/ddp_cpu_2ranks/rank0.pt.trace.json.gz"])
def test_the_events_are_the_same_with_details(name: str) -> None:
    """Times, names, threads and collectives do not depend on whether details are read."""
    plain, detailed = (read_trace(ROOT / name, detailed=yes) for yes in (False, True))

    assert (plain.start_ns == detailed.start_ns).all()
    assert (plain.name == detailed.name).all()
    assert plain.comm == detailed.comm
    assert len(plain) == len(detailed.detail)
    assert 0 == len(plain.detail)
    assert any(one.shapes for one in detailed.details)


@needs_real_traces
def test_grids_of_a_real_recording_are_read() -> None:
    """Every kernel of the H100 run has a grid and a block; its operators have shapes and types."""
    path = next(Path(real("sharded_h100_8ranks")).glob("*rank0*"))
    trace = read_trace(path, detailed=True)
    kernels = [trace.details[i] for i in trace.detail[trace.named("nccl", "void", "triton") & (trace.stream >= 0)]]

    assert len(kernels) > 1000
    assert all(one.grid and one.block for one in kernels)

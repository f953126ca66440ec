"""Devices that are not read, and files of other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from dptrace.core.notes import DEVICE
from dptrace.errors import TraceError
from dptrace.load.open import open_run
from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import build_timelines
from dptrace.viewers.base.headline import headline
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.paths import ROOT

INPUTS = ROOT.parent / "shared" / "inputs" / "files"
needs_inputs = pytest.mark.skipif(not INPUTS.exists(), reason=f"the inputs are not here ({INPUTS})")


def on_host(*device: dict[str, Any], processes: dict[object, dict[str, str]] | None = None) -> KinetoFile:
    """Operators of a host, and events of a device in further categories."""
    file = KinetoFile()
    for k in range(3):
        file.label(f"ProfilerStep#{k}", 100 * k, 100 * k + 100).op("aten::mm", 100 * k + 10, 100 * k + 20)
    file.events += [{"ph": "X", "ts": 50, "dur": 20, "name": "gemm", "tid": 7, **event} for event in device]
    for pid, said in (processes or {}).items():
        for key, text in said.items():
            file.events.append({"ph": "M", "name": f"process_{key}", "pid": pid, "tid": 0, "args": {key: text}})
    return file


MTIA = on_host({"cat": "mtia_ccp_events", "pid": 9}, {"cat": "mtia_runtime", "pid": 10})
ASCEND = on_host(
    {"pid": 800},
    {"pid": 802},
    {"pid": 801},
    processes={
        800: {"name": "Ascend Hardware", "labels": "NPU"},
        801: {"name": "CANN", "labels": "CPU"},
        802: {"name": "Overlap Analysis", "labels": "NPU"},
    },
)
CASES = {
    "MTIA": (MTIA, "MTIA", 1),
    "Ascend": (ASCEND, "Ascend NPU", 2),
    "TPU": (on_host({"pid": 3}, processes={3: {"name": "/device:TPU:0"}}), "TPU", 1),
    "unknown": (on_host({"cat": "abc_work", "pid": 3}), "abc_work", 1),
}


@pytest.mark.heavy
def test_a_device_that_is_not_read_is_named_and_its_host_is_no_run_without_one(tmp_path: Path) -> None:
    """By the category of its events, or the name and the labels of its process."""
    for file, name, events in CASES.values():
        path = file.write(tmp_path / "t.json")
        (timeline,) = build_timelines(read_trace(path), 0)
        run = open_run([str(path)])
        assert (name, f"host of {name}", f"rank 0 · host of {name}") == (
            timeline.host_of,
            timeline.device_name,
            timeline.label,
        )
        (note,) = [note for note in read_trace(path).damage if note.kind == DEVICE]
        assert f"{events} event{'s' * (events > 1)} of {name}" in str(note)
        assert f"host of {name}" in headline(run).line
        assert not any("No GPU work" in note for note in run.notes)


def test_rows_that_are_no_devices_name_none(tmp_path: Path) -> None:
    """Rows of the host, of Kineto's own, and of a tool beside a GPU's."""
    for file in (
        # Rows of the host, of Kineto's own, and of a tool beside a GPU's.
        on_host({"cat": "enqueue", "pid": 10}),
        on_host({"pid": 4}, processes={4: {"name": "python", "labels": "CPU"}}),
        training_step(on_host({"cat": "abc", "pid": 3}), 4, 500),
        on_host({"cat": "overhead", "pid": -1}),
    ):
        trace = read_trace(file.write(tmp_path / "t.json"))
        assert "" == trace.unread_device
        assert not any(note.kind == DEVICE for note in trace.damage)


def test_a_gpu_beside_a_device_that_is_not_read_stays_split(tmp_path: Path) -> None:
    """A note names the other device; the GPU's figures are no less known."""
    file = training_step(KinetoFile(), 0, 0)
    before = build_timelines(read_trace(file.write(tmp_path / "a.json")), 0)
    file.event("mtia_ccp_events", "gemm", 5, 9)
    file.events[-1]["pid"] = 9
    trace = read_trace(file.write(tmp_path / "b.json"))
    (timeline,) = build_timelines(trace, 0)

    assert (before[0].start_ns.tolist(), "") == (timeline.start_ns.tolist(), timeline.host_of)
    assert ["t" if note.kind else "" for note in trace.damage] == [""]
    assert "1 event of MTIA" in str(trace.damage[0])


def test_calls_to_a_device_that_is_not_read_are_no_failed_recording(tmp_path: Path) -> None:
    """Its kernels are there, in a category that is not read."""
    file = on_host({"cat": "privateuse1_kernel", "pid": 0}, {"cat": "privateuse1_runtime", "pid": 10})

    (timeline,) = build_timelines(read_trace(file.write(tmp_path / "t.json")), 0)

    assert "PrivateUse1" == timeline.host_of


def xla(name: str) -> list[dict[str, Any]]:
    return [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "name": "fusion.1"},
    ]


def test_a_file_of_another_program_is_named(tmp_path: Path) -> None:
    """By its processes or its keys."""
    for content, program in (
        ([{"name": "mm", "ph": "X", "ts": 1.5, "dur": 5, "tid": 1, "pid": "CPU functions"}], "torch.autograd.profiler"),
        ({"displayTimeUnit": "ns", "traceEvents": xla("/device:TPU:0")}, "XLA"),
        ({"traceEvents": xla("/host:CPU")}, "XLA"),
        ({"traceEvents": xla("CPU HIP API")}, "rocprof"),
        (xla("Ascend Hardware"), "msprof"),
        ({"rocprofiler-sdk-tool": [{"metadata": {}}]}, "rocprofv3"),
    ):
        path = tmp_path / "t.json"
        path.write_text(json.dumps(content))
        with pytest.raises(TraceError, match=program):
            read_trace(path)


@needs_inputs
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("x03_mtia.json", 0, ["host of MTIA"]),
        ("ascend_trace_view.json.gz", 0, ["host of Ascend NPU"]),
        ("b14_interleaved.json", 1, ["two processes wrote it"]),
        ("b22_legacy_list.json", 1, ["torch.autograd.profiler"]),
        ("nc_group_size_2e31", 0, ["1 event with numbers out of range"]),
        ("x01_xpu_runtime.json", 0, ["1 × dev", "32 % idle"]),
    ],
)
def test_the_inputs_are_answered(name: str, code: int, words: list[str]) -> None:
    """Recordings that were answered with a wrong device, a split or a traceback."""
    result = CliRunner(env={"COLUMNS": "300"}).invoke(cli, ["analyze", str(INPUTS / name)])

    assert code == result.exit_code, result.output
    assert all(word in result.output for word in words)

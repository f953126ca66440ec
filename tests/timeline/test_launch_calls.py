"""Why work began late after its launch: planted in files, and as the causes of idle time say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import dptrace
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.replay.findings import findings_of
from tests.support.kineto_files import KinetoFile
from tests.support.paths import ROOT

FILES = ROOT.parent / "shared" / "inputs" / "files"
EXPLAINED = ("launching_ns", "waiting_ns", "unexplained_ns")
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


class Planted(KinetoFile):
    """Times in µs: a first kernel ends at 100, a second is launched at 150 and runs from a given time to 10 000."""

    def __init__(self) -> None:
        super().__init__()
        self.label("ProfilerStep#1", 0, 10_000).op("aten::mm", 0, 9_000)
        self.work(0, 5, 0, 100)

    def work(self, launch: float, returned: float, start: float, end: float, copy: bool = False) -> Planted:
        """Add a kernel, or a copy of pageable memory, and the call that launches it."""
        self.correlation += 1
        call = "cudaMemcpyAsync" if copy else "cudaLaunchKernel"
        self.event("cuda_runtime", call, launch, returned, correlation=self.correlation)
        where = {"device": 0, "stream": 7, "correlation": self.correlation}
        category, name = ("gpu_memcpy", PAGEABLE) if copy else ("kernel", "gemm")
        self.event(category, name, start, end, 7, **where)
        return self

    def wait(self, at: float, tid: int = 1) -> Planted:
        """Add a call that lets a stream wait for another."""
        self.event("cuda_runtime", "cudaStreamWaitEvent", at, at + 2, tid)
        return self

    def causes(self, folder: Path) -> Mapping[str, int]:
        """Return the idle time of the file in µs by cause, after a check that the causes add up to it."""
        run = dptrace.open(self.write(folder / "t.json"), cache=False)
        (device,) = run.devices
        assert device.split.figures["idle_ns"].sum() == sum(int(device.idle_causes[name].sum()) for name in CAUSES)
        return {name: int(values.sum()) // 1000 for name, values in device.idle_causes.items() if values.any()}


def test_a_slow_launching_call_is_the_host_s(tmp_path: Path) -> None:
    """The kernel begins 5 µs after its call, which took 5 ms, has returned."""
    found = Planted().work(150, 5_150, 5_155, 10_000).causes(tmp_path)

    assert {"host_bound_ns": 50, "launching_ns": 5_000, "launch_latency_ns": 5} == found


def test_a_kernel_that_begins_before_its_slow_call_returns(tmp_path: Path) -> None:
    """Only the idle part of the call counts."""
    found = Planted().work(150, 6_000, 5_000, 10_000).causes(tmp_path)

    assert {"host_bound_ns": 50, "launching_ns": 4_850} == found


def test_a_copy_of_pageable_memory_is_the_host_s_while_its_call_stages_it(tmp_path: Path) -> None:
    """The call copies into pinned memory first; the copy on the GPU is short and late."""
    file = Planted().work(150, 3_150, 2_900, 3_140, copy=True).work(3_160, 3_165, 3_170, 10_000)

    assert 2_750 == file.causes(tmp_path)["launching_ns"]
    findings = {finding.kind: finding for finding in findings_of(dptrace.open(tmp_path / "t.json", cache=False))}
    assert "pinned memory" in findings["launching"].advice
    assert "CUDA_MODULE_LOADING" not in findings["launching"].advice


def test_a_seen_dependency_is_waiting(tmp_path: Path) -> None:
    """The thread called cudaStreamWaitEvent just before it launched the kernel."""
    found = Planted().wait(140).work(150, 155, 1_150, 10_000).causes(tmp_path)

    assert {"host_bound_ns": 50, "waiting_ns": 1_000} == found


def test_a_slow_call_after_a_wait_is_both(tmp_path: Path) -> None:
    """While the call runs, the host holds the kernel up; then its stream does."""
    found = Planted().wait(140).work(150, 1_150, 3_150, 10_000).causes(tmp_path)

    assert {"host_bound_ns": 50, "launching_ns": 1_000, "waiting_ns": 2_000} == found


@pytest.mark.parametrize(
    "file",
    [
        Planted(),
        Planted().wait(140, tid=2),  # of another thread
        Planted().wait(110).work(120, 125, 130, 140),  # of the kernel before
        Planted().wait(200),  # after the launch
    ],
    ids=["none", "other thread", "earlier", "later"],
)
def test_what_nothing_shows_is_unexplained(file: Planted, tmp_path: Path) -> None:
    """Without a call that let this kernel's stream wait, no stream is blamed, and nothing is advised."""
    assert {"unexplained_ns": 1_000} == only_explained(file.work(150, 155, 1_150, 10_000).causes(tmp_path))
    findings = findings_of(dptrace.open(tmp_path / "t.json", cache=False))
    assert not {"launching", "waiting", "unexplained"} & {finding.kind for finding in findings}


def test_work_without_a_launch_in_the_file_is_unexplained(tmp_path: Path) -> None:
    """Nothing is known of its call, nor of a wait."""
    file = Planted().wait(140)
    file.event("kernel", "gemm", 1_150, 10_000, 7, device=0, stream=7)

    assert {"unexplained_ns": 1_050} == only_explained(file.causes(tmp_path))


def test_kernels_that_are_launched_as_usual_have_none_of_these(tmp_path: Path) -> None:
    """With and without waits between streams, and with calls that take up to 20 µs."""
    file = Planted()
    for k in range(10):
        file.wait(200 + 100 * k).work(205 + 100 * k, 224 + 100 * k, 213 + 100 * k, 250 + 100 * k)

    assert {} == only_explained(file.causes(tmp_path))


def only_explained(found: Mapping[str, int]) -> dict[str, int]:
    return {name: us for name, us in found.items() if name in EXPLAINED}


@pytest.mark.parametrize("call_us", [5, 4_000])
def test_a_step_would_gain_what_its_launching_calls_take_too_long(call_us: int, tmp_path: Path) -> None:
    """Of four steps of 10 ms; the replay lets a kernel begin as its call returns."""
    file = Planted()
    file.events.clear()
    for at in range(0, 40_000, 10_000):
        file.label(f"ProfilerStep#{at}", at, at + 10_000).op("aten::mm", at + 10, at + 9_000)
        file.work(at + 10, at + 10 + call_us, at + 13 + call_us, at + 3_000 + call_us)
        file.work(at + 7_000, at + 7_005, at + 7_010, at + 9_900)
        file.event("cuda_runtime", "cudaDeviceSynchronize", at + 7_010, at + 9_905)
    run = dptrace.open(file.write(tmp_path / "t.json"), cache=False)
    found = {finding.kind: finding for finding in findings_of(run)}

    assert ("launching" in found) == (call_us > 20)
    if call_us > 20:
        gain = found["launching"].gain
        assert gain is not None
        assert 1_000 * call_us == found["launching"].counted_ns == pytest.approx(gain.ns, rel=0.01)
        assert "CUDA_MODULE_LOADING=EAGER" in found["launching"].advice


@pytest.mark.skipif(not FILES.exists(), reason="needs ../shared/inputs")
@pytest.mark.parametrize(
    ("name", "launching", "unexplained"),
    [
        ("r01_slow_launch_call_hip.json", 108.0, 0.0),
        ("hta_simple_add.json.gz", 4_221.1, 0.0),
        ("tl_normalization.json.gz", 978.7, 0.7),
    ],
)
def test_recordings_of_slow_launching_calls(name: str, launching: float, unexplained: float) -> None:
    """In ms: what a call held up is the host's, and of what remains no stream is blamed without a wait."""
    (device,) = dptrace.open(FILES / name).devices
    total = {cause: float(values.sum()) / 1e6 for cause, values in device.idle_causes.items()}

    assert launching == pytest.approx(total["launching_ns"], abs=0.1)
    assert unexplained == pytest.approx(total["unexplained_ns"], abs=0.1)
    assert total["waiting_ns"] < 0.01

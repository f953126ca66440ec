"""What findings on compute would gain, on steps that the device sets."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from dptrace.analysis.findings.finding import Finding
from dptrace.replay.gains.context import GainContext
from dptrace.replay.gains.kernels import kernel_change
from tests.support.compute_files import ComputeFile, inputs

SAME = inputs([1024, 1024], [1024, 1024])
PRODUCT = inputs([4096, 4096], [4096, 4096])
STEPS = 4


def synchronized(file: ComputeFile) -> ComputeFile:
    """Let the host wait for the device, so that shorter kernels make shorter steps."""
    file.file.event("cuda_runtime", "cudaDeviceSynchronize", file.host + 1, file.now + 5)
    return file


def chains() -> ComputeFile:
    file = ComputeFile()
    for _ in range(STEPS):
        file.step().kernel("aten::mm", "gemm", 50)
        for length in (10, 20, 30):
            file.kernel("aten::add", "vectorized_add", length, **SAME)
        synchronized(file.kernel("aten::mm", "gemm", 50))
    return file


def product() -> ComputeFile:
    file = ComputeFile(step_us=2000)
    for _ in range(STEPS):
        synchronized(file.step().kernel("aten::mm", "nvjet", 600, **PRODUCT))
    return file


def attention() -> ComputeFile:
    file, scores = ComputeFile(step_us=2000), [16, 512, 512]
    for _ in range(STEPS):
        file.step().kernel("aten::mm", "gemm", 50).kernel(
            "aten::bmm", "gemm", 100, **inputs([16, 512, 64], [16, 64, 512])
        )
        file.kernel("aten::_softmax", "softmax", 300, **inputs(scores))
        synchronized(file.kernel("aten::bmm", "gemm", 100, **inputs(scores, [16, 512, 64])))
    return file


def interfering() -> ComputeFile:
    file = ComputeFile()
    for _ in range(STEPS):
        file.step().kernel("aten::mm", "gemm", 50).kernel("aten::mm", "gemm", 50).kernel("aten::mm", "gemm", 80)
        file.communication(file.now - 81, file.now - 1)
        synchronized(file)
    return file


def copying() -> ComputeFile:
    file = ComputeFile()
    for _ in range(STEPS):
        synchronized(file.step().kernel("aten::mm", "gemm", 50).copy("Memcpy HtoD (Pageable -> Device)", 40))
    return file


def opened(folder: Path, *files: ComputeFile) -> dptrace.Run:
    for rank, file in enumerate(files):
        file.file.write(folder / f"rank{rank}.json")
    return dptrace.open(folder, cache=False)


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("elementwise_chains", chains()),
        ("slow_products", product()),
        ("unfused_attention", attention()),
        ("pageable_copies", copying()),
    ],
)
def test_what_the_device_sets_gains_what_it_costs(tmp_path: Path, kind: str, file: ComputeFile) -> None:
    """Where nothing else runs, a step is shorter by what the finding counts."""
    found = opened(tmp_path, file).with_gains().compute_findings().set_index("kind").loc[kind]

    assert found["cost_ns"] > 10_000
    assert found["cost_ns"] == pytest.approx(found["gain_ns"], abs=3_000)


def test_kernels_under_communication_take_what_they_take_without(tmp_path: Path) -> None:
    """In each step, one of three kernels of the same work takes 80 µs under communication and 50 without."""
    run = opened(tmp_path, interfering())
    model = run.replay.model
    change = kernel_change(Finding("interference", "", "", 1, 0.1), GainContext(run, model))
    assert not isinstance(change, str)

    assert STEPS * 30_000 == int((model.graph.duration_ns - change.apply(model).graph.duration_ns).sum())


def test_what_refuses_a_what_if_refuses_a_gain(tmp_path: Path) -> None:
    """The trace does not say why the communication starts when it does: there is no number, but that reason."""
    found = opened(tmp_path, interfering()).with_gains().compute_findings().set_index("kind").loc["interference"]

    assert found["gain_ns"] is None
    assert ["unexplained"] == found["gain_doubts"]
    assert "no recorded reason" in found["gain_reason"]


def test_a_slow_gpu_gains_what_it_takes_longer(tmp_path: Path) -> None:
    """The GPU of rank 1 takes 20 % longer: its steps would be 20 µs shorter, those of the others remain."""
    files = [ComputeFile(rank, 3) for rank in range(3)]
    for rank, file in enumerate(files):
        for _ in range(STEPS):
            synchronized(file.step().kernel("aten::mm", "gemm", 120 if rank == 1 else 100))
    found = opened(tmp_path, *files).with_gains().compute_findings().set_index("kind").loc["slow_gpu"]

    assert 20_000 / 3 == pytest.approx(found["gain_ns"], rel=0.01)


def test_a_kind_without_a_counterfactual_says_so(run: dptrace.Run) -> None:
    """A finding of a kind that no change takes away has a reason instead."""
    found = kernel_change(Finding("new_kind", "", "", 1, 0.1), GainContext(run, run.replay.model))

    assert isinstance(found, str)

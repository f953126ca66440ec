"""The metadata of a rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")


from dptrace.record.rank_metadata import MemoryTracker, describe  # noqa: E402
from dptrace.record.recording import record  # noqa: E402


def test_what_cannot_be_metadata_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An error in DDP's logging, or in the stopwatch after a CUDA error, costs only that entry."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("sick")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dptrace.record.rank_metadata.ddp_logging", fail)
    monkeypatch.setattr("dptrace.record.profiler.Stopwatch.durations_ns", fail)
    recording = record("run", model=torch.nn.LazyLinear(4))
    metadata = describe(recording, recording.plan.windows[-1], [], 0, [])

    assert (None, [], []) == (metadata["ddp"], metadata["unprofiled_ns"], metadata["profiled_ns"])
    assert metadata["notes"] == [
        "The steps' times could not be read: RuntimeError: sick",
        "DDP's logging data could not be read: RuntimeError: sick",
    ]
    assert metadata["parameters"] is None


# The memory of a rank.


CPU = torch.device("cpu")
HELD = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")


def _step(memory: MemoryTracker, model: Any, optimizer: Any) -> tuple[int | None, ...]:
    memory.start()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    memory.count(optimizer)
    memory.end_step()
    return tuple(memory.to_dict()[kind] for kind in HELD)


def test_parameters_gradients_and_state_are_counted() -> None:
    """A layer of 20 values with AdamW has 20 gradients, two state values for each, and two step counts."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())

    assert (80, 80, 168) == _step(MemoryTracker(model, CPU), model, optimizer)
    assert (80, 80, 168) == _step(MemoryTracker(None, CPU), model, optimizer)
    assert (80, 80, 0) == _step(MemoryTracker(model, CPU), model, torch.optim.SGD(model.parameters()))


def test_what_shares_its_memory_counts_once() -> None:
    """Parameters that are views of one buffer count as the whole buffer, with its padding."""
    model, buffer = torch.nn.Linear(4, 4, bias=False), torch.zeros(20)
    model.weight.data = buffer[:16].view(4, 4)

    assert (80, 64, 0) == _step(MemoryTracker(model, CPU), model, torch.optim.SGD([model.weight]))


def test_nothing_is_counted_out_of_season() -> None:
    """Nothing is counted before or after the warm-up, so the recorded steps have no overhead."""
    model = torch.nn.Linear(4, 4)
    memory, optimizer = MemoryTracker(model, CPU), torch.optim.SGD(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    memory.count(optimizer)
    memory.end_step()
    assert memory.to_dict()["parameters_bytes"] is None
    memory.start()
    memory.reset_peak()
    memory.count(optimizer)
    memory.end_step()
    assert memory.to_dict()["parameters_bytes"] is None
    assert (memory.to_dict()["peak_process_bytes"] or 0) > 10_000_000


def test_what_cannot_be_counted_ends_no_training() -> None:
    """An optimizer with an unusual state is ignored."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.state["odd"] = 5

    assert (None, None, None) == _step(MemoryTracker(model, CPU), model, optimizer)


def test_an_allocator_without_statistics_ends_no_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peaks are unknown where the GPU's allocator counts nothing, as a pluggable one; else they are torch's."""
    gpu = torch.device("cuda", 1)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda device: 700)
    monkeypatch.setattr("torch.cuda.max_memory_reserved", lambda device: 900)
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", lambda device: None)
    counted = MemoryTracker(None, gpu)
    counted.reset_peak()

    def refuse(device: object) -> None:
        raise RuntimeError("CUDAPluggableAllocator does not yet support resetPeakStats.")

    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", refuse)
    uncounted = MemoryTracker(None, gpu)
    uncounted.reset_peak()

    peaks = [
        (memory.to_dict()["peak_allocated_bytes"], memory.to_dict()["peak_reserved_bytes"])
        for memory in (counted, uncounted)
    ]
    assert [(700, 900), (None, None)] == peaks


@pytest.mark.parametrize("wait", [0, 3])
def test_a_recording_counts_in_its_warm_up(wait: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without wait steps before the warm-up."""
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with record("run", steps=1, warmup=2, wait=wait, model=model) as recording:
        for _ in range(recording.total_steps):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            recording.step()
    memory = json.loads((tmp_path / "run" / "run.json").read_text())["ranks"][0]["memory"]

    assert [80, 80, 0] == [memory[kind] for kind in HELD]
    assert memory["peak_allocated_bytes"] is None

"""The metadata of a rank."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.modes import ADAMW, CASES, ModeCase, parameters_of, reference, run_of

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


RANKS = 4


def _case(mode: str) -> ModeCase:
    return next(case for case in CASES if (case.mode, case.extra_options, case.ranks) == (mode, ADAMW, RANKS))


def _held(mode: str) -> list[list[int]]:
    ranks = json.loads((run_of(_case(mode)) / "run.json").read_text())["ranks"]
    return [[rank["memory"][kind] for kind in HELD] for rank in ranks]


def _shapes() -> list[tuple[int, ...]]:
    arrays = np.load(parameters_of(reference(_case("ddp"))))
    return [arrays[name].shape for name in arrays.files]


def _padded(count: int) -> int:
    return math.ceil(count / RANKS)


def _expected(mode: str) -> list[list[int]]:
    """Return what each rank holds by the formulas of ZeRO (Rajbhandari et al. 2020), in float64 with AdamW.

    With n ranks and P bytes: P + P + 2 P; the optimizer's share is 1/n in zero1, that of the gradients too in zero2,
    and that of the parameters too in fsdp. 4 bytes count the steps of each tensor that AdamW updates.
    """
    sizes = [math.prod(shape) for shape in _shapes()]
    total = sum(sizes)
    blocks = [sum(pair) for pair in zip(sizes[::2], sizes[1::2], strict=True)]
    if mode == "ddp":
        return [[8 * total, 8 * total, 16 * total + 4 * len(sizes)]] * RANKS
    if mode == "zero1":
        shards: list[list[int]] = [[] for _ in range(RANKS)]
        for size in sorted(sizes, reverse=True):
            min(shards, key=sum).append(size)
        return [[8 * total, 8 * total, 16 * sum(shard) + 4 * len(shard)] for shard in shards]
    if mode == "zero2":
        part = sum(map(_padded, blocks))
        return [[8 * RANKS * part, 8 * part, 16 * part + 4 * len(blocks)]] * RANKS
    # fully_shard splits the first dimension; the last rank's parameters may be padded, but not its state.
    parts = [[_rows(shape[0], rank) * math.prod(shape[1:]) for shape in _shapes()] for rank in range(RANKS)]
    padded = sum(_padded(shape[0]) * math.prod(shape[1:]) for shape in _shapes())
    return [[8 * padded, 8 * padded, 16 * sum(part) + 4 * len(part)] for part in parts]


def _rows(rows: int, rank: int) -> int:
    return max(min(_padded(rows), rows - rank * _padded(rows)), 0)


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize("mode", ["ddp", "zero1", "zero2", "fsdp"])
def test_each_mode_holds_what_its_formula_says(mode: str) -> None:
    """Exactly, on each of four ranks."""
    assert _expected(mode) == _held(mode)

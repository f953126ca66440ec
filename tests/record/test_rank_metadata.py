"""The metadata of a rank."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.modes import ADAMW, CASES, ModeCase, parameters_of, reference, run_of

torch = pytest.importorskip("torch", reason="recording needs torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from dptrace.record.rank_metadata import FlopCounter, MemoryTracker, StepFlops, describe  # noqa: E402
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
    memory.end_step()
    assert memory.to_dict()["parameters_bytes"] is None
    memory.start()
    memory.reset_peak()
    optimizer.step()
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


# The FLOPs of a step, counted while it runs.


def step(model: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Run forward and backward."""
    model(x).sum().backward()  # type: ignore[no-untyped-call]


def test_operators_count_as_torch_counts_them() -> None:
    """Linear layers and plain and transposed convolutions, forward and backward, each equal to torch's own counter."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Flatten(), nn.Linear(1024, 16)
    )
    x = torch.randn(2, 3, 8, 8)

    with FlopCounter() as counter:
        step(model, x)
    with FlopCounterMode(display=False) as torchs:
        step(model, x)

    expected = {packet._qualified_op_name: count for packet, count in torchs.get_flop_counts()["Global"].items()}
    assert (expected, torchs.get_total_flops(), 0) == (dict(counter.by_operator), counter.total, counter.repeated)


def test_attention_on_the_cpu_counts_as_its_parts() -> None:
    """torch counts nothing for it; by its parts, it has 6 products of 2·2·5·5·4, fused one more, which repeats."""
    q = torch.randn(1, 2, 5, 4, requires_grad=True)
    counts = []
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend), FlopCounter() as counter:
            scaled_dot_product_attention(q, q, q).sum().backward()  # type: ignore[no-untyped-call]
        counts.append((counter.total, counter.repeated))

    assert [(6 * 400, 0), (7 * 400, 400)] == counts


def test_what_checkpointing_computes_again_is_not_the_models() -> None:
    """Three products of a hidden layer, and its forward once more in backward."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 8, bias=False), nn.Tanh())
    x = torch.randn(4, 8, requires_grad=True)

    for reentrant in (False, True):
        with FlopCounter() as counter:
            step(lambda x, kind=reentrant: checkpoint(model, x, use_reentrant=kind), x)  # type: ignore[misc]
        assert (6 * 512, 2 * 512) == (counter.total - counter.repeated, counter.repeated)


def test_a_recording_counts_its_second_step_once(tmp_path: Path) -> None:
    """run.json has the FLOPs of a step of 4 × 8 × 8 products: forward, and the gradient of the weight."""
    model = nn.Linear(8, 8)

    with record(tmp_path / "run", steps=1, warmup=2, model=model) as recording:
        for _ in range(5):
            step(model, torch.randn(4, 8))
            recording.step()

    (rank,) = json.loads((tmp_path / "run" / "run.json").read_text())["ranks"]
    assert {"hardware": 1024, "model": 1024, "dtype": "fp32"} == rank["flops"]


def test_a_step_that_may_not_be_slowed_down_is_not_counted() -> None:
    """Nor is one under a mode of the script's own, which it may leave within the step."""
    timed, busy = StepFlops(), StepFlops()
    for _ in range(3):
        timed.begin_step(counts=False)
        torch.mm(torch.eye(3), torch.eye(3))
        timed.end_step()
    with FlopCounterMode(display=False):
        for _ in range(3):
            busy.begin_step(counts=True)
            torch.mm(torch.eye(3), torch.eye(3))
            busy.end_step()

    assert (None, None) == (timed.to_dict(), busy.to_dict())


def test_a_mode_that_the_script_enters_in_the_step_stays() -> None:
    """The script's own counter goes on when ours ends below it."""
    flops = StepFlops()
    flops.begin_step(counts=True)
    flops.end_step()
    flops.begin_step(counts=True)
    own = FlopCounterMode(display=False)
    with own:
        torch.mm(torch.eye(3), torch.eye(3))
        flops.end_step()
        torch.mm(torch.eye(3), torch.eye(3))

    assert own.get_total_flops() == 2 * 54
    assert {"hardware": 54, "model": 54, "dtype": "fp32"} == flops.to_dict()


def test_a_profiler_that_starts_in_the_step_ends_the_count(tmp_path: Path) -> None:
    """Under a mode it would record each operator twice."""
    found = []
    with record(tmp_path / "run", steps=1, warmup=2) as recording:
        for index in range(5):
            if index == 1:
                with profile(activities=[ProfilerActivity.CPU]) as own:
                    torch.mm(torch.eye(3), torch.eye(3))
                found += [event.count for event in own.key_averages() if event.key == "aten::mm"]
            recording.step()

    (rank,) = json.loads((tmp_path / "run" / "run.json").read_text())["ranks"]
    assert ([1], None) == (found, rank["flops"])

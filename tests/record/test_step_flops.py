"""The FLOPs of a step, counted while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from dptrace.record import record
from dptrace.record.rank_metadata import FlopCounter, StepFlops


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

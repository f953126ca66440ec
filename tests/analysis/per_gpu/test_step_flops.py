"""What each step computes, by the shapes of its operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dptrace
from dptrace.analysis.per_gpu.device import DeviceFigures, StepFlops
from dptrace.core.operators import PRODUCTS
from dptrace.model.operator_costs import owns_kernels

torch = pytest.importorskip("torch", reason="recording needs torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402
from torch.profiler import ProfilerActivity, profile, schedule  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("default", "ignore:Warning. Profiler clears")]


def recorded(folder: Path, step: Callable[[], None], steps: int = 2, shapes: bool = True) -> DeviceFigures:
    """Record steps in this process, and read them."""
    plan = schedule(wait=0, warmup=1, active=steps)

    def keep(profiler: Any) -> None:
        profiler.export_chrome_trace(str(folder / "t.json"))

    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=shapes, on_trace_ready=keep
    ) as profiler:
        for _ in range(1 + steps):
            step()
            if profiler.step_num == steps:
                torch.mm(torch.eye(3), torch.eye(3))  # of the last step only
            profiler.step()
    (device,) = dptrace.open(folder / "t.json", cache=False).devices
    return device


def flops_of(device: DeviceFigures) -> StepFlops:
    """Return what is known."""
    assert device.flops is not None
    return device.flops


def train(model: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Run forward and backward."""
    model(x).sum().backward()  # type: ignore[no-untyped-call]


def attention(backend: Any) -> None:
    """Run attention forward and backward, in one way to compute it."""
    q = torch.randn(1, 2, 5, 4, requires_grad=True)
    with sdpa_kernel(backend):
        scaled_dot_product_attention(q, q, q).sum().backward()  # type: ignore[no-untyped-call]


def test_the_inputs_of_each_operator_with_a_formula_are_read() -> None:
    """The reader's list and the formulas name the same operators."""
    from dptrace.model import operator_costs

    assert set(operator_costs._OWNERS) == PRODUCTS
    assert all(map(owns_kernels, PRODUCTS))


def test_each_step_counts_as_torch_counts_it(tmp_path: Path) -> None:
    """Linear layers, plain and transposed convolutions, forward and backward; the last step has a product more."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Flatten(), nn.Linear(1024, 16)
    )
    x = torch.randn(2, 3, 8, 8)
    with FlopCounterMode(display=False) as torchs:
        train(model, x)

    found = flops_of(recorded(tmp_path, partial(train, model, x)))

    expected = [torchs.get_total_flops(), torchs.get_total_flops() + 54]
    assert (expected, expected, "fp32") == (found.hardware.tolist(), found.model.tolist(), found.dtype)


def test_attention_on_the_cpu_counts_as_its_parts(tmp_path: Path) -> None:
    """By its parts, it has 6 products of 2·2·5·5·4, fused one more, which repeats."""
    counts = []
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        found = flops_of(recorded(tmp_path, partial(attention, backend)))
        counts.append((found.hardware[0], found.model[0]))

    assert [(6 * 400, 6 * 400), (7 * 400, 6 * 400)] == counts


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_checkpointing_computes_again_is_not_the_models(reentrant: bool, tmp_path: Path) -> None:
    """Three products of a hidden layer, and its forward once more in backward."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 8, bias=False), nn.Tanh())
    x = torch.randn(4, 8, requires_grad=True)

    found = flops_of(recorded(tmp_path, partial(train, partial(checkpoint, model, use_reentrant=reentrant), x)))

    assert (8 * 512, 6 * 512) == (found.hardware[0], found.model[0])


def test_without_shapes_nothing_is_known(tmp_path: Path) -> None:
    """No figure, and not 0."""
    device = recorded(tmp_path, partial(train, nn.Linear(8, 8), torch.randn(4, 8)), shapes=False)

    assert device.flops is None


def test_selected_steps_keep_their_own(tmp_path: Path) -> None:
    """The first step alone lacks the product of the last."""
    device = recorded(tmp_path, partial(train, nn.Linear(8, 8, bias=False), torch.randn(4, 8)))

    assert [1024, 1024 + 54] == flops_of(device).hardware.tolist()
    assert [1024] == flops_of(device.first_steps(1)).hardware.tolist()
    assert [1024 + 54] == flops_of(
        dptrace.open(tmp_path / "t.json", cache=False).select(steps=(2, 2)).devices[0]
    ).hardware.tolist()

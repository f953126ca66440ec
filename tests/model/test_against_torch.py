"""FLOPs of recorded operators, equal to those that torch counts while the same model runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from dptrace.model.operator_costs import cost
from tests.support.operator_calls import owners, read_operators

pytestmark = pytest.mark.heavy  # torch's counter imports its compiler


class Attention(nn.Module):
    """Causal attention with grouped heads: four heads of Q, two of K and V."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over [batch, length, width]."""
        q = self.q(x).unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, 2, 8)).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out


def mixer(x: Tensor) -> Tensor:
    """Products of all forms: einsum, a batch, matrix and vector, addbmm."""
    batch = torch.einsum("bij,bkj->bik", x, x) @ x
    return torch.addbmm(batch[0], batch, torch.ones(2, 8, 8)) @ torch.ones(8) + torch.mv(batch[0], torch.ones(8))


UNKNOWN_TO_TORCH = {"aten::mv", "aten::addmv", "aten::dot", "aten::addbmm"}
"""Products that torch's counter has no formula for."""

CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "perceptron": (nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10, bias=False)), (16, 64)),
    "attention": (Attention(), (2, 6, 32)),
    "convolutions": (
        nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, stride=2)),
        (2, 3, 8, 8),
    ),
    "convolutions in 1 and 3 dimensions": (
        nn.Sequential(nn.Conv1d(4, 6, 3, dilation=2), nn.Unflatten(-1, (2, 2, 3)), nn.Conv3d(6, 2, 2)),
        (2, 4, 16),
    ),
    "products": (mixer, (2, 8, 8)),
}


def recorded(model: Callable[[Tensor], Tensor], x: Tensor, path: Path) -> Counter[str]:
    """Return the FLOPs by operator of forward and backward, from their trace."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        model(x).sum().backward()  # type: ignore[no-untyped-call]
    profiler.export_chrome_trace(str(path))
    counted: Counter[str] = Counter()
    for operator in owners(read_operators(path)):
        found = cost(operator.call())
        assert found is not None, operator.name
        assert found.counted_flops is not None
        counted[operator.name] += found.counted_flops
    return counted


@pytest.mark.parametrize("case", CASES)
def test_recorded_operators_count_as_torch_counts_them(case: str, tmp_path: Path) -> None:
    """Forward and backward, by operator; attention by its parts, since torch counts nothing for the CPU's fused one."""
    model, shape = CASES[case]
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)

    with sdpa_kernel(SDPBackend.MATH):
        ours = recorded(model, x, tmp_path / "trace.json")
        with FlopCounterMode(display=False) as torchs:
            model(x).sum().backward()  # type: ignore[no-untyped-call]

    theirs = {packet._qualified_op_name: count for packet, count in torchs.get_flop_counts()["Global"].items()}
    assert theirs == {name: count for name, count in ours.items() if name not in UNKNOWN_TO_TORCH}


def test_grouped_convolution_is_where_torch_counts_too_much(tmp_path: Path) -> None:
    """Of its weight's gradient torch counts all channels with each group's: 4 times the forward, with 4 groups."""
    x = torch.randn(2, 8, 6, 6, requires_grad=True)
    model = nn.Conv2d(8, 8, 3, groups=4)

    ours = recorded(model, x, tmp_path / "trace.json")
    with FlopCounterMode(display=False) as torchs:
        model(x).sum().backward()

    theirs = {packet._qualified_op_name: count for packet, count in torchs.get_flop_counts()["Global"].items()}
    forward = 2 * (2 * 8 * 16) * (2 * 9)
    assert {"aten::convolution": forward, "aten::convolution_backward": 2 * forward} == dict(ours)
    assert forward * (1 + 4) == theirs["aten::convolution_backward"]

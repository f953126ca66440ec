"""Bytes that the elementwise operators of a decoder read and write in a step, one by one and fused.

A forward of one layer, in numbers of each token, with h the hidden size and f the MLP's width: two normalizations
(read and write h, and a residual add before each that reads 2h and writes h), the activation function (read and write
f), with a gate also a product (read 2f, write f), two dropouts where the model has them (read and write h), and for GPT
four biases (read and write 3h + h + f + h). Fused, each chain between two products reads its inputs and writes its
result: the residual, its sum and the normalized numbers (4h a normalization) and the activation (read f or 2f, write
f). Backward reads and writes twice as much.
"""

from __future__ import annotations

from dptrace.model.training.memory.state import PRECISIONS
from dptrace.model.training.plan import Plan

__all__ = ["pointwise_bytes"]


def pointwise_bytes(plan: Plan, fused: bool) -> float:
    """Return what one GPU reads and writes in a step for elementwise operators."""
    shape, layout = plan.shape, plan.layout
    hidden, mlp = shape.hidden, shape.mlp * shape.top_k
    around = 2 * 4 * hidden if fused else 2 * (2 + 3) * hidden
    inner: float = (3 if shape.gated else 2) * mlp
    if not fused:
        inner = (2 + 3 if shape.gated else 2) * mlp
        around += 2 * 2 * hidden if plan.dropout else 0
        around += 2 * 2 * hidden if shape.bias else 0
        inner += 2 * (3 * hidden + mlp) if shape.bias else 0
    split = around / (layout.tensor if layout.sequence else 1) + inner / layout.tensor
    tokens = plan.batch * shape.sequence / layout.data
    return 3 * split * shape.layers / layout.stages * tokens * PRECISIONS[plan.precision].activation_bytes

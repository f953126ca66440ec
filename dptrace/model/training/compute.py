"""How fast a GPU computes: its peak, and the share of it that the matrix products of a model reach.

The share grows with the width of the matrices and with the tokens that are multiplied at once, and splitting layers
makes the matrices narrower::

    share = ceiling / (1 + r·(2750·t^¼/h + 900/n))     h hidden size, t tensor-parallel GPUs, n tokens of a micro-batch

The constants were fitted to vTrain's measurements of 3.6 and 39.1 billion parameters on A100s (VIA-Research/vTrain,
data/ground_truth_multi.csv; arXiv 2312.12391), and are tested on others; see docs/guides/plan.md. The ceilings:
0.95 for the A100 with the same fit; 0.77 for the H100, from the 430 TFLOP/s of Llama 3 405B on 8,192 GPUs
(arXiv 2407.21783, table 4). Other GPUs have the H100's.

r is the peak of the number type over that of 16 bits: in float8 only the products are twice as fast, while what is
around them (elementwise operators, attention, launches) takes as long as before. On llm-foundry's float8 runs of 1 and
3 billion parameters on H100s that is off by 6 % in the mean, where twice the speed of 16 bits would be off by 47 %.
"""

from __future__ import annotations

import math

from dptrace.model.training.hardware import Gpu
from dptrace.model.training.shape import ModelShape

__all__ = ["matmul_share"]

_WIDTH, _TOKENS, _SPLIT = 2750, 900, 0.25


def matmul_share(gpu: Gpu, shape: ModelShape, tensor: int, micro_batch: float, number_type: str = "bf16") -> float:
    """Return the share of the peak that the computation of a micro-batch reaches by itself, without communication.

    Args:
        number_type: that of the products; the share is of its peak.
    """
    narrow = _WIDTH * math.pow(tensor, _SPLIT) / shape.hidden
    around = narrow + _TOKENS / (micro_batch * shape.sequence)
    return gpu.ceiling / (1 + _rate(gpu, number_type) * around)


def _rate(gpu: Gpu, number_type: str) -> float:
    """Return the peak of a number type over that of 16 bits."""
    peaks = gpu.peaks.tflops
    half = peaks.get("bf16", peaks.get("fp16"))
    return peaks[number_type] / half if half and number_type in peaks else 1.0

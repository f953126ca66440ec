"""How fast a GPU computes: its peak, and the share of it that the matrix products of a model reach.

The share grows with the width of the matrices and with the tokens that are multiplied at once, and splitting layers
makes the matrices narrower::

    share = ceiling / (1 + 2750·t^¼/h + 900/n)      h hidden size, t tensor-parallel GPUs, n tokens of a micro-batch

The constants were fitted to vTrain's measurements of 3.6 and 39.1 billion parameters on A100s (VIA-Research/vTrain,
data/ground_truth_multi.csv; arXiv 2312.12391), and are tested on others; see docs/guides/plan.md. The ceilings:
0.95 for the A100 with the same fit; 0.77 for the H100, from the 430 TFLOP/s of Llama 3 405B on 8,192 GPUs
(arXiv 2407.21783, table 4). Other GPUs have the H100's.
"""

from __future__ import annotations

import math

from dptrace.model.training.hardware import Gpu
from dptrace.model.training.shape import ModelShape

__all__ = ["matmul_share"]

_WIDTH, _TOKENS, _SPLIT = 2750, 900, 0.25


def matmul_share(gpu: Gpu, shape: ModelShape, tensor: int, micro_batch: float) -> float:
    """Return the share of the peak that the computation of a micro-batch reaches by itself, without communication."""
    narrow = _WIDTH * math.pow(tensor, _SPLIT) / shape.hidden
    return gpu.ceiling / (1 + narrow + _TOKENS / (micro_batch * shape.sequence))

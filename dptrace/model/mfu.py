"""Model and hardware FLOPs utilization, and model FLOPs from a number of parameters.

MFU is defined in "PaLM: Scaling Language Modeling with Pathways" (arXiv 2204.02311), appendix B: the FLOPs that the
model needs, without any recomputation, over what the hardware could do in the time of the step. HFU ("Reducing
Activation Recomputation in Large Transformer Models", arXiv 2205.05198) counts what was carried out, recomputation
included. Both papers count attention in full, masked or not.
"""

from __future__ import annotations

import msgspec

__all__ = ["ModelFlops", "achieved_flops_per_s", "transformer_flops", "utilization"]


class ModelFlops(msgspec.Struct, frozen=True):
    """FLOPs of one step of one rank, and where they come from."""

    model: float
    """What the model needs: forward and backward, no recomputation. MFU's numerator."""
    hardware: float | None
    """What was carried out; None where it is not known. HFU's numerator."""
    source: str
    """How they were counted, as the end of a sentence: ``counted by torch in a step of the warm-up``."""


def transformer_flops(
    parameters: float, tokens: float, *, layers: int = 0, width: int = 0, sequence: int = 0, training: bool = True
) -> float:
    """Return the FLOPs of one step of a dense transformer: 6·N + 12·L·(heads·d)·T for each token.

    PaLM, appendix B. The second term is attention, and is left out without *layers*, *width* and *sequence*. A forward
    alone is a third of it.

    Args:
        parameters: N, without embeddings that are only looked up.
        tokens: tokens of the step.
        layers: L.
        width: heads × d, the width of the model.
        sequence: T, tokens of a sequence.
        training: forward and backward; else forward only.

    >>> transformer_flops(7e9, 4096)
    172032000000000.0
    """
    whole = tokens * (6.0 * parameters + 12.0 * layers * width * sequence)
    return whole if training else whole / 3


def achieved_flops_per_s(flops: float, ns: float) -> float | None:
    """Return the rate in FLOP/s; None in no time."""
    return flops / ns * 1e9 if ns > 0 else None


def utilization(flops: float, ns: float, peak_flops_per_s: float) -> float | None:
    """Return the share of the peak that *flops* in *ns* are; MFU or HFU, by what was counted. None in no time.

    >>> round(utilization(5.9866e12, 35.0e6, 989.4e12), 3)
    0.173
    """
    rate = achieved_flops_per_s(flops, ns)
    return rate / peak_flops_per_s if rate is not None and peak_flops_per_s > 0 else None

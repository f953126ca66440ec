"""How far predictions are off, by the kind of training: from the runs of docs/published.csv, with their layouts.

``python docs/make_published.py`` writes the runs and prints these figures; a test compares both.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dptrace.core.units import number, plural
from dptrace.model.training.memory import PRECISIONS
from dptrace.model.training.plan import Plan
from dptrace.model.training.shape import LayerStack
from dptrace.model.training.step import StepPrediction

LONG_SAMPLE = 16_384
"""Tokens of a sample from which attention takes so much that the run is of a kind of its own."""
UNKNOWN_ERROR = 0.05
"""Relative difference of two steps that is taken for none where it is not known how far predictions are off."""
_LIKE = 2
"""By which factor a number of parameters, GPUs or tokens of a sample may be outside of the published ones."""
_CHIPS = {"A800": "A100", "H200": "H100", "H800": "H100", "GB200": "B200", "GB300": "B300", "TPU V4": "TPU v4"}
"""GPUs with the processor of another, whose memory or links differ; and a name that is not in capitals."""


class Published(msgspec.Struct, frozen=True):
    """What the runs of a kind were trained on: a plan beside it is like none of them."""

    chips: tuple[str, ...]
    parameters: tuple[float, float]
    """Of the smallest and of the largest model, in billions."""
    gpus: tuple[int, int]
    slowest: tuple[float, float]
    """GB/s of the slowest link within and between nodes."""
    tokens: int
    """Of the shortest sample."""
    launched: bool
    """Whether the host sets the step of any: it takes longer to launch operators than a GPU to compute them."""


class Kind(msgspec.Struct, frozen=True):
    """Published trainings of one kind, and how their steps compare with the predicted ones."""

    name: str
    runs: int
    sources: int
    median: float
    """Of the relative errors' sizes."""
    left_out: float
    """The same, by constants that the run's source had no part in."""
    factor: float | None
    """Eight of ten runs of a source that is not among these take between the prediction ÷ and × this factor: the
    conformal quantile over the sources. None where there are too few sources to tell."""
    inside: int
    """Runs within the range that all other sources give."""
    of: Published


KINDS = {
    kind.name: kind
    for kind in (
        Kind("dense in 16 bits", 48, 16, 0.047, 0.047, 1.26, 45,
             Published(("A100", "H100", "TPU v4"), (1.65, 1008), (8, 16384), (100, 3), 2048, False)),
        Kind("dense in float8", 34, 6, 0.111, 0.106, 1.45, 33,
             Published(("B200", "B300", "H100"), (5.05, 405.9), (8, 1024), (360, 35), 2048, False)),
        Kind("mixture of experts", 27, 5, 0.169, 0.222, 1.83, 25,
             Published(("B200", "B300", "H100"), (30.5, 671), (8, 2048), (160, 35), 4096, True)),
        Kind("long samples", 15, 2, 0.143, 0.419, None, 0,
             Published(("H100",), (6.74, 405.9), (8, 1024), (360, 35), 16384, False)),
    )
}  # fmt: skip
"""By their names."""


def kind_name(plan: Plan) -> str | None:
    """Return the kind of a training; None where no run of it is published."""
    number_type = PRECISIONS[plan.precision].compute
    if isinstance(plan.shape, LayerStack) or number_type not in ("bf16", "fp16", "fp8"):
        return None
    long = plan.shape.sequence >= LONG_SAMPLE
    if plan.shape.experts > 1:
        return None if long else "mixture of experts"
    return "long samples" if long else "dense in float8" if number_type == "fp8" else "dense in 16 bits"


def chip(gpu: str) -> str:
    """Return the processor of a GPU by its name.

    >>> chip("A100 80 GB SXM"), chip("h100-96"), chip("GB200"), chip("TPU v4"), chip("mine")
    ('A100', 'H100', 'B200', 'TPU v4', 'MINE')
    """
    word = re.match(r"(?:TPU )?\w+", gpu.upper())
    return _CHIPS.get(word[0], word[0]) if word else gpu


def unlike(plan: Plan, step: StepPrediction) -> str:
    """Return why no published run is like a plan, so that it is not known how far its prediction is off; else empty."""
    name, layout, network = kind_name(plan), plan.layout, plan.network
    if name is None:
        if isinstance(plan.shape, LayerStack):
            return "published runs are of decoders"
        if plan.shape.experts > 1 and plan.shape.sequence >= LONG_SAMPLE:
            return f"no mixture of experts with samples of {LONG_SAMPLE:,} tokens or more is published"
        return f"no run with products in {PRECISIONS[plan.precision].compute} is published"
    kind = KINDS[name]
    of, size = kind.of, plan.shape.parameters / 1e9
    rates = (network.within.bytes_per_s / 1e9, network.between.bytes_per_s / 1e9)
    used = (min(layout.gpus, network.gpus_per_node) > 1, layout.gpus > network.gpus_per_node)
    slow = [rate for rate, least, on in zip(rates, of.slowest, used, strict=True) if on and rate < 0.99 * least]
    reasons = {
        "its state is in the CPU's memory": plan.offload,
        "the share of the GPU's peak is given": plan.share is not None,
        f"it runs on {plan.gpu.name}, published ones on {', '.join(of.chips)}": chip(plan.gpu.name) not in of.chips,
        f"TP {layout.tensor} spans nodes of {plural(network.gpus_per_node, 'GPU')}": (
            layout.tensor > network.gpus_per_node
        ),
        f"its links reach {min(slow, default=0):,.3g} GB/s": bool(slow),
        f"it has {number(size)} billion parameters, published ones {of.parameters[0]:,g} to {of.parameters[1]:,g}": (
            not of.parameters[0] / _LIKE <= size <= of.parameters[1] * _LIKE
        ),
        f"it runs on {plural(layout.gpus, 'GPU')}, published ones on {of.gpus[0]:,} to {of.gpus[1]:,}": (
            not of.gpus[0] / _LIKE <= layout.gpus <= of.gpus[1] * _LIKE
        ),
        f"its samples have {plural(plan.shape.sequence, 'token')}, published ones {of.tokens:,} or more": (
            plan.shape.sequence < of.tokens / _LIKE
        ),
        "its GPUs wait for their hosts to launch operators": step.launch_s >= step.compute_s and not of.launched,
    }
    if found := next((reason for reason, holds in reasons.items() if holds), ""):
        return f"no published run is like it, since {found}"
    few = f"its {kind.runs} published runs ({name}) are of {plural(kind.sources, 'source')}, too few to tell"
    return few if kind.factor is None else ""


def expected_error(plan: Plan, step: StepPrediction) -> dict[str, Any]:
    """Return between which lengths a predicted step can be expected, or why that is not known."""
    why, kind = unlike(plan, step), KINDS.get(kind_name(plan) or "")
    factor = (kind and not why and kind.factor) or None
    return {
        "kind": kind and kind.name,
        **{key: kind and getattr(kind, key) for key in ("runs", "sources", "inside")},
        "median_error": kind and kind.median,
        "left_out_error": kind and kind.left_out,
        "low_s": factor and step.step_s / factor,
        "high_s": factor and step.step_s * factor,
        "unknown": why or None,
    }

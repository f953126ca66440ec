"""The figures that a page computes with again."""

from __future__ import annotations

import pytest

from dptrace.model.planning.describe import Description
from dptrace.model.planning.live import live_figures
from dptrace.model.planning.search import best_plan


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp", "3d"])
def test_a_plan_as_numbers(strategy: str) -> None:
    """What does not grow with the GPUs has no divisor; gradients are shared by all data-parallel GPUs."""
    described = Description(params=7e9, gpus=64, strategy=strategy, tp=2 if strategy == "3d" else None, pp=None)
    plan = best_plan(described, next(described.layouts())).plan
    figures = live_figures(plan)
    scaled = {row["what"]: row["divisor"] for row in figures["traffic"]}

    assert 64 == figures["gpus"]
    assert 1 == scaled.get("gradients across nodes", scaled["gradients"]) or strategy == "hsdp"
    assert 0 == scaled.get("activations (all-gather)", 0)

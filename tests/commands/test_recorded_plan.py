"""A recording's points on the communication roofline."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest

from dptrace.commands.recorded_plan import roofline_point
from dptrace.model.planning.recorded import MeasuredStep
from dptrace.run.run import Run


def hierarchical() -> Any:
    """Four ranks on two nodes, two steps: an all-gather of 8 MB in each node, an all-reduce of 2 MB across nodes."""
    inside, across = [("0", (0, 1)), ("1", (2, 3))], [("2", (0, 2)), ("3", (1, 3))]
    collectives = (("all_gather", inside, 8_000_000, 10**6), ("all_reduce", across, 2_000_000, 10**7))
    calls = [
        {"kind": kind, "group": name, "bytes": size, "complete": True, "transfer_ns": took, "rank": rank, "step": step}
        for kind, groups, size, took in collectives
        for name, ranks in groups
        for rank in ranks
        for step in ("1", "2")
    ]
    matched = pd.DataFrame(calls)
    steps = pd.DataFrame([{"rank": rank, "step": step, "wall_ns": 10**9} for rank in range(4) for step in ("1", "2")])
    groups = tuple(SimpleNamespace(name=name, ranks=ranks) for name, ranks in inside + across)
    return SimpleNamespace(
        devices=(),
        efficiency=SimpleNamespace(steps=[SimpleNamespace(model_flops=6e12)], peak_tflops=10.0),
        metadata={"parameters": 1000, "model": "medium"},
        steps=lambda: steps,
        collectives=lambda: matched.assign(group_size=2),
        matched_collectives=lambda: matched,
        cross_rank=SimpleNamespace(matches=SimpleNamespace(groups=groups)),
    )


def test_each_kind_of_group_is_a_link() -> None:
    """Within a node a rank sends half of 8 MB in 1 ms, across nodes 2 MB in 10 ms; each has its own ridge."""
    step = MeasuredStep(ranks=4, compute_s=0.9, communication_s=0.011, exposed_s=0.01, rest_s=0.0, samples=64)
    point = roofline_point(cast(Run, hierarchical()), step)
    assert point is not None
    near, far = point["levels"]

    assert ("2 ranks next to each other", 4e6, pytest.approx(4e9)) == (
        near["link"], near["sent_bytes"], near["bytes_per_s"],
    )  # fmt: skip
    assert ("2 ranks, 2 apart", 2e6, pytest.approx(0.2e9)) == (far["link"], far["sent_bytes"], far["bytes_per_s"])
    assert (pytest.approx(1e13 / 4e9), pytest.approx(6e12 / 4e6)) == (near["ridge"], near["ccr"])
    assert [{"step": "1", "flops_per_s": 6e12}, {"step": "2", "flops_per_s": 6e12}] == point["steps"]

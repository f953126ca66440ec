"""Forward work that backward repeats has its price."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from dptrace.analysis.compute_findings.recompute import recompute
from dptrace.timeline.model import Phase
from tests.support.compute_files import ComputeFile, context_of


def test_repeated_work_costs_its_time(tmp_path: Path) -> None:
    """40 of 100 µs in backward; without any, there is no finding."""
    context = context_of(tmp_path, ComputeFile().step().kernel("aten::mm", "gemm", 40).kernel("aten::mm", "gemm", 60))
    (timeline,) = context.timelines
    backward = replace(timeline, phase=np.full(2, Phase.BACKWARD, np.uint8))
    again = replace(backward, recompute=np.array([True, False]))
    (found,) = recompute(replace(context, timelines=(again,)))

    assert ("recompute", 40_000) == (found.kind, found.cost_ns)
    assert [] == recompute(replace(context, timelines=(backward,)))

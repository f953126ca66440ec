"""The findings of a run, most expensive first, and none below one percent of a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.analysis.compute_findings.detect import compute_findings
from dptrace.load.open import open_run
from dptrace.load.options import ReadOptions
from dptrace.run.kernels import operator_calls_of
from dptrace.timeline.host_calls import OperatorCalls
from tests.support.compute_files import ComputeFile, context_of, inputs
from tests.support.real_traces import needs_real_traces, real

SAME = inputs([1024, 1024], [1024, 1024])


def test_the_most_expensive_comes_first(tmp_path: Path) -> None:
    """A copy of 200 µs, and a chain that costs 60; short kernels that cost 4 of 1,000 are no finding."""
    file = ComputeFile(step_us=1000).step().copy("Memcpy DtoH (Device -> Pageable)", 200)
    for _ in range(3):
        file.kernel("aten::add", "vectorized_add", 30, **SAME)
    file.kernel("aten::mm", "gemm", 20).kernel("aten::mm", "a", 3).kernel("aten::mm", "b", 3, idle=4)
    file.kernel("aten::mm", "gemm", 400)
    context = context_of(tmp_path, file)

    assert [("pageable_copies", 200_000), ("elementwise_chains", 60_000)] == [
        (finding.kind, finding.cost_ns) for finding in compute_findings(context.timelines, context.calls)
    ]


def test_without_calls_or_steps_there_are_fewer_findings(tmp_path: Path) -> None:
    """What needs shapes is not found; a run without steps has none."""
    file = ComputeFile().step().copy("Memcpy DtoH (Device -> Pageable)", 200)
    for _ in range(3):
        file.kernel("aten::add", "vectorized_add", 30, **SAME)
    timelines = context_of(tmp_path, file).timelines

    assert ["pageable_copies"] == [finding.kind for finding in compute_findings(timelines, (OperatorCalls(),))]
    assert () == compute_findings((), ())


@needs_real_traces
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("compute/h100_qwen_0.5b", ["elementwise_chains", "slow_attention", "short_kernels"]),
        ("compute/h100_bert_small", ["short_kernels", "small_products"]),
        ("ddp_mi300_rank0of8", ["slow_convolutions", "recompute", "elementwise_chains"]),
    ],
)
def test_findings_of_real_runs(name: str, kinds: list[str]) -> None:
    """Eager inference, a batch that is too small, and a small network with checkpointing."""
    run = open_run([str(real(name))], ReadOptions(operators=True))
    calls = [operator_calls_of(run, timeline) for timeline in run.timelines]

    assert kinds == [finding.kind for finding in compute_findings(run.timelines, calls)]

"""Time by kernel equals Holistic Trace Analysis' own kernel breakdown."""

from __future__ import annotations

import pytest

import dptrace
from dptrace.analysis.kernels.summary import summarize
from dptrace.hta.trace_analysis import silence_hta
from dptrace.timeline.host_calls import OperatorCalls
from tests.support.hta_own import needs_hta
from tests.support.real_traces import needs_real_traces, real


@pytest.mark.heavy
@needs_hta
@needs_real_traces
@pytest.mark.parametrize("name", ["ddp_a100_rank0of2", "straggler_v100_4ranks", "ns_v100_1gpu", "dlrm_v100_4ranks"])
def test_time_by_kernel_equals_hta(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each kernel on each rank, to the nanosecond; HTA leaves out what was launched outside the steps."""
    env_options = pytest.importorskip("hta.configs.env_options")
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    monkeypatch.setattr(env_options.HTAEnvOptions, "_instance", None)  # HTA reads its settings once
    run = dptrace.open(real(name))
    with silence_hta():
        analysis = run.hta(include_last_profiler_step=True)
        _, table = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10_000, duration_ratio=1.0)
    theirs: dict[tuple[int, str], int] = {}
    for row in table.to_dict("records"):
        key = int(row["rank"]), str(row["name"])
        theirs[key] = theirs.get(key, 0) + round(float(row["sum (us)"]) * 1_000)
    ours: dict[tuple[int, str], int] = {}
    for row in summarize(
        run.timelines, lambda timeline: OperatorCalls(), "kernel", per_rank=True, only_steps=True
    ).rows:
        key = row["rank"], row["name"]
        ours[key] = ours.get(key, 0) + row["total_ns"]

    assert theirs == ours

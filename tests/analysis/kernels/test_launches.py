"""The launch side: delays, queues, graphs, synchronizing calls, and the time of the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.analysis.kernels.launches import LaunchFigures, host_rows, launch_figures, queue_depth
from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.host_calls import OperatorCalls, operator_calls
from dptrace.timeline.model import Timeline
from tests.support.kineto_files import KinetoFile
from tests.support.layered_files import layered_file


def read(file: KinetoFile, folder: Path) -> tuple[Timeline, OperatorCalls]:
    trace = read_trace(file.write(folder / "rank0.json"), operators=True)
    return build_timelines(trace, 0)[0], operator_calls(trace)


@pytest.mark.heavy
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=20, unique_by=lambda pair: pair[0]))
def test_the_queue_is_what_was_launched_and_not_started(pairs: list[tuple[int, int]]) -> None:
    """Counted one by one; work may start as it is launched."""
    launch, delay = (
        (np.array(column, np.int64) for column in zip(*pairs, strict=True)) if pairs else (np.empty(0, int),) * 2
    )
    start = launch + delay
    expected = [sum(other < own <= begun for other, begun in zip(launch, start, strict=True)) for own in launch]

    assert expected == queue_depth(launch, start).tolist()


def test_launch_figures_of_a_step(tmp_path: Path) -> None:
    """Seven launches of a step; the host waits twice, once for a number."""
    file = layered_file(steps=1)
    file.event("cuda_runtime", "cudaStreamSynchronize", 130, 140)
    file.op("aten::item", 142, 150).event("cuda_runtime", "cudaMemcpy", 144, 149)
    file.event("cuda_runtime", "cudaGraphLaunch", 152, 153, correlation=900)
    file.kernel("graph_kernel", 160, 170, None)
    file.events[-1]["args"]["correlation"] = 900
    figures = launch_figures(*read(file, tmp_path))

    assert (8, 1) == (figures.launches, figures.graph_kernels)
    assert round(10 / 88, 6) == figures.graph_share
    assert (2, 18_000) == (figures.synchronizing_calls, figures.synchronizing_ns)
    assert 17_000 == figures.delay_p50_ns


def test_a_cpu_has_no_queue(tmp_path: Path) -> None:
    """Operators run where they are called."""
    figures = launch_figures(*read(KinetoFile().op("aten::mm", 0, 10), tmp_path))

    assert LaunchFigures(0, 0, None, None, None, None, None) == figures


def test_host_time_adds_up(tmp_path: Path) -> None:
    """Self times are without the calls inside; a launch counts for its call and for its operator."""
    timeline, recorded = read(layered_file(steps=1), tmp_path)
    rows = {row["call"]: row for row in host_rows([timeline], [recorded])}

    assert (1, 2_000, 8_000) == tuple(rows["aten::linear"][name] for name in ("count", "self_ns", "total_ns"))
    assert (2, 11_000, 14_000, 3) == tuple(rows["aten::mm"][n] for n in ("count", "self_ns", "total_ns", "launches"))
    assert (7, 7_000, 7) == tuple(rows["cudaLaunchKernel"][name] for name in ("count", "self_ns", "launches"))
    assert 8 + 5 + 20 + 9 + 1 == sum(row["self_ns"] for row in rows.values()) / 1_000

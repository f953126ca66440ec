"""Where a recording has the pieces of a critical path."""

from __future__ import annotations

import numpy as np
import pytest

import dptrace
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real


def test_pieces_lie_where_the_recording_has_their_kernels(run: dptrace.Run) -> None:
    """The replay of this job is exact: each piece of a kernel is its interval, a transfer the end of the collective."""
    path = run.critical_path("ProfilerStep#1")
    places = path.recorded
    found = {}
    for i in np.flatnonzero(places.interval >= 0).tolist():
        timeline = path.timelines[places.timeline[i]]
        name = timeline.names[timeline.name[places.interval[i]]]
        found[name] = (timeline.rank, int(places.end_ns[i] - timeline.end_ns[places.interval[i]]))

    assert {"forward", "backward", "ncclDevKernel_AllReduce_Sum_f32", "optimizer"} == set(found)
    assert (1, 0) == found["forward"] == found["ncclDevKernel_AllReduce_Sum_f32"]


def test_a_pause_lies_before_its_call(run: dptrace.Run) -> None:
    """The host's 20 µs between two steps lead to the first launch, and are no interval of the device."""
    path = run.critical_path("ProfilerStep#1")
    host = [i for i, one in enumerate(path.described()) if one["kind"] == "host" and path.recorded.before[i]]

    assert host
    assert {-1} == set(path.recorded.interval[host].tolist())


@needs_real_traces
@pytest.mark.heavy
@pytest.mark.parametrize("name", ["dlrm_v100_4ranks", "naive_cpu_2ranks"])
def test_no_piece_of_a_kernel_leaves_its_interval(name: str) -> None:
    """Where ranks have clocks of their own, and on CPUs."""
    path = dptrace.open(ROOT / "traces" / name if "cpu" in name else real(name)).critical_path()
    places = path.recorded
    known = np.flatnonzero(places.interval >= 0)
    spans = [
        (path.timelines[n].start_ns[i], path.timelines[n].end_ns[i])
        for n, i in zip(places.timeline[known].tolist(), places.interval[known].tolist(), strict=True)
    ]

    assert len(known) > 50
    start, end = np.array(spans).T
    # Clocks are known to some µs.
    assert (places.start_ns[known] - start).min() > -100_000
    assert (places.end_ns[known] - end).max() < 100_000

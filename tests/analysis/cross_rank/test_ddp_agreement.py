"""DDP's logging data compared with dptrace's figures, on runs recorded with dptrace.

DDP takes wall times on the host in one of its first ten iterations and then in every hundredth, and reports them in
the next forward. ``backward_compute_comm_overlap_time`` is not the sum of overlapped communication: it is the time from
the first bucket being ready, just before its all-reduce is launched, to the callback that the autograd engine runs
after its last node, before the reducer waits for the buckets (torch/csrc/distributed/c10d/logger.cpp, reducer.cpp). So
it may exceed the communication, and it includes the pauses in it.

The comparable span in a trace is from the launch of a step's first all-reduce to that of its last one, which the last
node launches. The callback follows at once, unless the thread waits for a core; it never runs after the first bucket is
copied back, which is the upper bound.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dptrace as product
from dptrace.run.run import Run
from dptrace.timeline.model import Kind, Phase, Timeline
from tests.support.recordings import dptrace, scratch

TRACES = Path(__file__).resolve().parents[3] / "traces"
CLOCKS_NS = 100_000
"""Difference of DDP's and the profiler's clocks, which are read and converted differently; usually below 0.01 ms."""
PAUSE_NS = 10_000_000
"""How long a thread may wait for a core between two lines; a step of the run below takes longer."""


def sizes(run: Run) -> list[int]:
    return [int(size) for size in run.metadata["ddp"]["rebuilt_bucket_sizes"].split(",")]


def buckets(run: Run) -> dict[str, list[int]]:
    """Return the bytes of each step's buckets, in order."""
    together = run.cross_rank
    assert together.buckets is not None
    assert not together.buckets.notes
    found: dict[str, list[int]] = {}
    for row in together.collectives():
        if row["name"].startswith("bucket ") and row["step"]:
            found.setdefault(row["step"], []).append(row["bytes"])
    return found


def reduced(timeline: Timeline) -> dict[str, list[int]]:
    """Return the bytes that one rank reduced in each step's backward, smallest first."""
    comm = (timeline.kind == Kind.COMMUNICATION) & (timeline.phase == Phase.BACKWARD)
    return {
        name: sorted(
            timeline.collectives[i].bytes for i in timeline.collective[comm & (timeline.step == step)].tolist()
        )
        for step, name in enumerate(timeline.windows.names)
    }


def overlap(timeline: Timeline, step: int) -> tuple[int, int, int]:
    """Return the start of DDP's overlap span, its end in the trace, and the latest possible end."""
    comm = (timeline.step == step) & (timeline.kind == Kind.COMMUNICATION) & (timeline.phase == Phase.BACKWARD)
    launch = timeline.launch_ns[comm]
    copies = np.array(["copy_bucket_to_grad" in name for name in timeline.names], np.bool_)[timeline.name]
    return int(launch.min()), int(launch.max()), int(timeline.start_ns[copies & (timeline.step == step)].min())


@pytest.mark.parametrize("name", ["ddp_cpu_2ranks", "ddp_4mb_cpu_2ranks"])
def test_committed_runs_agree_with_ddps_data(name: str) -> None:
    """Bytes of every bucket in every step agree exactly, overlap within 25 %: DDP timed an earlier step."""
    run = product.open(TRACES / name)
    timeline = run.timelines[0]
    spans = [overlap(timeline, step) for step in range(len(timeline.windows))]
    ours = float(np.median([end - start for start, end, _ in spans]))

    assert buckets(run) == {step: sizes(run) for step in timeline.windows.names}
    assert ours == pytest.approx(run.metadata["ddp"]["backward_compute_comm_overlap_time"], rel=0.25)


@pytest.mark.slow
@pytest.mark.spawn
def test_a_recorded_run_agrees_with_ddps_data_in_the_very_step_that_ddp_timed() -> None:
    """Bytes agree; DDP's span begins just before the first launch and ends between the last and the first copy."""
    training = ["--model", "small", "--batch-size", "256", "--bucket-cap-mb", "2"]
    schedule = ["--steps", "3", "--warmup", "3", "--wait", "4"]  # steps 7 to 9: DDP reports the data of the ninth
    dptrace("record", "--mode", "ddp", "--gpus", "2", *training, *schedule, "-o", "agrees", cwd=scratch())
    run = product.open(scratch() / "agrees")
    timeline, data = run.timelines[0], run.metadata["ddp"]
    began = data["backward_comm_time_start"]
    step = int(np.searchsorted(timeline.windows.bounds, began, side="right")) - 1
    start, end, latest = overlap(timeline, step)

    assert 0 <= step < 3
    assert len(sizes(run)) > 1
    for rank in run.timelines:
        assert reduced(rank) == {name: sorted(sizes(run)) for name in rank.windows.names}
    ended = began + data["backward_compute_comm_overlap_time"]
    assert began - CLOCKS_NS < start < began + PAUSE_NS
    assert end - CLOCKS_NS <= ended <= latest + CLOCKS_NS

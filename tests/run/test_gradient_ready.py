"""When DDP's buckets were ready, and how long their transfers took."""

from __future__ import annotations

import random

import numpy as np
import pytest
from msgspec.structs import replace

from dptrace.load.open import open_run
from dptrace.run.cross_rank import analyze_cross_rank
from dptrace.run.gradient_ready import exclusive_ns, gradient_transfers, ready_before_last, ready_ns
from dptrace.timeline.model import UNKNOWN, Kind, Phase, Timeline
from tests.support.builders import TimelineBuilder
from tests.support.rank_cases import rank, reduce
from tests.support.real_traces import needs_real_traces, real

TRACE = "traces/ddp_4mb_cpu_2ranks"


@pytest.mark.parametrize("seed", range(20))
def test_what_runs_at_once_shares_the_time(seed: int) -> None:
    """Checked by counting every nanosecond: the parts add up to the time in which any collective ran."""
    draw = random.Random(seed)
    start = np.array([draw.randrange(60) for _ in range(draw.randint(1, 7))], np.int64)
    end = start + np.array([draw.randint(0, 30) for _ in start], np.int64)
    plainly = np.zeros(len(start))
    for at in range(100):
        running = (start <= at) & (at < end)
        plainly += running / max(running.sum(), 1)

    assert exclusive_ns(start, end) == pytest.approx(plainly)


def launched(*calls: tuple[int, int, Kind, int]) -> Timeline:
    """Build a GPU's timeline from tuples of start, end, kind and launch."""
    build = TimelineBuilder(0, bounds=(0, 1000))
    for start, end, kind, _ in sorted(calls):
        build.all_reduce(start, end) if kind == Kind.COMMUNICATION else build.compute(start, end, Phase.BACKWARD)
    return replace(build.build(), launch_ns=np.array([call[3] for call in sorted(calls)], np.int64))


def test_a_bucket_is_ready_when_the_compute_before_it_has_ended() -> None:
    """On a GPU, launches run ahead, so neither the launch nor a free link shows when the data was ready."""
    compute, comm = Kind.COMPUTE, Kind.COMMUNICATION
    timeline = launched((10, 50, compute, 1), (50, 80, compute, 3), (50, 70, comm, 2), (90, 120, comm, 4))

    assert ready_ns(timeline).tolist() == [50, 80]


def test_without_launches_the_start_is_all_that_is_known() -> None:
    """As in a trace whose recording started between the launch and the kernel."""
    timeline = launched((10, 50, Kind.COMPUTE, 1), (60, 90, Kind.COMMUNICATION, UNKNOWN))

    assert ready_ns(timeline).tolist() == [60]


@needs_real_traces
def test_on_a_real_gpu_free_links_begin_when_the_bucket_is_ready() -> None:
    """Two A100s: no all-reduce had to wait for another, so each started within 30 µs after its bucket was ready."""
    timeline = open_run([real("ddp_a100_rank0of2")]).timelines[0]
    comm = timeline.kind == Kind.COMMUNICATION
    reduces = np.array([timeline.collectives[i].kind == "all_reduce" for i in timeline.collective[comm]])
    late = (timeline.start_ns[comm] - ready_ns(timeline))[reduces]
    ahead = (timeline.start_ns[comm] - timeline.launch_ns[comm])[reduces]

    assert late.max() < 30_000
    assert late.min() >= 0
    assert ahead.max() > 400_000


def test_buckets_become_ready_one_after_the_other_until_backward_ends() -> None:
    """In the recording with three buckets, the last is at 0, as in every run, and the others are before it."""
    cross_rank = open_run([TRACE]).cross_rank
    ready = ready_before_last(cross_rank)

    assert len(ready) == 3
    assert ready[-1] == 0
    assert -0.2 < ready[0] < ready[1] < 0


def test_without_buckets_nothing_is_known_of_them() -> None:
    """The all-reduces of another trainer have sizes and times, but no bucket."""
    ranks = [rank(number, [reduce(0, 100_000), reduce(1, 300_000)]) for number in (0, 1)]

    assert ready_before_last(analyze_cross_rank(ranks, 2, {}, True)) == ()


def test_what_was_sent_is_reported_with_its_own_time() -> None:
    """A transfer never takes longer than the shortest of its ranks' durations; all transfers of the run are there."""
    cross_rank = open_run([TRACE]).cross_rank
    found = gradient_transfers(cross_rank)

    assert {size for size, _ in found} == {10512424, 16785408, 6430720}
    assert len(found) == 12
    for (_, seconds), transfer in zip(found, cross_rank.timing.transfer_ns.tolist(), strict=True):
        assert 0 < seconds <= transfer / 1e9
    assert gradient_transfers(analyze_cross_rank([rank(0, [])], 1, {}, True)) == ()

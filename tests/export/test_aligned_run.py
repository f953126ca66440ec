"""Clocks are corrected where their offset is known, and members of a collective are linked."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from msgspec.structs import replace

from dptrace.analysis.cross_rank.clocks.estimate import estimate
from dptrace.analysis.cross_rank.transfers import timing
from dptrace.analysis.matching.match import match
from dptrace.core.intervals import Int64
from dptrace.export.aligned_run import AlignedRun, Shift, align_run, members_of, shifts_of, without_alignment
from dptrace.run.run import Run
from tests.support.builders import TimelineBuilder, two_rank_timelines

SECOND = 1_000_000_000
AS_RECORDED = "clocks as recorded: no offset exceeds its uncertainty"


@dataclass
class FakeClocks:
    """Clocks with known offsets in the middle of the first second, and known drifts."""

    by_ns: tuple[int, ...]
    uncertainty: tuple[int, ...]
    drift: tuple[float, ...] = (0.0, 0.0, 0.0)
    reference: Int64 = field(default_factory=lambda: np.zeros(3, np.int32))

    @property
    def uncertainty_ns(self) -> Int64:
        return np.array(self.uncertainty, np.int64)

    def align(self, device: int, times: Int64) -> Int64:
        drifted = np.rint(self.drift[device] * (times - SECOND // 2)).astype(np.int64)
        moved: Int64 = times + self.by_ns[device] + drifted
        return moved


def ranks(count: int) -> Run:
    build = (TimelineBuilder(rank, bounds=(0, SECOND)).compute(0, SECOND) for rank in range(count))
    return Run("made", tuple(each.build() for each in build))


def test_a_clock_is_moved_by_more_than_its_uncertainty_only() -> None:
    """A correction smaller than its uncertainty is not applied."""
    shifts = shifts_of(ranks(3), FakeClocks((0, -412_000, 9_000), (0, 9_000, 9_000)))  # type: ignore[arg-type]

    assert [0, -412_000, 0] == [int(shift(np.array([0], np.int64))[0]) for shift in shifts]
    assert "rank 1 by −412 µs ± 9.00 µs" == str(shifts[1])
    assert [True, False, True] == [shift.move is None for shift in shifts]


def test_a_small_drift_leaves_lengths_as_they_are() -> None:
    """A drift within the uncertainty only shifts; a larger one moves early and late times differently, in order."""
    clocks = FakeClocks((50_000, 50_000, 0), (9_000, 9_000, 9_000), (8e-6, 50e-6, 50e-6))
    times = np.array([0, SECOND // 2, SECOND], np.int64)

    steady, drifting, around = (shift(times) - times for shift in shifts_of(ranks(3), clocks))  # type: ignore[arg-type]

    assert [50_000] * 3 == steady.tolist()
    assert [25_000, 50_000, 75_000] == drifting.tolist()
    assert [-25_000, 0, 25_000] == around.tolist()


def test_a_timeline_without_times_stays() -> None:
    """A GPU that recorded nothing has nothing to move."""
    run = Run("made", (TimelineBuilder(0, bounds=()).build(),))

    assert shifts_of(run, FakeClocks((5,), (1,)))[0].move is None  # type: ignore[arg-type]


def test_members_know_each_other_and_their_share() -> None:
    """A collective has one number on both ranks, with each rank's own wait; other intervals have none."""
    run = Run("made", two_rank_timelines())
    matches = match(run.devices)
    transfers = timing(matches, estimate(matches, run.devices))

    for members, wait in zip(members_of(run, matches, transfers), (0, 1_000), strict=True):
        assert [1, 2] == members.instance.tolist()
        assert [wait] * 2 == members.wait_ns.tolist()
        assert [30_000] * 2 == members.transfer_ns.tolist()
        assert [round(4096 / 30_000, 6)] * 2 == members.busbw_gbps.tolist()
        places = members.row_of_interval(len(run.timelines[0]))
        assert [0, 1] == places[members.interval].tolist()
        assert {0, 1, 2} == set(places.tolist())


def test_one_without_a_counterpart_is_alone() -> None:
    """A collective that only one rank has is linked to nothing."""
    alone = TimelineBuilder(1).compute(0, 9).build()
    run = Run("made", (two_rank_timelines()[0], alone))
    matches = match(run.devices)
    members = members_of(run, matches, timing(matches, estimate(matches, run.devices)))[0]

    assert not np.any(members.instance)
    assert {-1} == set(members.wait_ns.tolist())


def test_without_a_rank_wait_and_transfer_are_unknown() -> None:
    """When a rank of the group is missing, the others may all have waited for it; they are still linked."""
    timelines = two_rank_timelines()
    known = [tuple(replace(each, group_size=3) for each in timeline.collectives) for timeline in timelines]
    run = Run(
        "made",
        tuple(replace(timeline, collectives=own) for timeline, own in zip(timelines, known, strict=True)),
        world_size=3,
    )

    for members in align_run(run, align=True).members:
        assert (members.instance > 0).all()
        assert {-1} == {*members.wait_ns.tolist(), *members.transfer_ns.tolist(), *members.busbw_gbps.tolist()}


def test_joining_moves_a_clock_that_is_off() -> None:
    """A rank whose clock is 5 ms ahead is moved back by it, unless times are to stay as recorded."""
    steady = [TimelineBuilder(rank, bounds=(0, 60 * 10**6)) for rank in range(2)]
    for k in range(20):
        for rank, build in enumerate(steady):
            begin = 10**6 * k + rank * (k % 3) * 10_000
            build.all_reduce(begin + rank * 5_000_000, 10**6 * k + 500_000 + rank * 5_000_000)
    run = Run("made", tuple(build.build() for build in steady))

    aligned, raw = align_run(run, align=True), align_run(run, align=False)

    assert [0, -5_000_000] == [int(shift(np.zeros(1, np.int64))[0]) for shift in aligned.shifts]
    assert aligned.clock_summary.startswith("clocks aligned: rank 1 by −5.00 ms ± 1.00 µs")
    assert [None, None] == [shift.move for shift in raw.shifts]
    assert "no offset between ranks was corrected" in raw.clock_summary
    for one, other in zip(aligned.members, raw.members, strict=True):
        assert one.wait_ns.tolist() == other.wait_ns.tolist()
        assert list(range(1, 21)) == one.instance.tolist()


def test_one_rank_has_nothing_to_be_joined_with() -> None:
    """A single GPU is left alone."""
    assert (
        "no offset between ranks was corrected"
        in align_run(Run("made", two_rank_timelines()[:1]), align=True).clock_summary
    )


@pytest.mark.parametrize(
    ("aligned_run", "summary"),
    [
        (
            without_alignment(Run("made", two_rank_timelines())),
            "clocks as recorded: no offset between ranks was corrected",
        ),
        (AlignedRun((Shift(0), Shift(1, 5, 9)), (), True), AS_RECORDED),
        (
            AlignedRun((Shift(0), Shift(1, 5, 9), Shift(2, 12, 9, np.abs), Shift(2, 12, 9, np.abs)), (), True),
            "clocks aligned: rank 2 by +12 ns ± 9 ns",
        ),
        (
            AlignedRun(tuple(Shift(k, -2_500_000, 12_345, np.abs) for k in range(12)), (), True),
            "clocks aligned: " + ", ".join(f"rank {k} by −2.50 ms ± 12.3 µs" for k in range(8)) + " and 4 more",
        ),
        (
            AlignedRun((Shift(0), Shift(1)), (), True, unconnected_ranks=(1,)),
            f"{AS_RECORDED}; unknown offset, no shared collective: rank 1",
        ),
    ],
)
def test_one_line_summarizes_the_clocks(aligned_run: AlignedRun, summary: str) -> None:
    """It says which clocks were moved, by how much and with what uncertainty."""
    assert summary == aligned_run.clock_summary

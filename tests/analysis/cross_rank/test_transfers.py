"""Wait, transfer, lateness and bandwidth, and the distribution of transfer times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dptrace.analysis.cross_rank import transfers
from dptrace.analysis.cross_rank.clocks import UNKNOWN_NS, estimate
from dptrace.analysis.cross_rank.transfers import (
    AlphaBeta,
    ExposedWait,
    Latency,
    Timing,
    alpha_beta,
    exposed_waits,
    latencies,
    merge_groups,
    sum_of_waits,
    timing,
    waits_by_rank,
    with_phase_in_name,
)
from dptrace.analysis.matching.match import Matches, match
from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of
from dptrace.core.columns import same
from dptrace.model.collectives import bus_factor
from dptrace.run.run import Run
from dptrace.timeline.model import Collective, Phase
from tests.support.builders import TimelineBuilder
from tests.support.rank_cases import Call, real_ranks, reduce, shifted
from tests.support.rank_cases import rank as one_rank
from tests.support.real_traces import needs_real_traces

MS = 1_000_000


def timing_of(*devices: object) -> tuple[Matches, Timing]:
    matches = match(devices)  # type: ignore[arg-type]
    return matches, timing(matches, estimate(matches, devices))  # type: ignore[arg-type]


def plain(length: int = 20_000, **about: object) -> list[Call]:
    gaps = np.random.default_rng(3).integers(400_000, 900_000, 30)
    return [reduce(0, end, length=length, **about) for end in np.cumsum(gaps).tolist()]  # type: ignore[arg-type]


def known_lateness(figures: Timing, member: int) -> int | None:
    return int(figures.late_ns[member]) if figures.late_known[member] else None


def test_transfer_is_the_shortest_and_the_rest_is_waiting() -> None:
    """Rank 1 arrives 6 ms late at one collective: the others wait 6 ms, whatever their clocks show."""
    others = plain()
    step, _, end, what = others[10]
    late = [*others[:10], (step, end - 20_000, end, what), *others[11:]]
    early = [*others[:10], (step, end - 20_000 - 300_000, end, what), *others[11:]]

    for ahead in (0, 40 * MS):
        matches, figures = timing_of(one_rank(0, early), shifted(one_rank(1, late), ahead), one_rank(2, early))
        here = slice(int(matches.first[10]), int(matches.first[11]))
        assert 20_000 == figures.transfer_ns[10]
        assert [300_000, 0, 300_000] == figures.wait_ns[here].tolist()
        assert [0, 300_000, 0] == pytest.approx(figures.late_ns[here].tolist(), abs=1_000)
        assert 1 == figures.last[10]
        assert pytest.approx(300_000, abs=1_000) == known_lateness(figures, int(matches.first[10]) + 1)
        assert -1 == figures.last[11]
        assert known_lateness(figures, int(matches.first[11]) + 1) in (None, 0)


def test_bandwidth_is_that_of_nccl_tests() -> None:
    """4 MB in 1 ms on four ranks: 4 GB/s, times the bus factor of the kind."""
    factors = {"all_reduce": 1.5, "broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0}
    factors |= dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), 0.75)
    for kind, factor in factors.items():
        call = (0, 0, MS, Collective(kind, 4_000_000, "Float", "0", 4))
        _, figures = timing_of(*(one_rank(number, [call]) for number in range(4)))
        assert factor == bus_factor(kind, 4)
        assert (4e9, 4e9 * factor) == pytest.approx((figures.algbw[0], figures.busbw[0]))


def test_with_a_rank_missing_nothing_is_known() -> None:
    """All may have waited for the missing rank, however long."""
    _, figures = timing_of(one_rank(0, plain(group_size=3)), one_rank(1, plain(group_size=3)))

    assert {UNKNOWN_NS} == {*figures.transfer_ns.tolist(), *figures.wait_ns.tolist()}
    assert np.isnan(figures.algbw).all()
    assert np.isnan(figures.busbw).all()
    assert {-1} == set(figures.last.tolist())
    assert not figures.late_known.any()


def test_who_is_last_at_a_broadcast_is_known_by_its_start() -> None:
    """The root leaves when it has sent, so durations say nothing; clocks compared by all-reduces do."""
    cast = Collective("broadcast", 1_000, "Float", "0")
    root, last = (0, 30 * MS, 30 * MS + 10_000, cast), (0, 32 * MS, 32 * MS + 20_000, cast)

    matches, figures = timing_of(one_rank(0, [*plain(), root]), one_rank(1, [*plain(), last]))

    at = matches.kind.tolist().index("broadcast")
    assert 1 == figures.last[at]
    assert 2 * MS == known_lateness(figures, int(matches.first[at]) + 1)


def _message(kind: str, start: int, end: int, peer: int) -> Call:
    return 0, start * MS, end * MS, Collective(kind, 1_000, "Float", "pp", 2, peer=peer)


def test_each_side_of_a_message_waits_until_the_other_begins() -> None:
    """A receive waits for its send, and a send for its receive, but not until the host asks whether it is done."""
    for sent, received, waits in (
        ((50, 55), (20, 60), (0, 30)),
        ((20, 60), (50, 55), (30, 0)),
        ((20, 90), (25, 30), (5, 0)),
    ):
        devices = (
            one_rank(0, [*plain(), _message("send", *sent, peer=1)]),
            one_rank(1, [*plain(), _message("recv", *received, peer=0)]),
        )
        matches, figures = timing_of(*devices)
        at = int(matches.first[matches.kind.tolist().index("send_recv")])
        assert [ms * MS for ms in waits] == figures.wait_ns[at : at + 2].tolist()
        calls = [found.calls for found in waits_of(*devices)]
        assert [ms * MS for ms in waits] == [int(own.wait_ns[-1]) for own in calls]
        # Its other side may wait itself: no rank is named for the step.
        assert {-1} == {rank for found in waits_of(*devices) for rank in found.waits_for.tolist()}


# Latency and bandwidth fitted to the collectives of a run.


SIZES = [1_000, 10_000, 100_000, 1_000_000, 10_000_000]


def fitted(calls: list[Call], world_size: int = 2) -> tuple[AlphaBeta, ...]:
    run = [one_rank(number, calls) for number in range(2)]
    matches = match(run, world_size)
    return alpha_beta(matches, timing(matches, estimate(matches, run)))


def calls(lengths: dict[int, list[int]]) -> list[Call]:
    flat = [(size, length) for size, several in lengths.items() for length in several]
    return [reduce(0, (i + 1) * 10 * MS, size, length, group="") for i, (size, length) in enumerate(flat)]


def test_a_line_is_found_again() -> None:
    """20 µs and 100 GB/s, from sizes over four decades, despite one slow instance of each size."""
    (fit,) = fitted(calls({size: [20_000 + size // 100] * 4 + [900_000] for size in SIZES}))

    assert fit.alpha_s is not None
    assert fit.beta_s_per_byte is not None
    assert fit.crossover_bytes is not None
    assert 20e-6 == pytest.approx(fit.alpha_s, rel=0.01)
    assert 1e-11 == pytest.approx(fit.beta_s_per_byte, rel=0.01)
    assert 2e6 == pytest.approx(fit.crossover_bytes, rel=0.02)
    assert 30e-6 == pytest.approx(fit.seconds(1_000_000), rel=0.02)
    assert (25, 5, 2, "") == (fit.count, fit.sizes, fit.ranks, fit.reason)


def test_without_enough_there_is_no_fit_but_a_reason() -> None:
    """One size, similar sizes, unknown sizes, missing ranks."""
    for lengths, world_size, reason in (
        ({1_000: [10_000] * 9}, 2, "factor of two"),
        ({1_000: [10_000], 2_000: [11_000]}, 2, "factor of two"),
        ({0: [10_000] * 9}, 2, "known bytes"),
        ({1_000: [10_000], 9_000: [12_000]}, 3, "all its ranks"),
    ):
        (fit,) = fitted(calls(lengths), world_size)
        assert (None, None, None) == (fit.alpha_s, fit.beta_s_per_byte, fit.crossover_bytes)
        assert reason in fit.reason
        assert fit.seconds(1_000) is None


# Exposed communication that is waiting, against a count of every nanosecond.


_KINDS = {"all_reduce": True, "all_gather": True, "broadcast": False}
"""Kinds in the random jobs, and whether they synchronize the ranks."""
_END = 90


@dataclass(frozen=True)
class Job:
    """A random job: its collectives, and each rank's compute and steps."""

    calls: tuple[tuple[str, dict[int, tuple[int, int]]], ...]
    """The kind of each collective, and when each recorded rank is in it."""
    compute: tuple[tuple[tuple[int, int], ...], ...]
    bounds: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> int:
        return len(self.compute)

    def devices(self) -> tuple[DeviceFigures, ...]:
        builders = [TimelineBuilder(rank, bounds=self.bounds[rank]) for rank in range(self.ranks)]
        for number, (kind, spans) in enumerate(self.calls):
            # Different bytes make the calls of different collectives impossible to confuse.
            what = Collective(kind, 64 * (number + 1), "Float", "0", self.ranks, seq=number)
            for rank, (start, end) in spans.items():
                builders[rank].collective(start, end, what, lane=20 + number)
        for builder, computed in zip(builders, self.compute, strict=True):
            for start, end in computed:
                builder.compute(start, end)
        return tuple(figures_of(builder.build()) for builder in builders)


@st.composite
def jobs(draw: st.DrawFn, complete: bool = False) -> Job:
    ranks = draw(st.integers(2, 4))
    calls = list[tuple[str, dict[int, tuple[int, int]]]]()
    for _ in range(draw(st.integers(0, 5))):
        everyone = complete or draw(st.booleans())
        present = range(ranks) if everyone else draw(st.lists(st.integers(0, ranks - 1), min_size=1, unique=True))
        end = draw(st.integers(20, _END - 5))
        spans = {rank: (draw(st.integers(0, end - 1)), end + draw(st.integers(0, 4))) for rank in present}
        calls.append((draw(st.sampled_from(sorted(_KINDS))), spans))
    time = st.integers(0, _END)
    span = st.tuples(time, time).filter(lambda pair: pair[0] < pair[1])
    compute = tuple(tuple(draw(st.lists(span, max_size=3))) for _ in range(ranks))
    bounds = tuple((5, draw(st.integers(10, _END - 10)), _END) for _ in range(ranks))
    return Job(tuple(calls), compute, bounds)


def waits_of(*devices: DeviceFigures) -> tuple[ExposedWait, ...]:
    matches = match(devices)
    clocks = estimate(matches, devices)
    return exposed_waits(matches, timing(matches, clocks), clocks, devices)


def counted(job: Job, rank: int, kind: str | None) -> list[tuple[int, int, bool]]:
    """Walk through a rank's nanoseconds: waiting, unmatched, known, by step; *kind* limits the collectives."""
    own = [(name, spans) for name, spans in job.calls if rank in spans and kind in (None, name)]
    waiting, lacking = set(), set()
    known = [spans for name, spans in own if len(spans) == job.ranks and _KINDS[name]]
    for _, spans in own:
        start, end = spans[rank]
        if spans in known:
            transfer = min(last - first for first, last in spans.values())
            waiting |= set(range(start, end - transfer))
        elif len(spans) < job.ranks:
            lacking |= set(range(start, end))
    computing = {ns for span in job.compute[rank] for ns in range(*span)}
    steps = []
    for low, high in zip(job.bounds[rank], job.bounds[rank][1:], strict=False):
        step = set(range(low, high)) - computing
        wait = len(waiting & step)
        launched = any(low <= spans[rank][0] < high for spans in known)
        steps.append((wait, len((lacking - waiting) & step), launched or wait > 0))
    return steps


@pytest.mark.slow
@given(jobs())
def test_waits_are_those_counted_nanosecond_by_nanosecond(job: Job) -> None:
    """By step, and by kind, of concurrent collectives, some of which lack a rank or do not synchronize."""
    for rank, found in enumerate(waits_of(*job.devices())):
        for kind in (None, *found.by_kind):
            figures = found if kind is None else found.by_kind[kind]
            columns = (figures.wait_ns.tolist(), figures.unmatched_ns.tolist(), figures.known.tolist())
            assert counted(job, rank, kind) == list(zip(*columns, strict=True))
        assert {kind for kind, spans in job.calls if rank in spans} == set(found.by_kind)


def test_ranks_looked_at_together_wait_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of ranks are looked at in batches; calls and steps of two ranks overlap, and one call lacks a rank."""
    first, second = ("all_reduce", {0: (8, 30), 1: (20, 31)}), ("all_reduce", {1: (32, 35)})
    job = Job((first, second), (((5, 9),), ()), ((5, 25, 38), (5, 30, 38)))
    together = waits_of(*job.devices())
    monkeypatch.setattr(transfers, "_AT_ONCE", 1)

    assert [10, 0] == together[0].wait_ns.tolist()
    assert same(together, waits_of(*job.devices()))


@pytest.mark.heavy
@settings(max_examples=40)
@given(jobs(complete=True))
def test_in_a_complete_job_each_call_waits_and_then_transfers(job: Job) -> None:
    """Nothing is unmatched, and a call's exposed wait is at most its wait and its exposed time."""
    devices = job.devices()
    for device, wait in zip(devices, waits_of(*devices), strict=True):
        assert not wait.unmatched_ns.any()
        calls, is_comm = wait.calls, device.timeline.collective >= 0
        lengths = (device.timeline.end_ns - device.timeline.start_ns)[is_comm]
        known = np.array([_KINDS[c.kind] for c in device.timeline.collectives], np.bool_)
        assert known.tolist() == (calls.wait_ns >= 0).tolist() == (calls.exposed_ns >= 0).tolist()
        assert np.all(calls.wait_ns < lengths)
        assert np.all(calls.exposed_ns <= calls.wait_ns)
        assert np.all(calls.exposed_ns[known] <= device.exposed_ns[is_comm][known])


@pytest.mark.slow
@settings(max_examples=40)
@given(jobs(complete=True), st.integers(-(10**9), 10**9))
def test_a_wait_does_not_depend_on_the_clocks(job: Job, ahead_ns: int) -> None:
    """A clock that is ahead shifts a rank's waits and changes none."""
    first, *rest = job.devices()
    timeline = first.timeline
    windows = replace(timeline.windows, bounds=timeline.windows.bounds + ahead_ns)
    moved = replace(timeline, start_ns=timeline.start_ns + ahead_ns, end_ns=timeline.end_ns + ahead_ns, windows=windows)

    for before, after in zip(waits_of(first, *rest), waits_of(figures_of(moved), *rest), strict=True):
        assert before.wait_ns.tolist() == after.wait_ns.tolist()
        assert before.known.tolist() == after.known.tolist()


def _late(rank: int, start: int, device: int | None = None, size: int = 2) -> TimelineBuilder:
    """A rank of two steps that arrives at *start* ms at the all-reduce of the first, which ends at 80 ms."""
    build = TimelineBuilder(rank, device, bounds=(0, 100 * MS, 200 * MS))
    comm = Collective("all_reduce", 4_096, "float", "0", size)
    return build.collective(start * MS, 80 * MS, comm).compute(110 * MS, 150 * MS)


def test_the_wait_ends_when_the_last_rank_arrives() -> None:
    """It has an interval, a rank that it is for, and the step without a collective has none."""
    waiting, last = waits_of(figures_of(_late(0, 20).build()), figures_of(_late(1, 70).build()))

    assert [[20 * MS], [70 * MS]] == [part.tolist() for part in waiting.intervals]
    assert [50 * MS, 0] == waiting.wait_ns.tolist()
    assert {"exposed_wait_ns": 50 * MS, "exposed_unmatched_ns": 0} == waiting.step(0) == waiting.total()
    assert {"exposed_wait_ns": 25 * MS, "exposed_unmatched_ns": 0} == waiting.mean()
    assert {"exposed_wait_ns": None, "exposed_unmatched_ns": 0} == waiting.step(1)
    assert {"exposed_wait_ns": 0, "exposed_unmatched_ns": 0} == last.step(0)
    assert [1, -1] == waiting.waits_for.tolist()
    assert [-1, -1] == last.waits_for.tolist()
    assert ([50 * MS], [50 * MS], [1]) == tuple(
        column.tolist() for column in (waiting.calls.wait_ns, waiting.calls.exposed_ns, waiting.calls.waits_for)
    )


def test_a_rank_on_its_own_does_not_show_how_long_it_waits() -> None:
    """Whether or not the trace tells that its group has two ranks."""
    for size in (0, 2):
        (wait,) = waits_of(figures_of(_late(0, 20, size=size).build()))
        assert {"exposed_wait_ns": None, "exposed_unmatched_ns": 60 * MS} == wait.step(0) == wait.total()
        assert [-1] == wait.calls.wait_ns.tolist() == wait.calls.exposed_ns.tolist()


def test_a_wait_is_for_the_rank_that_keeps_all_others_waiting_longest() -> None:
    """Two ranks that are almost equally late share it, so that none is named."""
    together = waits_of(*(figures_of(_late(rank, start, size=3).build()) for rank, start in enumerate((20, 68, 70))))
    alone = waits_of(*(figures_of(_late(rank, start, size=3).build()) for rank, start in enumerate((20, 22, 70))))

    assert [-1, 2, -1] == [int(wait.waits_for[0]) for wait in together]
    assert [2, 2, -1] == [int(wait.waits_for[0]) for wait in alone]


def _run() -> Run:
    return Run("runs/late", (_late(0, 20).build(), _late(1, 70).build()), world_size=2)


def test_frames_and_json_distinguish_an_unknown_wait_from_none() -> None:
    """<NA> and null, never 0; each collective, too, shows its wait and the rank that caused it."""
    run = _run()
    steps, totals, data = run.steps(), run.totals(), run.to_dict()

    assert ["Int64", "Int64"] == [str(frame["exposed_wait_ns"].dtype) for frame in (steps, totals)]
    assert [False, True] * 2 == steps["exposed_wait_ns"].isna().tolist()
    for frame in (totals, run.collectives(), run.matched_collectives()):
        assert [50 * MS, 0] == frame["exposed_wait_ns"].tolist()
    for frame in (run.collectives(), run.matched_collectives()):
        assert (1, True) == (frame["waits_for"][0], frame["waits_for"].isna()[1])
    first, second = data["ranks"][0]["steps"]
    assert (50 * MS, None) == (first["exposed_wait_ns"], second["exposed_wait_ns"])
    assert 50 * MS == first["comm"]["all_reduce"]["exposed_wait_ns"] == data["ranks"][0]["total"]["exposed_wait_ns"]
    for row in (data["ranks"][0]["collectives"][0], data["collectives"][0]["members"][0]):
        assert (50 * MS, 1) == (row["exposed_wait_ns"], row["waits_for"])
    assert data["collectives"][0]["members"][1]["waits_for"] is None


def test_the_run_waits_for_the_rank_that_causes_most() -> None:
    """One rank for more than half of all exposed waiting; two that share it; nobody without a wait."""
    two, shared = (
        Run("r", tuple(_late(rank, start, size=3).build() for rank, start in enumerate(starts)))
        for starts in ((20, 30, 70), (20, 68, 70))
    )
    none = Run("r", tuple(_late(rank, 20).build() for rank in range(2)))
    runs = (_run(), two, shared, none, _run().select(ranks={0}))

    assert [(1,), (2,), (2, 1), (), (1,)] == [run.cross_rank.waits_for() for run in runs]


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 40), min_size=2, max_size=5), min_size=1, max_size=4), st.data())
def test_waits_are_divided_among_the_ranks_that_have_not_arrived(calls: list[list[int]], data: st.DataObject) -> None:
    """Moment by moment, by definition; what is exposed of a wait is divided like the whole."""
    ranks = max(map(len, calls))
    groups = [(starts, data.draw(st.permutations(range(ranks)))[: len(starts)]) for starts in calls]
    builds = [TimelineBuilder(rank, bounds=(0, 1_000 * MS)).compute(0, 0) for rank in range(ranks)]
    expected = dict.fromkeys(range(ranks), 0.0)
    for number, (starts, members) in enumerate(groups):
        comm = Collective("all_reduce", 64, "float", str(number), len(members), ranks=tuple(members))
        for start, member in zip(starts, members, strict=True):
            builds[member].collective((100 * number + start) * MS, (100 * number + 50) * MS, comm)
        for moment in range(40):
            late = [member for start, member in zip(starts, members, strict=True) if start > moment]
            for member in late:
                expected[member] += (len(members) - len(late)) * MS / len(late)
    across = Run("r", tuple(build.build() for build in builds)).cross_rank

    found = waits_by_rank(across.matches, across.exposed_waits)
    assert {rank: found.get(rank, 0) for rank in expected} == pytest.approx(expected, abs=MS / 1_000)


def test_sums_leave_unknown_spans_out() -> None:
    """They are None only where no wait is known."""
    waits = _run().cross_rank.exposed_waits
    (alone,) = waits_of(figures_of(_late(0, 20).build()))

    assert {"exposed_wait_ns": 50 * MS, "exposed_unmatched_ns": 0} == sum_of_waits(waits)
    assert {"exposed_wait_ns": 50 * MS, "exposed_unmatched_ns": 60 * MS} == sum_of_waits([*waits, alone])
    assert {"exposed_wait_ns": None, "exposed_unmatched_ns": 0} == sum_of_waits([])


@pytest.mark.heavy
@needs_real_traces
def test_all_but_the_straggler_of_four_wait_for_it() -> None:
    """Rank 2 sleeps about a second in each step: that is the others' wait, and the rest transfers in 12 ms."""
    devices = real_ranks("straggler_v100_4ranks")
    waits = waits_of(*devices)

    for rank, (device, wait) in enumerate(zip(devices, waits, strict=True)):
        assert wait.known.all()
        transfer = device.split.figures["exposed_comm_ns"] - wait.wait_ns - wait.unmatched_ns
        assert np.all(transfer < 13 * MS)
        assert np.all((wait.wait_ns == 0) if rank == 2 else (wait.wait_ns > 975 * MS))
        assert [[2] * 3, [-1] * 3][rank == 2] == wait.waits_for.tolist()


# Distribution of the transfer times of comparable collectives.


def latencies_of(latency_calls: list[Call], names: list[str] | None = None, size: int = 2) -> tuple[Latency, ...]:
    run = [one_rank(number, latency_calls) for number in range(2)]
    matches = match(run, size)
    return latencies(matches, timing(matches, estimate(matches, run)), names)


def latency_calls(lengths: list[int], size: int = 4_000, at: int = 0) -> list[Call]:
    return [reduce(0, at + (i + 1) * MS, size, length, group="") for i, length in enumerate(lengths)]


def test_like_collectives_are_put_together() -> None:
    """By size; the longest total transfer time comes first."""
    small, large = latency_calls([10_000, 12_000, 11_000]), latency_calls([90_000, 80_000], 1_000_000, 10 * MS)

    first, second = latencies_of(small + large)

    assert (1_000_000, "all_reduce", [3, 4]) == (first.bytes, first.kind, first.instances.tolist())
    assert [10_000, 12_000, 11_000] == second.transfer_ns.tolist()
    assert [10_000, 11_000, 12_000, 12_000] == [second.quantile(share) for share in (0, 0.5, 0.9, 1)]


def test_a_slow_one_is_flagged() -> None:
    """Far above the median; not if all vary, there are few instances, or the sizes are unknown."""
    steady = [100_000, 101_000, 99_000, 100_500, 99_500]
    assert [False] * 5 + [True] == latencies_of(latency_calls([*steady, 180_000]))[0].slow.tolist()
    assert not latencies_of(latency_calls([*steady, 120_000]))[0].slow.any()
    assert not latencies_of(latency_calls([60_000, 140_000, 100_000, 70_000, 130_000, 180_000]))[0].slow.any()
    assert not latencies_of(latency_calls([*steady[:3], 180_000]))[0].slow.any()
    assert not latencies_of(latency_calls([*steady, 180_000], 0))[0].slow.any()


def test_the_histogram_counts_all() -> None:
    """Bins of equal width from the shortest to the longest; without collectives, or ranks, no distribution."""
    counts, edges = latencies_of(latency_calls([10_000, 20_000, 30_000, 30_000]))[0].histogram(4)

    assert ([1, 0, 1, 2], [10_000, 15_000, 20_000, 25_000, 30_000]) == (counts.tolist(), edges.tolist())
    assert () == latencies_of([], size=3) == latencies_of(latency_calls([20_000] * 3), size=3)


def test_waits_and_bandwidth_are_those_of_the_timing() -> None:
    """Mean wait over instances and ranks, and median bus bandwidth, by brute force; None without bytes."""
    late = [*latency_calls([10_000, 30_000, 20_000])]
    devices = [one_rank(0, late), one_rank(1, [(step, start - 6_000, end, what) for step, start, end, what in late])]
    matches = match(devices, 2)
    times = timing(matches, estimate(matches, devices))
    (found,) = latencies(matches, times)

    assert found.wait_ns == times.wait_ns.mean()
    assert found.busbw == sorted(times.busbw.tolist())[1]
    assert latencies_of(latency_calls([10_000, 30_000], 0))[0].busbw is None


def test_forward_and_backward_of_one_label_are_two() -> None:
    """FSDP gathers a unit in both; unnamed collectives are not separated by phase."""
    devices = [one_rank(number, latency_calls([10_000, 20_000])) for number in range(2)]
    phases = np.array([Phase.FORWARD, Phase.BACKWARD], np.uint8)
    devices = [replace(d, timeline=replace(d.timeline, phase=phases)) for d in devices]
    matches = match(devices, 2)
    times = timing(matches, estimate(matches, devices))

    found = latencies(matches, times, ["FSDP::all_gather (0)"] * 2)
    assert [(Phase.BACKWARD, 20_000), (Phase.FORWARD, 10_000)] == [(f.phase, f.quantile(1)) for f in found]
    assert ["FSDP::all_gather (0), backward", "FSDP::all_gather (0), forward"] == [
        f.name for f in with_phase_in_name(found)
    ]
    assert found[:1] == with_phase_in_name(found[:1])
    assert {-1} == {f.phase for f in latencies(matches, times)}


def test_a_label_whose_sizes_vary_is_one_row_and_so_are_its_layers_summed() -> None:
    """Tokens sent to experts: one row per layer, and one for all layers; nothing is slow among different sizes."""
    sent = [reduce(0, (i + 1) * MS, 4_000 * (i + 1), 10_000 * (i + 1)) for i in range(6)]
    devices = [one_rank(number, sent) for number in range(2)]
    matches = match(devices, 2)
    times = timing(matches, estimate(matches, devices))
    layers = [f"MoE::dispatch ({i % 2}.mlp)" for i in range(6)]
    found = latencies(matches, times, layers)

    assert [3, 3] == [len(latency.instances) for latency in found]
    (row,) = merge_groups(found, matches, times)
    assert ("MoE::dispatch", 6, 14_000) == (row.name, len(row.instances), row.bytes)
    assert not row.slow.any()
    even = latencies(matches, times, [""] * 6)
    assert even == merge_groups(even, matches, times)


def test_groups_of_one_purpose_are_summed() -> None:
    """Each replica has its own group; --all shows them."""
    devices = []
    for number in range(4):
        ranks, length = ((0, 1), 10_000) if number < 2 else ((2, 3), 20_000)
        purpose = Collective("all_reduce", 4_000, "Float", str(ranks), 2, ranks=ranks, description="mesh_inside")
        devices.append(one_rank(number, [(0, MS * i - length, MS * i, purpose) for i in (1, 2, 3)]))
    matches = match(devices, 4)
    times = timing(matches, estimate(matches, devices))
    found = latencies(matches, times)

    assert [3, 3] == [len(latency.instances) for latency in found]
    (row,) = merge_groups(found, matches, times)
    assert (6, "all_reduce") == (len(row.instances), row.kind)

"""Wait, transfer, lateness and bandwidth."""

from __future__ import annotations

import numpy as np
import pytest

from dptrace.analysis.cross_rank.clocks.estimate import UNKNOWN_NS, estimate
from dptrace.analysis.cross_rank.transfers import Timing, timing
from dptrace.analysis.matching.match import Matches, match
from dptrace.model.collectives import bus_factor
from dptrace.timeline.model import Collective
from tests.support.rank_cases import Call, rank, real_ranks, reduce, shifted, without
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
        matches, figures = timing_of(rank(0, early), shifted(rank(1, late), ahead), rank(2, early))
        here = slice(int(matches.first[10]), int(matches.first[11]))
        assert 20_000 == figures.transfer_ns[10]
        assert [300_000, 0, 300_000] == figures.wait_ns[here].tolist()
        assert [0, 300_000, 0] == pytest.approx(figures.late_ns[here].tolist(), abs=1_000)
        assert 1 == figures.last[10]
        assert pytest.approx(300_000, abs=1_000) == known_lateness(figures, int(matches.first[10]) + 1)
        assert -1 == figures.last[11]
        assert known_lateness(figures, int(matches.first[11]) + 1) in (None, 0)


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send_recv", 1.0),
    ],
)
def test_bandwidth_is_that_of_nccl_tests(kind: str, factor: float) -> None:
    """4 MB in 1 ms on four ranks: 4 GB/s, times the bus factor of the kind."""
    assert factor == bus_factor(kind, 4)
    call = (0, 0, MS, Collective(kind, 4_000_000, "Float", "0", 4))
    _, figures = timing_of(*(rank(number, [call]) for number in range(4)))

    assert 4e9 == pytest.approx(figures.algbw[0])
    assert 4e9 * factor == pytest.approx(figures.busbw[0])


def test_unknown_bytes_have_no_bandwidth() -> None:
    """NaN instead of 0."""
    _, figures = timing_of(rank(0, plain(bytes=0)), rank(1, plain(bytes=0)))

    assert np.isnan(figures.busbw).all()


def test_with_a_rank_missing_nothing_is_known() -> None:
    """All may have waited for the missing rank, however long."""
    _, figures = timing_of(rank(0, plain(group_size=3)), rank(1, plain(group_size=3)))

    assert {UNKNOWN_NS} == {*figures.transfer_ns.tolist(), *figures.wait_ns.tolist()}
    assert np.isnan(figures.algbw).all()
    assert np.isnan(figures.busbw).all()
    assert {-1} == set(figures.last.tolist())
    assert not figures.late_known.any()


@pytest.mark.parametrize("kind", ["broadcast", "send_recv"])
def test_where_ranks_do_not_wait_for_each_other_only_transfer_is_known(kind: str) -> None:
    """The root of a broadcast leaves when it has sent: that others take longer is not waiting."""
    what = Collective(kind, 4_000_000, "Float", "0", 2)
    _, figures = timing_of(rank(0, [(0, 0, MS, what)]), rank(1, [(0, 0, 3 * MS, what)]))

    assert [MS] == figures.transfer_ns.tolist()
    assert [UNKNOWN_NS] * 2 == figures.wait_ns.tolist()
    assert 4e9 == pytest.approx(figures.busbw[0])


def test_who_is_last_at_a_broadcast_is_known_by_its_start() -> None:
    """The root leaves when it has sent, so durations say nothing; clocks compared by all-reduces do."""
    cast = Collective("broadcast", 1_000, "Float", "0")
    root, last = (0, 30 * MS, 30 * MS + 10_000, cast), (0, 32 * MS, 32 * MS + 20_000, cast)

    matches, figures = timing_of(rank(0, [*plain(), root]), rank(1, [*plain(), last]))

    at = matches.kind.tolist().index("broadcast")
    assert 1 == figures.last[at]
    assert 2 * MS == known_lateness(figures, int(matches.first[at]) + 1)


@pytest.mark.heavy
@needs_real_traces
def test_eight_ranks_figures_equal_brute_force() -> None:
    """Transfer, waits and busbw of every collective, from each rank's kernels counted from the end."""
    run = real_ranks("sharded_h100_8ranks")
    matches, figures = timing_of(*run)
    kernels = []
    for device in run:
        timeline, rows = device.timeline, []
        for i in range(len(timeline)):
            if timeline.collective[i] >= 0:
                what = timeline.collectives[timeline.collective[i]]
                length = int(timeline.end_ns[i]) - int(timeline.start_ns[i])
                rows.append((what.kind, what.bytes, length))
        kernels.append(rows[-76:])  # recorded by every rank, since all of them stop after the same step

    whole = np.flatnonzero(np.diff(matches.first) == 8).tolist()
    assert 76 == len(whole)
    for nth, at in enumerate(whole):
        kinds = {rows[nth][0] for rows in kernels}
        lengths = [rows[nth][2] for rows in kernels]
        size = max(rows[nth][1] for rows in kernels)
        here = slice(int(matches.first[at]), int(matches.first[at + 1]))
        assert kinds == {str(matches.kind[at])}
        assert min(lengths) == figures.transfer_ns[at]
        assert [length - min(lengths) for length in lengths] == figures.wait_ns[here].tolist()
        if size:
            assert size / (min(lengths) / 1e9) * 7 / 8 == pytest.approx(figures.busbw[at], rel=1e-12)
        else:
            assert np.isnan(figures.busbw[at])


@needs_real_traces
def test_the_straggler_of_four_is_a_second_late_in_each_step() -> None:
    """Rank 2 arrives last at one all-to-all per step; the others' wait equals its lateness within one percent."""
    matches, figures = timing_of(*real_ranks("straggler_v100_4ranks"))

    long = np.flatnonzero(figures.wait_ns > 500 * MS)
    rows = np.unique(matches.instance[long])
    assert [f"ProfilerStep#{k}" for k in (4, 5, 6)] == matches.step[rows].tolist()
    assert [2, 2, 2] == figures.last[rows].tolist()
    for row in rows:
        here = slice(int(matches.first[row]), int(matches.first[row + 1]))
        wait, late = figures.wait_ns[here], figures.late_ns[here]
        assert 980 * MS < late[2] < 1_010 * MS
        assert wait[[0, 1, 3]].tolist() == pytest.approx([late[2]] * 3, rel=0.01)


@needs_real_traces
def test_the_straggler_of_dlrm_is_19_to_28_ms_late() -> None:
    """Rank 2 at four all-to-alls, over all three steps."""
    matches, figures = timing_of(*real_ranks("dlrm_v100_4ranks"))

    late = np.flatnonzero((figures.late_ns > 18.5 * MS) & figures.late_known)
    assert [2] * 4 == matches.device[late].tolist()
    assert {"all_to_all"} == set(matches.kind[matches.instance[late]].tolist())
    assert {"ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"} == set(matches.step[matches.instance[late]].tolist())
    assert (18.8 * MS < figures.late_ns[late]).all()
    assert (figures.late_ns[late] < 28.6 * MS).all()


@pytest.mark.heavy
@needs_real_traces
def test_the_one_of_eight_that_is_waited_for_is_rank_1() -> None:
    """It arrives last more often, and costs the others more, than any other rank."""
    matches, figures = timing_of(*real_ranks("sharded_h100_8ranks"))

    wait = np.add.reduceat(figures.wait_ns, matches.first[:-1])
    cost = [int(wait[figures.last == device].sum()) for device in range(8)]
    assert 1 == int(np.argmax(cost))
    assert cost[1] > 0.85 * sum(cost)


@needs_real_traces
def test_figures_of_what_remains_do_not_change() -> None:
    """One collective of one rank is dropped: only its figures differ, and it is not complete."""
    run = real_ranks("sharded_h100_8ranks")
    matches, figures = timing_of(*run)
    gone = int(matches.index[matches.device == 3][40])
    row = int(matches.instance[(matches.device == 3) & (matches.index == gone)][0])

    fewer, changed = timing_of(*run[:3], without(run[3], gone), *run[4:])

    rest = np.arange(len(matches)) != row
    assert figures.transfer_ns[rest].tolist() == changed.transfer_ns[rest].tolist()
    assert np.array_equal(figures.busbw[rest], changed.busbw[rest], equal_nan=True)
    assert UNKNOWN_NS == changed.transfer_ns[row]
    assert UNKNOWN_NS != figures.transfer_ns[row]
    assert 7 == fewer.first[row + 1] - fewer.first[row]

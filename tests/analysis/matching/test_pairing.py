"""Pairing of calls into instances."""

from __future__ import annotations

import time

import numpy as np
import pytest
from msgspec.structs import replace

from dptrace.analysis.matching.calls import calls_of
from dptrace.analysis.matching.match import match
from dptrace.analysis.matching.pairing import pair
from tests.support.rank_cases import Call, rank, reduce, shifted

MS = 1_000_000
WHOLE_TRACE = ("whole trace",)


def plan(count: int, seed: int = 0) -> list[Call]:
    ends = np.cumsum(np.random.default_rng(seed).integers(300_000, 900_000, count))
    return [reduce(0, end) for end in ends.tolist()]


def test_times_are_brought_to_one_clock() -> None:
    """Calls of one instance have one number and the same aligned end, whatever their clocks show."""
    calls = calls_of([rank(0, plan(30)), shifted(rank(1, plan(30)), 80 * MS), rank(2, plan(30))])

    row, common = pair(calls)

    assert row.reshape(3, 30).tolist() == [row[:30].tolist()] * 3
    assert np.abs(common.reshape(3, 30) - common[:30]).max() <= 1_000


@pytest.mark.parametrize("ppm", [0, 100])
def test_ranks_without_a_step_in_common_are_introduced_by_their_times(ppm: float) -> None:
    """No marks, different starts, a shifted and drifting clock: everything that both ranks recorded is paired."""
    calls = plan(500)
    table = calls_of([rank(0, calls[:400], WHOLE_TRACE), shifted(rank(1, calls[90:], WHOLE_TRACE), -700 * MS, ppm)])

    row, _ = pair(table)

    assert row[90:400].tolist() == row[400:710].tolist()
    assert 500 == len(set(row.tolist()))


def test_two_ranks_that_have_less_are_matched_with_two_that_have_more() -> None:
    """The two pairs share no certain match."""
    calls = plan(60)
    short = [shifted(rank(number, calls[:20] + calls[21:]), 9 * MS) for number in (2, 3)]

    row, _ = pair(calls_of([rank(0, calls), rank(1, calls), *short]))

    assert 60 == len(set(row.tolist()))
    assert np.delete(row[:60], 20).tolist() == row[120:179].tolist() == row[179:].tolist()


def test_what_ended_far_from_all_is_matched_where_nothing_else_can_be() -> None:
    """An all-to-all may end milliseconds apart; between its neighbors there is one open call on each rank."""
    calls = plan(20)
    step, begin, end, what = calls[7]
    odd = [*calls[:7], (step, begin, end + 250_000, what), *calls[8:15], *calls[16:]]

    row, _ = pair(calls_of([rank(0, calls), rank(1, odd), rank(2, calls)]))

    assert np.delete(row[:20], 15).tolist() == row[20:39].tolist()


@pytest.mark.heavy
def test_many_calls_cost_little() -> None:
    """Twice 40,000 calls of one size without marks, one of them missing: under a second of CPU."""
    calls = plan(40_000)
    table = calls_of([rank(0, calls, WHOLE_TRACE), rank(1, calls[:9_000] + calls[9_001:], WHOLE_TRACE)])

    before = time.process_time()
    row, _ = pair(table)

    assert time.process_time() - before < 3
    assert np.delete(row[:40_000], 9_000).tolist() == row[40_000:].tolist()


def test_on_a_cpu_the_order_of_starts_stands_whatever_the_ends_say() -> None:
    """Two concurrent calls on gloo's two threads may end in different orders on different ranks."""
    one = [reduce(0, 5 * MS, length=4 * MS), reduce(0, 3 * MS, length=1 * MS), *_steady()]
    two = [reduce(0, 3 * MS, length=2 * MS), reduce(0, 5 * MS, length=3 * MS), *_steady()]

    matches = match([rank(0, one, on_cpu=True), rank(1, two, on_cpu=True)])

    assert [[i, i] for i in range(len(one))] == sorted(matches.member.tolist())
    assert matches.complete.all()
    assert () == matches.notes


def test_calls_are_in_the_order_of_their_launches() -> None:
    """Not in the order of their starts, if streams of one group overtake each other."""
    calls = [reduce(0, 1 * MS), reduce(0, 2 * MS), *_steady()]
    right, turned = rank(0, calls, on_cpu=True), rank(1, calls, on_cpu=True)
    launched = np.arange(len(calls), dtype=np.int64)
    turned = replace(turned, timeline=replace(turned.timeline, launch_ns=np.array([1, 0, *launched[2:]])))
    right = replace(right, timeline=replace(right.timeline, launch_ns=launched))
    table = pair(calls_of([right, turned]))[0].reshape(2, -1)

    assert table[1].tolist() == [table[0][1], table[0][0], *table[0][2:]]


def _steady() -> list[Call]:
    return [reduce(1, 10 * MS + i * MS, 8_000, 100_000) for i in range(20)]

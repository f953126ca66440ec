"""How long like collectives took."""

from __future__ import annotations

import pytest

from dptrace.ranks.clocks import estimate
from dptrace.ranks.latency import Latency, latencies
from dptrace.ranks.match import match
from dptrace.ranks.timing import timing
from tests.rank_cases import Call, rank, reduce

MS = 1_000_000


def told(calls: list[Call], names: list[str] | None = None, size: int = 2) -> tuple[Latency, ...]:
    run = [rank(number, calls) for number in range(2)]
    matches = match(run, size)
    return latencies(matches, timing(matches, estimate(matches, run)), names)


def calls(lengths: list[int], size: int = 4_000, at: int = 0) -> list[Call]:
    return [reduce(0, at + (i + 1) * MS, size, length, group="") for i, length in enumerate(lengths)]


def test_like_collectives_are_put_together() -> None:
    """By size; those that took longest in all come first."""
    small, large = calls([10_000, 12_000, 11_000]), calls([90_000, 80_000], 1_000_000, 10 * MS)

    first, second = told(small + large)

    assert (1_000_000, "all_reduce", [3, 4]) == (first.bytes, first.kind, first.instances.tolist())
    assert [10_000, 12_000, 11_000] == second.transfer_ns.tolist()
    assert [10_000, 11_000, 12_000, 12_000] == [second.quantile(share) for share in (0, 0.5, 0.9, 1)]


def test_a_slow_one_is_flagged() -> None:
    """Far beyond what is usual and half as long again as the median; not where all vary, few are known, or no sizes."""
    steady = [100_000, 101_000, 99_000, 100_500, 99_500]
    assert [False] * 5 + [True] == told(calls([*steady, 180_000]))[0].slow.tolist()
    assert not told(calls([*steady, 120_000]))[0].slow.any()
    assert not told(calls([60_000, 140_000, 100_000, 70_000, 130_000, 180_000]))[0].slow.any()
    assert not told(calls([*steady[:3], 180_000]))[0].slow.any()
    assert not told(calls([*steady, 180_000], 0))[0].slow.any()


def test_names_tell_apart_what_is_of_one_size() -> None:
    """Two buckets of one size are two distributions."""
    found = told(calls([10_000, 50_000] * 3), ["bucket 0", "bucket 1"] * 3)

    assert ["bucket 1", "bucket 0"] == [latency.name for latency in found]
    assert [50_000] * 3 == found[0].transfer_ns.tolist()


def test_the_histogram_counts_all() -> None:
    """Ranges of one width from the shortest to the longest."""
    counts, edges = told(calls([10_000, 20_000, 30_000, 30_000]))[0].histogram(4)

    assert ([1, 0, 1, 2], [10_000, 15_000, 20_000, 25_000, 30_000]) == (counts.tolist(), edges.tolist())


@pytest.mark.parametrize("given", [[], [20_000] * 3])
def test_what_is_not_known_is_left_out(given: list[int]) -> None:
    """No collectives, or ranks that are not here: no distribution."""
    assert () == told(calls(given), size=3)


def test_waits_and_bandwidth_are_those_of_the_timing() -> None:
    """The mean wait over instances and ranks, and the median bus bandwidth, by a look at each; none without bytes."""
    late = [*calls([10_000, 30_000, 20_000])]
    devices = [rank(0, late), rank(1, [(step, start - 6_000, end, what) for step, start, end, what in late])]
    matches = match(devices, 2)
    times = timing(matches, estimate(matches, devices))
    (found,) = latencies(matches, times)

    assert found.wait_ns == times.wait_ns.mean()
    assert found.busbw == sorted(times.busbw.tolist())[1]
    assert told(calls([10_000, 30_000], 0))[0].busbw is None

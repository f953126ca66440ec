"""Distribution of the transfer times of comparable collectives."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from dptrace.analysis.cross_rank.clocks import estimate
from dptrace.analysis.cross_rank.transfers import Latency, latencies, merge_groups, timing, with_phase_in_name
from dptrace.analysis.matching.match import match
from dptrace.timeline.model import Collective, Phase
from tests.support.rank_cases import Call, rank, reduce

MS = 1_000_000


def latencies_of(calls: list[Call], names: list[str] | None = None, size: int = 2) -> tuple[Latency, ...]:
    run = [rank(number, calls) for number in range(2)]
    matches = match(run, size)
    return latencies(matches, timing(matches, estimate(matches, run)), names)


def calls(lengths: list[int], size: int = 4_000, at: int = 0) -> list[Call]:
    return [reduce(0, at + (i + 1) * MS, size, length, group="") for i, length in enumerate(lengths)]


def test_like_collectives_are_put_together() -> None:
    """By size; the longest total transfer time comes first."""
    small, large = calls([10_000, 12_000, 11_000]), calls([90_000, 80_000], 1_000_000, 10 * MS)

    first, second = latencies_of(small + large)

    assert (1_000_000, "all_reduce", [3, 4]) == (first.bytes, first.kind, first.instances.tolist())
    assert [10_000, 12_000, 11_000] == second.transfer_ns.tolist()
    assert [10_000, 11_000, 12_000, 12_000] == [second.quantile(share) for share in (0, 0.5, 0.9, 1)]


def test_a_slow_one_is_flagged() -> None:
    """Far above the median; not if all vary, there are few instances, or the sizes are unknown."""
    steady = [100_000, 101_000, 99_000, 100_500, 99_500]
    assert [False] * 5 + [True] == latencies_of(calls([*steady, 180_000]))[0].slow.tolist()
    assert not latencies_of(calls([*steady, 120_000]))[0].slow.any()
    assert not latencies_of(calls([60_000, 140_000, 100_000, 70_000, 130_000, 180_000]))[0].slow.any()
    assert not latencies_of(calls([*steady[:3], 180_000]))[0].slow.any()
    assert not latencies_of(calls([*steady, 180_000], 0))[0].slow.any()


def test_the_histogram_counts_all() -> None:
    """Bins of equal width from the shortest to the longest."""
    counts, edges = latencies_of(calls([10_000, 20_000, 30_000, 30_000]))[0].histogram(4)

    assert ([1, 0, 1, 2], [10_000, 15_000, 20_000, 25_000, 30_000]) == (counts.tolist(), edges.tolist())


@pytest.mark.parametrize("given", [[], [20_000] * 3])
def test_what_is_not_known_is_left_out(given: list[int]) -> None:
    """No collectives, or missing ranks: no distribution."""
    assert () == latencies_of(calls(given), size=3)


def test_waits_and_bandwidth_are_those_of_the_timing() -> None:
    """Mean wait over instances and ranks, and median bus bandwidth, by brute force; None without bytes."""
    late = [*calls([10_000, 30_000, 20_000])]
    devices = [rank(0, late), rank(1, [(step, start - 6_000, end, what) for step, start, end, what in late])]
    matches = match(devices, 2)
    times = timing(matches, estimate(matches, devices))
    (found,) = latencies(matches, times)

    assert found.wait_ns == times.wait_ns.mean()
    assert found.busbw == sorted(times.busbw.tolist())[1]
    assert latencies_of(calls([10_000, 30_000], 0))[0].busbw is None


def grouped(end: int, length: int, group: int) -> Call:
    ranks = (0, 1) if group == 0 else (2, 3)
    about = {"group": str(group), "group_size": 2, "ranks": ranks, "description": "mesh_inside"}
    return 0, end - length, end, Collective("all_reduce", 4_000, "Float", **about)  # type: ignore[arg-type]


def test_forward_and_backward_of_one_label_are_two() -> None:
    """FSDP gathers a unit in both; unnamed collectives are not separated by phase."""
    devices = [rank(number, calls([10_000, 20_000])) for number in range(2)]
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
    devices = [rank(number, sent) for number in range(2)]
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
    one = [grouped(MS * (i + 1), 10_000, 0) for i in range(3)]
    two = [grouped(MS * (i + 1), 20_000, 1) for i in range(3)]
    devices = [rank(number, one if number < 2 else two) for number in range(4)]
    matches = match(devices, 4)
    times = timing(matches, estimate(matches, devices))
    found = latencies(matches, times)

    assert [3, 3] == [len(latency.instances) for latency in found]
    (row,) = merge_groups(found, matches, times)
    assert (6, "all_reduce") == (len(row.instances), row.kind)

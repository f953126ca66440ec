"""Clock offsets between ranks, by hand and on real jobs with shifted clocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dptrace.analysis.cross_rank.clocks import (
    UNKNOWN_NS,
    Clocks,
    estimate,
    exclude_misfits,
    shared_clock_devices,
)
from dptrace.analysis.cross_rank.stragglers import stragglers
from dptrace.analysis.cross_rank.transfers import timing
from dptrace.analysis.matching.match import Matches, match
from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of
from dptrace.timeline.model import Collective
from tests.support.builders import TimelineBuilder
from tests.support.rank_cases import JOBS, Call, rank, real_ranks, reduce, shifted
from tests.support.real_traces import needs_real_traces

MS = 1_000_000


def compared(*devices: DeviceFigures) -> tuple[Matches, Clocks]:
    matches = match(devices)
    return matches, estimate(matches, devices)


def ends(count: int = 60, seed: int = 0) -> list[int]:
    found: list[int] = np.cumsum(np.random.default_rng(seed).integers(400_000, 900_000, count)).tolist()
    return found


def plain(number: int, jitter: int = 2_000, **about: object) -> DeviceFigures:
    draw = np.random.default_rng(number + 7)
    return rank(number, [reduce(0, end + int(draw.integers(-jitter, jitter + 1)), **about) for end in ends()])  # type: ignore[arg-type]


def test_clocks_that_agree_are_left_as_they_are() -> None:
    """Below the uncertainty a correction would only add noise; a note says that none is made."""
    _, clocks = compared(plain(0), plain(1))
    times = np.arange(5, dtype=np.int64) * MS

    assert [False, False] == clocks.corrected.tolist()
    assert times is clocks.align(1, times)
    assert "agree within" in clocks.notes[0]
    assert "no time is corrected" in clocks.notes[0]


def test_a_wrong_clock_is_named_and_put_right() -> None:
    """5 ms ahead: the aligned times equal the first rank's."""
    right = plain(1)
    _, clocks = compared(plain(0), shifted(right, 5 * MS))

    assert clocks.corrected[1]
    assert 5 * MS == pytest.approx(int(clocks.offset_ns[1]), abs=int(clocks.uncertainty_ns[1]))
    back = clocks.align(1, shifted(right, 5 * MS).timeline.end_ns)
    assert np.abs(back - right.timeline.end_ns).max() <= clocks.uncertainty_ns[1]
    assert "Rank 1's clock is 5.00 ms ahead of rank 0's (± " in clocks.notes[0]


def test_many_wrong_clocks_are_one_note() -> None:
    """With the two that are farthest off; the table of clocks has all."""
    _, clocks = compared(plain(0), *(shifted(plain(rank), (rank - 6) * 5 * MS) for rank in range(1, 12)))

    assert 1 == len(clocks.notes)
    assert "10 ranks' clocks" in clocks.notes[0]
    assert "rank 1's is 25.0 ms behind rank 0's, rank 11's is 25.0 ms ahead" in clocks.notes[0]


def test_figures_below_the_uncertainty_are_not_reported() -> None:
    """The result is None."""
    _, clocks = compared(plain(0), plain(1))
    least = int(clocks.uncertainty_ns[1])

    assert clocks.resolve(least, 0, 1) is None
    assert clocks.resolve(-least, 1, 0) is None
    assert least + 1 == clocks.resolve(least + 1, 0, 1)
    assert 1 == clocks.resolve(1, 1, 1)


def test_ranks_that_share_nothing_are_not_compared() -> None:
    """Two tensor-parallel pairs without a common group: comparable within a pair, not across; a note says so."""
    _, clocks = compared(*(plain(i, group="tp", group_size=2, ranks=(i // 2 * 2, i // 2 * 2 + 1)) for i in range(4)))

    assert [0, 0, 2, 2] == clocks.reference.tolist()
    assert clocks.resolve(10**9, 1, 2) is None
    assert 10**9 == clocks.resolve(10**9, 2, 3)
    here, there = np.array([0, 1], np.int32), np.array([2, 0], np.int32)
    assert [UNKNOWN_NS, int(clocks.uncertainty_ns[1])] == clocks.between(here, there).tolist()
    assert any("No collective connects rank 2 with rank 0" in note for note in clocks.notes)
    assert not any("look like two runs" in note for note in clocks.notes)


def test_ranks_recorded_on_another_day_look_like_another_run() -> None:
    """Where no collective connects them, and only there: a clock may be off by any time."""
    day = 86_400_000 * MS
    _, joined = compared(plain(0), shifted(plain(1), day))
    _, alone = compared(*(shifted(plain(i, group=f"tp{i}", group_size=1, ranks=(i,)), i * day) for i in (0, 1)))

    assert not any("look like two runs" in note for note in joined.notes)
    assert any("Rank 1 was recorded 1 day" in note and "look like two runs" in note for note in alone.notes)


def test_a_straggler_is_not_taken_for_a_wrong_clock() -> None:
    """Rank 1 starts 30 ms late at every collective; the common ends still reveal the offset."""
    late = [reduce(0, end + 100 * MS * i, length=30_000) for i, end in enumerate(ends())]
    early = [reduce(0, end + 100 * MS * i, length=30 * MS) for i, end in enumerate(ends())]
    matches, clocks = compared(rank(0, early), rank(1, late))

    assert not clocks.corrected.any()
    assert {1} == set(timing(matches, clocks).last.tolist())


@pytest.mark.slow
@needs_real_traces
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("ahead", [500_000, 5 * MS, 500 * MS])
@pytest.mark.parametrize("ppm", [0, 50])
def test_a_real_clock_made_wrong_is_found_and_changes_no_verdict(job: str, ahead: int, ppm: float) -> None:
    """Each rank's clock in turn is shifted and drifts: the error stays within the uncertainties of both estimates."""
    run = real_ranks(job)
    matches, clocks = compared(*run)
    verdicts = timing(matches, clocks).last
    for who in range(len(run)):
        origin = int(run[who].timeline.start_ns[0])
        wrong, found = compared(*(shifted(d, ahead, ppm) if d is run[who] else d for d in run))
        for other in range(1, len(run)) if who == 0 else [who]:
            times = matches.end_ns[matches.device == other]
            truth, shown = clocks.align(other, times), times
            if who == 0:
                truth = truth + ahead + np.rint((truth - origin) * (ppm * 1e-6)).astype(np.int64)
            else:
                shown = times + ahead + np.rint((times - origin) * (ppm * 1e-6)).astype(np.int64)
            error = np.abs(found.align(other, shown) - truth).max()
            assert error <= found.uncertainty_ns[other] + clocks.uncertainty_ns[other]
        last = timing(wrong, found).last
        sure = (last >= 0) & (verdicts >= 0)
        assert verdicts[sure].tolist() == last[sure].tolist()
        assert ppm or verdicts.tolist() == last.tolist()


def test_collectives_that_cannot_be_the_same_are_reported() -> None:
    """No clock explains ends that drift apart by a tenth of the time: the rank is not compared."""
    devices = []
    for number, stretch in ((0, 1.0), (1, 1.1)):
        build = TimelineBuilder(number, bounds=(0, 3_000_000_000))
        for k in range(20):
            at = int((1 + k) * 100_000_000 * stretch)
            build.all_reduce(at, at + 1_000_000)
        devices.append(figures_of(build.build()))
    matches = match(devices, 2)
    clocks = estimate(matches, devices)

    assert [False, True] == clocks.misfit.tolist()
    assert not clocks.corrected.any()
    assert any("rank 1 do not match" in note for note in clocks.notes)
    assert 0 == len(stragglers(matches, devices, clocks))
    assert matches.complete.all()
    assert not exclude_misfits(matches, clocks).complete.any()


def hosts(*named: tuple[int, str]) -> dict[str, object]:
    return {"ranks": [{"rank": rank, "node": node, "host": host} for rank, (node, host) in enumerate(named)]}


def on_cpu(number: int, ends_: list[int], **about: object) -> DeviceFigures:
    return rank(number, [reduce(0, end, **about) for end in ends_], on_cpu=True)  # type: ignore[arg-type]


def test_ranks_on_the_cpus_of_one_machine_have_one_clock() -> None:
    """Regardless of their ends, and even without a connection; GPUs are compared as usual."""
    apart = [end + 40 * MS * (i % 3) for i, end in enumerate(ends())]
    devices = [on_cpu(0, ends()), on_cpu(1, sorted(apart)), on_cpu(2, ends(), group="other")]
    clocks = estimate(match(devices), devices, hosts(*[(0, "here")] * 3))

    assert [0, 0, 0] == clocks.reference.tolist() == clocks.offset_ns.tolist()
    assert 100_000 > clocks.uncertainty_ns.max()
    assert not clocks.misfit.any()
    assert not clocks.corrected.any()
    (note,) = clocks.notes
    assert "share one clock" in note
    gpus = [plain(0), shifted(plain(1), 5 * MS)]
    assert estimate(match(gpus), gpus, hosts((0, "here"), (0, "here"))).corrected[1]


def on_host(number: int, ends_: list[int], host_name: str, length: int = 60 * MS) -> DeviceFigures:
    device = rank(number, [reduce(0, end, length=length) for end in ends_], on_cpu=True)
    return replace(device, timeline=replace(device.timeline, host_name=host_name))


EVEN = [100 * MS * k for k in range(20)]


def test_ends_that_scatter_on_busy_cores_are_no_misfit() -> None:
    """No rank leaves before all have arrived, so the collectives can be the same. The traces name the machine: ranks
    of one share its clock, so that lateness far below the scatter is known; those of another, or of none, do not.
    """
    scattered = [end + 40 * MS * (k * 7 % 11) // 10 for k, end in enumerate(EVEN)]  # up to 40 ms after the first rank
    for names in (("vm", "vm", "vm"), ("vm", "vm", "other"), ("", "", "")):
        devices = [on_host(number, scattered if number else EVEN, name) for number, name in enumerate(names)]
        matches = match(devices)
        clocks = estimate(matches, devices)
        one = [name == "vm" for name in names]
        assert not clocks.misfit.any()
        assert exclude_misfits(matches, clocks).complete.all()
        assert one[1:] == [bool(ns < 100_000) for ns in clocks.uncertainty_ns[1:]]
        assert all(one) == any("All ranks ran on the CPUs of one machine" in note for note in clocks.notes)


@pytest.mark.parametrize("ahead", [5 * MS, 3_600_000 * MS])
def test_machines_with_one_name_and_two_clocks_are_compared(ahead: int) -> None:
    """Virtual machines often have one name. By the times as they are, a rank left before another arrived."""
    devices = [on_host(number, [end + ahead * number for end in ends()], "vm", 50_000) for number in (0, 1)]
    clocks = estimate(match(devices), devices)

    assert ahead == pytest.approx(int(clocks.offset_ns[1]), abs=10_000)
    assert clocks.corrected[1]
    assert not clocks.misfit.any()


@pytest.mark.parametrize("ahead", [-20 * MS, 20 * MS])
def test_a_name_is_no_evidence_against_ends_a_constant_time_apart(ahead: int) -> None:
    """Rank 1 is late by 40 ms each time, so that a clock that is behind lets no rank leave before it has arrived."""
    devices = [on_host(0, EVEN, "vm", 41 * MS), on_host(1, [end + ahead for end in EVEN], "vm", MS)]
    for metadata in ({}, hosts((0, "vm"), (0, "vm"))):
        clocks = estimate(match(devices), devices, metadata)
        assert ahead == pytest.approx(int(clocks.offset_ns[1]), abs=10_000)
        assert clocks.corrected[1]
        assert not clocks.misfit.any()


def test_two_recordings_on_one_machine_are_not_one_job() -> None:
    """On one clock, ends a minute apart are not those of one collective; what the other ranks share stays."""
    devices = [on_cpu(0, ends()), on_cpu(1, ends()), shifted(on_cpu(2, ends()), 60_000 * MS)]
    devices += [on_cpu(number, ends(), group="b", group_size=2) for number in (3, 4)]
    matches = match(devices)
    clocks = estimate(matches, devices, hosts(*[(0, "here")] * 5))
    excluded = exclude_misfits(matches, clocks)

    assert [False, False, True, False, False] == clocks.misfit.tolist()
    assert [0, 0, 2, 0, 0] == clocks.reference.tolist()
    groups = np.array([matches.groups[i].name for i in matches.group])
    assert {"0": False, "b": True} == dict(zip(groups.tolist(), excluded.complete.tolist(), strict=True))
    assert matches.complete.all()


def test_ranks_of_one_machine_share_what_another_machine_s_clock_is_off() -> None:
    """Ranks 2 and 3 are on a second machine; only rank 2 shares collectives with the first."""
    devices = [on_cpu(0, ends()), on_cpu(1, ends(), group="a"), on_cpu(2, ends()), on_cpu(3, ends(), group="b")]
    devices[2] = shifted(devices[2], 5 * MS)
    clocks = estimate(match(devices), devices, hosts((0, "a"), (0, "a"), (1, "b"), (1, "b")))

    assert [0, 0, 0, 0] == clocks.reference.tolist()
    assert [0, 0, 5 * MS, 5 * MS] == pytest.approx(clocks.offset_ns.tolist(), abs=10_000)
    assert "share one clock" in clocks.notes[0]
    assert not any("No collective connects" in note for note in clocks.notes)


# Clocks connected only by messages.


def ring(*ways: tuple[int, int], ranks: int = 2, ahead: int = 0) -> list[DeviceFigures]:
    """Build ranks that exchange ten messages each way; the last rank's clock is ahead.

    A send takes 100 µs; its receive begins earlier and ends with it.
    """
    calls: list[list[Call]] = [[] for _ in range(ranks)]
    for number in range(10):
        for place, (source, target) in enumerate(ways):
            at = number * 5 * MS + place * MS + MS
            sent = Collective("send", 4_000 + number, "float", peer=target)
            received = Collective("recv", 4_000 + number, "float", peer=source)
            calls[source].append((0, at, at + 100_000, sent))
            calls[target].append((0, at - 50_000, at + 110_000, received))
    devices = [rank(number, own) for number, own in enumerate(calls)]
    return [*devices[:-1], shifted(devices[-1], ahead)]


@pytest.mark.parametrize("ahead", [0, 5 * MS, -7 * MS])
def test_messages_there_and_back_bound_a_clock(ahead: int) -> None:
    """Between neighbors, around a ring, and along a chain: the true offset is within the uncertainty."""
    for ways in (((0, 1), (1, 0)), ((0, 1), (1, 2), (2, 0)), ((0, 1), (1, 0), (1, 2), (2, 1))):
        ranks = 1 + max(max(way) for way in ways)
        devices = ring(*ways, ranks=ranks, ahead=ahead)
        clocks = estimate(match(devices, ranks), devices)
        assert [0] * ranks == clocks.reference.tolist()
        assert abs(int(clocks.offset_ns[-1]) - ahead) <= clocks.uncertainty_ns[-1] <= 400_000
        assert bool(ahead) == bool(clocks.corrected[-1])
        assert bool(ahead) == any("from messages between them" in note for note in clocks.notes)


@pytest.mark.parametrize("ahead", [0, 5 * MS, -7 * MS])
def test_a_send_that_waits_bounds_a_clock_by_its_end(ahead: int) -> None:
    """Each side's kernels run for 4 ms until the other is there: their ends are together, their starts are not."""
    there, back = Collective("send", 1, "float", peer=1), Collective("recv", 1, "float", peer=0)
    calls: list[list[Call]] = [[], []]
    for number in range(10):
        source, target = (number % 2, 1 - number % 2)
        end = (number + 1) * 5 * MS
        calls[source].append((0, end - 4 * MS, end, replace(there, peer=target)))
        calls[target].append((0, end - 4 * MS + MS, end + 2_000, replace(back, peer=source)))
    devices = [rank(0, calls[0]), shifted(rank(1, calls[1]), ahead)]
    clocks = estimate(match(devices, 2), devices)

    assert [0, 0] == clocks.reference.tolist()
    assert abs(int(clocks.offset_ns[1]) - ahead) <= clocks.uncertainty_ns[1] <= 25_000


def test_pipelines_that_nothing_connects_have_clocks_of_their_own() -> None:
    """Ranks 0 and 1 are one, 2 and 3 the other: the offset within each is known, between them it is not."""
    devices = ring((0, 1), (1, 0), (2, 3), (3, 2), ranks=4, ahead=5 * MS)
    clocks = estimate(match(devices, 4), devices)

    assert [0, 0, 2, 2] == clocks.reference.tolist()
    assert abs(int(clocks.offset_ns[3]) - 5 * MS) <= clocks.uncertainty_ns[3]
    assert any("No collective connects rank 2 with rank 0" in note for note in clocks.notes)


def test_a_name_is_no_evidence_against_messages_that_arrive_before_they_are_sent() -> None:
    """Else, ranks on the CPUs of one machine need no comparison."""
    for ahead in (0, 1 * MS, -5 * MS):
        devices = on_cpus(ring((0, 1), (1, 0), ahead=ahead))
        clocks = estimate(match(devices, 2), devices, hosts((0, "vm"), (0, "vm")))
        assert [0, 0] == clocks.reference.tolist()
        assert abs(int(clocks.offset_ns[1]) - ahead) <= clocks.uncertainty_ns[1]
        assert bool(ahead) == bool(clocks.corrected[1])


def test_messages_one_way_bound_a_clock_on_gloo_alone() -> None:
    """Its sender waits until the receiver asks for the message; else they bound the offset from one side only."""
    devices = ring((0, 1), ahead=5 * MS)
    clocks, open_one = (estimate(match(those, 2), those) for those in (on_cpus(devices), devices))

    assert [0, 0] == clocks.reference.tolist()
    assert abs(int(clocks.offset_ns[1]) - 5 * MS) <= clocks.uncertainty_ns[1] <= 400_000
    assert [0, 1] == open_one.reference.tolist()
    assert not open_one.corrected.any()
    assert any("No collective connects rank 1" in note for note in open_one.notes)


def on_cpus(devices: list[DeviceFigures]) -> list[DeviceFigures]:
    return [figures_of(replace(one.timeline, device=-1, device_name="CPU")) for one in devices]


# Which ranks share a clock, from run.json and traces.


def test_cpus_of_one_host_share_its_clock() -> None:
    """Rank 2 has a GPU's times; nothing is assumed without run.json."""
    devices = [rank(number, [reduce(0, MS)], on_cpu=number < 2) for number in range(3)]
    infos: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [0, 1, 2]),
        ({"ranks": "?"}, [0, 1, 2]),
        ({"ranks": [{"rank": 0}, {"rank": 1, "host": ""}, 7]}, [0, 1, 2]),
        ({"ranks": [{"rank": i, "host": "a", "node": 0} for i in range(3)]}, [0, 0, 2]),
        ({"ranks": [{"rank": 0, "host": "a", "node": 0}, {"rank": 1, "host": "a", "node": 1}]}, [0, 1, 2]),
    ]
    for info, shared in infos:
        assert shared == shared_clock_devices(devices, info)

"""Clocks connected only by messages."""

from __future__ import annotations

import pytest

from dptrace.analysis.cross_rank.clocks.estimate import estimate
from dptrace.analysis.matching.match import match
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.timeline.model import Collective
from tests.support.rank_cases import Call, rank, shifted

MS = 1_000_000


def ends_of_message(number: int, source: int, target: int, at: int) -> tuple[Call, Call]:
    """Return a send of 100 µs and its receive, which begins earlier and ends with it."""
    sent = Collective("send", 4_000 + number, "float", peer=target)
    received = Collective("recv", 4_000 + number, "float", peer=source)
    return (0, at, at + 100_000, sent), (0, at - 50_000, at + 110_000, received)


def ring(*ways: tuple[int, int], ranks: int = 2, ahead: int = 0) -> list[DeviceFigures]:
    """Build ranks that exchange ten messages each way; the last rank's clock is ahead."""
    calls: list[list[Call]] = [[] for _ in range(ranks)]
    for number in range(10):
        for place, (source, target) in enumerate(ways):
            sent, received = ends_of_message(number, source, target, number * 5 * MS + place * MS + MS)
            calls[source].append(sent)
            calls[target].append(received)
    devices = [rank(number, own) for number, own in enumerate(calls)]
    return [*devices[:-1], shifted(devices[-1], ahead)]


@pytest.mark.parametrize("ahead", [0, 5 * MS, -7 * MS])
@pytest.mark.parametrize(
    ("ways", "ranks"), [(((0, 1), (1, 0)), 2), (((0, 1), (1, 2), (2, 0)), 3), (((0, 1), (1, 0), (1, 2), (2, 1)), 3)]
)
def test_messages_there_and_back_bound_a_clock(ways: tuple[tuple[int, int], ...], ranks: int, ahead: int) -> None:
    """Between neighbors, around a ring, and along a chain: the true offset is within the uncertainty."""
    devices = ring(*ways, ranks=ranks, ahead=ahead)
    clocks = estimate(match(devices, ranks), devices)

    assert [0] * ranks == clocks.reference.tolist()
    assert abs(int(clocks.offset_ns[-1]) - ahead) <= clocks.uncertainty_ns[-1] <= 400_000
    assert bool(ahead) == bool(clocks.corrected[-1])
    assert bool(ahead) == any("from messages between them" in note for note in clocks.notes)


def test_messages_one_way_leave_a_clock_open() -> None:
    """Messages in one direction bound the offset from one side only."""
    devices = ring((0, 1), ahead=5 * MS)
    clocks = estimate(match(devices, 2), devices)

    assert [0, 1] == clocks.reference.tolist()
    assert not clocks.corrected.any()
    assert any("No collective connects rank 1" in note for note in clocks.notes)

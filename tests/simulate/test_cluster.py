"""Operations of ranks that compute and communicate at the same time."""

from __future__ import annotations

import pytest

from dptrace.simulate.cluster import Group
from dptrace.simulate.explanation import Message, Settings
from tests.support.explanations import ONE_GB


def group(ranks: int = 2) -> Group:
    return Group(Settings(ranks, 8e6, ONE_GB, ONE_GB), ("a", "b"))


def test_lanes_run_at_the_same_time_and_operations_wait() -> None:
    """Communication 1 waits for compute 0; compute 2 does not wait for it."""
    made, order = group(), list[str]()
    first = made.add("forward", "F0", "", lambda: order.append("F0"), duration=2)
    made.add("communication", "AR", "", lambda: order.append("AR"), [first], 3)
    made.add("forward", "F1", "", lambda: order.append("F1"))

    steps = made.steps()
    assert [("F0", 0, 2), ("AR", 2, 5), ("F1", 2, 3)] == [(s.work[0].label, s.start, s.end) for s in steps]
    assert ["F0", "AR", "F1"] == order


def test_a_ring_carries_the_share_of_each_rank() -> None:
    """Three ranks gather a quarter of 8 MB: two messages of a third of it each; an all-reduce twice that."""
    made = group(3)
    messages: list[Message] = made.ring("b", "b", 0.25)

    assert {(2, 2e6 * 2 / 3)} == {(message.count, message.bytes) for message in messages}
    assert [(0, 1), (1, 2), (2, 0)] == [(message.source, message.target) for message in messages]
    assert 8e6 / 3 == pytest.approx(made.ring("b", "b", 0.25, turns=2)[0].bytes)

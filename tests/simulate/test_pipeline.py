"""Pipelines: correct gradients, the bubble of the formula, activations in flight."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dptrace.errors import UsageError
from dptrace.simulate import pipeline
from dptrace.simulate.explanation import Explanation, Settings, Work
from dptrace.simulate.pipeline import ORDERS, Action
from tests.support.explanations import ONE_GB, explained

RANKS = pytest.mark.parametrize("ranks", [2, 3, 4, 8])
SCHEDULES = ["gpipe", "1f1b", "interleaved", "zero-bubble"]


def bubble(explanation: Explanation) -> float:
    work = explanation.work
    return 1 - sum(one.end - one.start for one in work) / (explanation.ranks * max(one.end for one in work))


@RANKS
@pytest.mark.parametrize("name", SCHEDULES)
def test_no_rank_does_two_things_at_once(name: str, ranks: int) -> None:
    """The work of a rank lies one after the other, and a stage begins after the one before it has ended."""
    explanation = explained(name, ranks)
    forward: dict[tuple[int, str], Work] = {(one.rank, one.label): one for one in explanation.work}

    for rank in range(ranks):
        mine = sorted((one for one in explanation.work if one.rank == rank), key=lambda one: one.start)
        assert all(one.end <= following.start for one, following in pairwise(mine))
    for (rank, label), one in forward.items():
        if one.kind == "forward" and rank > 0:
            assert forward[(rank - 1, label)].end <= one.start
        if one.kind == "backward" and rank < ranks - 1:
            assert forward[(rank + 1, label)].end <= one.start


@RANKS
def test_the_bubble_is_that_of_the_guide(ranks: int) -> None:
    """Guide "Distributed Training", sections 10.2 to 10.4: (P-1)/(M+P-1), and (P-1)/(M·V+P-1) with V chunks."""
    micro_batches = 2 * ranks
    plain = (ranks - 1) / (micro_batches + ranks - 1)

    assert plain == pytest.approx(bubble(explained("gpipe", ranks)))
    assert plain == pytest.approx(bubble(explained("1f1b", ranks)))
    for chunks in (2, 3):
        expected = (ranks - 1) / (micro_batches * chunks + ranks - 1)
        assert expected == pytest.approx(bubble(explained("interleaved", ranks, chunks=chunks)))
    assert (ranks - 1) / (3 * micro_batches + ranks - 1) == pytest.approx(bubble(explained("zero-bubble", ranks)))


@RANKS
def test_activations_in_flight(ranks: int) -> None:
    """GPipe keeps those of all micro-batches, 1F1B and zero-bubble those of as many as there are ranks."""
    peaks = {name: explained(name, ranks).cost.figures["most_activations"] for name in SCHEDULES}

    assert {"gpipe": 2 * ranks, "1f1b": ranks, "zero-bubble": ranks} == {
        k: peaks[k] for k in peaks if k != "interleaved"
    }
    assert ranks < peaks["interleaved"] < 4 * ranks


@RANKS
def test_schedules_in_a_v(ranks: int) -> None:
    """ZB-V: (P-1)/(6M+P-1), with 2P halves of stages in flight; DualPipe: (P/2-1)/(3M+P/2-1), with P+1 stages."""
    micro_batches = 2 * ranks
    back = explained("zb-v", ranks, micro_batches=micro_batches)
    assert (ranks - 1) / (6 * micro_batches + ranks - 1) == pytest.approx(bubble(back))
    assert 2 * ranks == back.cost.figures["most_activations"]
    if ranks % 2:
        with pytest.raises(UsageError, match="even"):
            explained("dualpipe", ranks)
        return
    both, waits = explained("dualpipe", ranks), ranks / 2 - 1
    assert waits / (3 * micro_batches + waits) == pytest.approx(bubble(both))
    assert ranks + 1 == both.cost.figures["most_activations"]
    for one in (back, both):
        for rank in range(ranks):
            mine = sorted((work for work in one.work if work.rank == rank), key=lambda work: work.start)
            assert all(work.end <= following.start for work, following in pairwise(mine))


def test_every_boundary_carries_an_activation_and_a_gradient() -> None:
    """Guide "Distributed Training", section 10.6: 2·(P-1)·M messages."""
    explanation = explained("1f1b", 4, 1e6, micro_batches=5)

    assert 2 * 3 * 5 == len(explanation.messages)
    assert 2 * 3 * 5 * 1e6 == sum(explanation.cost.sent_bytes)


def test_a_schedule_that_deadlocks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks that each wait for the other."""
    backward_first = [Action("backward", 0), Action("forward", 0)]
    monkeypatch.setitem(ORDERS, "gpipe", lambda rank, ranks, micro_batches, chunks: backward_first)

    with pytest.raises(AssertionError, match="deadlocks"):
        pipeline.simulate("gpipe", Settings(2, 1.0, ONE_GB, ONE_GB, micro_batches=1))


# Orders of schedules, against those of the papers.


@pytest.mark.parametrize(
    ("schedule", "arguments", "expected"),
    [
        # Rank 0 of four: three forwards, then in turn, then three backwards (guide "Distributed Training", 10.3).
        ("1f1b", (0, 4, 5, 1), "F0a F1a F2a F3a B0a F4a B1a B2a B3a B4a"),
        ("1f1b", (3, 4, 3, 1), "F0a B0a F1a B1a F2a B2a"),
        # Megatron's order for two ranks, four micro-batches and two chunks.
        ("interleaved", (0, 2, 4, 2), "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a"),
        # ZB-H1: rank 0 computes weights at once, rank 1 a micro-batch later.
        ("zero-bubble", (0, 2, 3, 1), "F0a F1a B0a W0a F2a B1a W1a B2a W2a"),
        ("zero-bubble", (1, 2, 3, 1), "F0a B0a F1a B1a W0a F2a B2a W1a W2a"),
    ],
)
def test_the_orders_are_those_of_the_papers(schedule: str, arguments: tuple[int, ...], expected: str) -> None:
    """Letters for forward, backward and weights, the micro-batch, and the chunk."""
    order = ORDERS[schedule](*arguments)

    assert expected == " ".join(f"{action.kind[0].upper()}{action.micro}{'ab'[action.chunk]}" for action in order)

"""FSDP."""

from __future__ import annotations

import pytest

from dptrace.errors import UsageError
from dptrace.simulate.parallelism import sharded
from tests.support.explanations import explained


@pytest.mark.parametrize("ranks", range(2, 10))
def test_three_times_the_parameters_travel(ranks: int) -> None:
    """Guide "Distributed Training", section 8.4: 3N, for an all-reduce's 2N."""
    cost = explained("fsdp", ranks, 1e9).cost

    assert (3 * (ranks - 1) / ranks * 1e9,) * ranks == pytest.approx(cost.sent_bytes)
    assert 1.5 == pytest.approx(cost.sent_bytes[0] / explained("ddp-buckets", ranks, 1e9).cost.sent_bytes[0])


def test_no_more_than_two_layers_are_whole() -> None:
    """The one that computes, and the next."""
    explanation = explained("fsdp", 3, layers=6)
    whole = [sum(cell.label == "whole" for cell in step.after[0]) for step in explanation.steps]

    assert 2 == max(whole)
    assert 0 == whole[-1]
    assert 2 == explanation.cost.figures["most_gathered_layers"]


def test_a_layer_is_gathered_before_it_computes_and_scattered_after() -> None:
    """Guide "Distributed Training", section 8.3; all-gathers overlap the compute of the layer before."""
    work = [one for one in explained("fsdp", 2, layers=3).work if one.rank == 0]
    starts: dict[str, list[float]] = {}
    for one in work:
        starts.setdefault(one.label, []).append(one.start)

    for layer in range(3):
        forward_gather, backward_gather = starts[f"AG{layer}"]
        assert (
            forward_gather < starts[f"F{layer}"][0] < backward_gather < starts[f"B{layer}"][0] < starts[f"RS{layer}"][0]
        )
    assert starts["AG1"][0] == starts["F0"][0]


def test_wrong_gradients_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that forgets to update raises an error."""
    monkeypatch.setattr(sharded._Sharded, "update", lambda self: None)

    with pytest.raises(AssertionError):
        explained("fsdp", 2)


def test_layers_have_limits() -> None:
    """At least one."""
    with pytest.raises(UsageError, match="--layers"):
        explained("fsdp", 2, layers=13)

"""The boundaries of regions that are split over ranks: what passes them forward and backward."""

from __future__ import annotations

from threading import Barrier, Thread
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dptrace.trainers.parts.communication.regions import Region, SequenceRegion  # noqa: E402


def on_two_ranks(kind: type[Region], use: Any, inputs: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Call *use* on two ranks, threads of this process, with a region each; return both results."""
    barrier = Barrier(2)
    place: list[Any] = [None, None]

    def exchanged(own: Any, rank: int) -> list[Any]:
        place[rank] = own.detach().clone()
        barrier.wait(10)
        everything = list(place)
        barrier.wait(10)
        return everything

    def rank_of(region: Any) -> int:
        return int(region.rank)

    def sum_up(region: Any, x: Any) -> Any:
        return torch.stack(exchanged(x, rank_of(region))).sum(0)

    def gather(region: Any, x: Any) -> Any:
        return torch.cat(exchanged(x, rank_of(region)), 1)

    def scatter(region: Any, x: Any) -> Any:
        return sum_up(region, x).chunk(2, 1)[region.rank]

    monkeypatch.setattr(Region, "_all_reduce", sum_up)
    monkeypatch.setattr(SequenceRegion, "_gather", gather)
    monkeypatch.setattr(SequenceRegion, "_scatter", scatter)
    results: list[Any] = [None, None]

    def run(rank: int) -> None:
        region = kind.__new__(kind)
        region.rank, region.size, region.label = rank, 2, "a"
        results[rank] = use(region, inputs[rank])

    ranks = [Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(20)
    return results


@pytest.mark.parametrize("kind", [Region, SequenceRegion])
def test_gradients_are_those_of_the_whole(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks with a factor each compute (2 + 3) x; the gradient of x is 5 on both, also with split tokens."""
    sequence = kind is SequenceRegion
    x = torch.arange(4.0).view(1, 4, 1)

    def use(region: Any, factor: float) -> tuple[Any, Any]:
        own = (region._own_tokens(x) if sequence else x).clone().requires_grad_()
        output = region.leave(factor * region.enter(own))
        output.sum().backward()
        return output.detach(), own.grad

    outputs, gradients = zip(*on_two_ranks(kind, use, [2.0, 3.0], monkeypatch), strict=True)
    assert torch.equal(5 * x, torch.cat(outputs, 1) if sequence else outputs[0])
    assert all(torch.equal(gradient, torch.full_like(gradient, 5.0)) for gradient in gradients)


def test_tokens_that_are_spread_and_collected_keep_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks compute the same before and after the split: nothing is counted twice."""
    x = torch.arange(4.0).view(1, 4, 1)

    def use(region: Any, unused: None) -> tuple[Any, Any]:
        own = x.clone().requires_grad_()
        output = region.gather_tokens(region.split_tokens(own))
        (output * x).sum().backward()
        return output.detach(), own.grad

    for output, gradient in on_two_ranks(SequenceRegion, use, [None, None], monkeypatch):
        assert torch.equal(x, output)
        assert torch.equal(x, gradient)

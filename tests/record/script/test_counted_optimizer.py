"""Which optimizer's steps are the steps of a training."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


def _parameter() -> Any:
    return torch.ones(3, requires_grad=True)


def _sgd(*parameters: Any) -> Any:
    return torch.optim.SGD(parameters or [_parameter()], lr=0.1)


def _counted(first: Any) -> Any:
    from dptrace.record.script.counted_optimizer import CountedOptimizer

    return CountedOptimizer(first)


def test_alternating_optimizers_count_once() -> None:
    """A GAN's two optimizers, one step each in a pass."""
    critic, generator = _sgd(), _sgd()
    counted = _counted(critic)

    assert [False, True] * 5 == [counted.ends_step(optimizer) for optimizer in [generator, critic] * 5]
    assert not counted.uneven


@pytest.mark.parametrize("order", ["cccccg", "gccccc"])
def test_optimizers_with_different_rates_are_reported(order: str) -> None:
    """Five steps of the critic for one of the generator: the first of them counts, and the counter knows its doubt."""
    by_name = {"c": _sgd(), "g": _sgd()}
    counted = _counted(by_name[order[0]])
    ends = [counted.ends_step(by_name[name]) for name in (order * 4)[1:]]

    assert 4 * order.count(order[0]) - 1 == sum(ends)
    assert counted.uneven


def test_a_new_optimizer_of_the_same_model_takes_over() -> None:
    """A new one in each epoch counts from its first step, even while its scheduler keeps the old one alive."""
    parameter, kept = _parameter(), []
    counted, ends = None, []
    for _ in range(3):
        kept.append(_sgd(parameter))
        for _ in range(4):
            if counted is None:
                counted = _counted(kept[-1])
            else:
                ends.append(counted.ends_step(kept[-1]))

    assert [True] * 11 == ends


def test_a_new_optimizer_in_each_pass_counts() -> None:
    """Each is gone when the next one steps."""
    parameter = _parameter()
    counted = _counted(_sgd(parameter))

    assert [True] * 5 == [counted.ends_step(_sgd(parameter)) for _ in range(5)]


def test_two_optimizers_that_share_a_parameter_count_once() -> None:
    """An encoder in two losses, each with its optimizer: after the first pass, one of them ends a step."""
    shared = _parameter()
    first, second = _sgd(shared, _parameter()), _sgd(shared, _parameter())
    counted = _counted(first)
    ends = [counted.ends_step(optimizer) for optimizer in [second] + [first, second] * 4]

    assert 4 == sum(ends[1:])


def test_an_optimizer_that_stops_hands_over_in_time() -> None:
    """A second model is trained after the first, and both are kept."""
    first, second = _sgd(), _sgd()
    counted = _counted(first)
    ends = [counted.ends_step(optimizer) for optimizer in [first] * 5 + [second] * 40]

    assert [True] * 5 == ends[:5]
    assert [True] * 15 == ends[-15:]

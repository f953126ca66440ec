"""The mark around an optimizer's closure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, which differ from version to version


def _sgd(parameter: Any) -> Any:
    return torch.optim.SGD([parameter], lr=0.1)


def _lbfgs(parameter: Any) -> Any:
    return torch.optim.LBFGS([parameter], max_iter=2)


@pytest.mark.parametrize("optimizer_of", [_sgd, _lbfgs])
@pytest.mark.parametrize("keyword", [True, False])
def test_each_call_of_a_closure_is_marked_and_returns_its_loss(
    optimizer_of: Callable[[Any], Any], keyword: bool
) -> None:
    """Positional or by name, called once or several times; the step returns what the closure did."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from dptrace.record.script.closures import CLOSURE, mark_closure

    parameter, calls = torch.full((3,), 2.0, requires_grad=True), []
    optimizer = optimizer_of(parameter)

    def closure() -> Any:
        calls.append(1)
        optimizer.zero_grad()
        loss = (parameter**2).sum()
        loss.backward()
        return loss

    handle = register_optimizer_step_pre_hook(mark_closure)
    try:
        with torch.profiler.profile() as profile:
            loss = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
        unprofiled = len(calls)
        optimizer.step(closure)
    finally:
        handle.remove()

    assert 12.0 == float(loss)
    assert unprofiled == sum(event.name == CLOSURE for event in profile.events())
    assert len(calls) > unprofiled > 0


def test_a_step_without_a_closure_stays_as_it_is() -> None:
    """The hook returns nothing, so torch passes on what it had."""
    from dptrace.record.script.closures import mark_closure

    optimizer = _sgd(torch.ones(3, requires_grad=True))
    with torch.profiler.profile():
        assert mark_closure(optimizer, (optimizer,), {}) is None
        assert mark_closure(optimizer, (optimizer, None), {"closure": None}) is None

"""The state of a training: restored bit for bit, or refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dptrace.errors import DptraceError

if TYPE_CHECKING:
    from dptrace.trainers.parts.training_state import TrainingState

torch = pytest.importorskip("torch")


def _state(seed: int, steps: int = 2) -> TrainingState:
    from dptrace.trainers.parts.training_state import TrainingState

    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return TrainingState(model, optimizer, torch.amp.GradScaler("cpu", enabled=True), {"load": torch.full((3,), seed)})


def test_a_restored_training_takes_the_same_next_step() -> None:
    """Parameters, optimizer state and counters are those of the other training, and so is its next step."""
    one, other = _state(1), _state(2)
    other.restore(copy.deepcopy(one.to_dict()), Path("c"))

    assert [1, 1, 1] == other.counters["load"].tolist()
    for state in (one, other):
        state.model(torch.ones(2, 4)).square().sum().backward()
        state.optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))


def test_random_numbers_go_on_where_they_were() -> None:
    """What is drawn after a checkpoint is drawn again after it is restored."""
    state = _state(1)
    content = copy.deepcopy(state.to_dict())
    drawn = torch.rand(3)
    state.restore(copy.deepcopy(content), Path("c"))
    assert torch.equal(drawn, torch.rand(3))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content.pop("model"), "model"),
        (lambda content: content.update(model=[1]), ""),
        (lambda content: content["model"].pop("bias"), "bias"),
        (lambda content: content["model"].update(bias=torch.ones(4)), "bias has another shape"),
        (lambda content: content["model"].update(bias=torch.ones(3).double()), "bias has another shape or number"),
        (lambda content: content["model"].update(bias="x"), ""),
        (lambda content: content.pop("optimizer"), "optimizer"),
        (lambda content: content["optimizer"]["state"].update({7: {}}), "optimizer has other parameters"),
        (lambda content: content["optimizer"]["state"].update({0: 3}), ""),
        (lambda content: content["optimizer"]["state"][1].update(exp_avg=torch.ones(9)), "exp_avg has another shape"),
        (lambda content: content.pop("scaler"), "scaler"),
        (lambda content: content.pop("counters"), "load"),
        (lambda content: content.update(random={}), "cpu"),
        (lambda content: content["random"].update(cpu=torch.ones(2)), ""),
    ],
)
def test_what_does_not_fit_is_refused(change: Any, says: str) -> None:
    """Missing or foreign keys, shapes and types give one sentence that names the checkpoint."""
    content, state = copy.deepcopy(_state(1).to_dict()), _state(2)
    change(content)
    with pytest.raises(DptraceError, match=f"kept/step-5 does not fit this training: .*{says}") as error:
        state.restore(content, Path("kept/step-5"))
    assert "\n" not in str(error.value)

"""The optimizer step: clipped, scaled, and independent of how parameters are split over the ranks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dptrace.errors import DptraceError, UsageError

torch = pytest.importorskip("torch")

from dptrace.record import parse_options  # noqa: E402
from dptrace.trainers.parts.checkpoints import checkpoints_of  # noqa: E402
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper, TrainingState  # noqa: E402

if TYPE_CHECKING:
    from dptrace.record import Options
    from dptrace.trainers.parts.optimizer_wrapper import TrainingState


ANY_GROUP: Any = object()


def options(*arguments: str) -> Options:
    return parse_options("", "single", ["--model", "small", "--optimizer", "sgd", "--lr", "1", *arguments])


def model() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


def moved(*arguments: str, large: float = 1.0) -> Any:
    """Return how far one step moves all parameters, as one vector."""
    net = model()
    before = torch.cat([p.detach().flatten().clone() for p in net.parameters()])
    wrapper = OptimizerWrapper(net, options(*arguments))
    wrapper.backward(large * net(torch.ones(5, 4)).square().sum())
    wrapper.step()
    assert all(p.grad is None for p in net.parameters())
    return torch.cat([p.detach().flatten() for p in net.parameters()]) - before


def test_what_cannot_begin_as_asked_says_what_can(tmp_path: Path) -> None:
    """Existing checkpoints without --resume, --resume without checkpoints, and a folder that cannot be written to."""
    (tmp_path / "step-00000005").write_text("")
    (tmp_path / "file").write_text("")
    for arguments, folder, says in (
        (["--checkpoint-every", "2"], tmp_path, "with --resume; to train from the start, remove the folder"),
        (["--resume"], tmp_path / "none", "leave --resume out"),
        (["--checkpoint-every", "2"], tmp_path / "file" / "x", "no checkpoint can be written there"),
    ):
        with pytest.raises(UsageError, match=says):
            checkpoints_of(options(*arguments, "--checkpoints", str(folder)))
    fresh = options("--checkpoint-every", "2", "--checkpoints", str(tmp_path / "new"))
    assert checkpoints_of(fresh) is not None
    assert checkpoints_of(options()) is None


def test_clipped_gradients_have_the_norm_that_was_asked_for() -> None:
    """With a learning rate of 1 the step is the gradient: of the norm asked for, in the same direction."""
    free, clipped = moved(), moved("--clip-grad", "0.5")

    assert pytest.approx(0.5, rel=1e-4) == float(clipped.norm())
    assert pytest.approx(1.0, abs=1e-5) == float(torch.nn.functional.cosine_similarity(free, clipped, dim=0))
    assert torch.allclose(moved("--clip-grad", "1000"), free)


def test_scaled_gradients_are_unscaled_before_they_are_clipped_and_applied() -> None:
    """float16 scales the gradients while they are computed, and does not change the step; an overflow skips it."""
    assert torch.allclose(moved("--amp", "fp16"), moved(), rtol=1e-5)
    assert torch.allclose(moved("--amp", "fp16", "--clip-grad", "0.5"), moved("--clip-grad", "0.5"), rtol=1e-5)
    assert float(moved("--amp", "fp16", large=float("inf")).abs().max()) == 0


@pytest.mark.parametrize(("copies", "norm"), [(1, 0.5 / 2**0.5), (2, 0.5)])
def test_all_ranks_clip_to_one_norm(copies: int, norm: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks sum the squares of their gradients; what lies on several ranks counts once. Here, a second rank has as
    much as this one: other parameters, or the same."""
    net = model()
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, *_, **__: tensor.mul_(2))
    counts = dict.fromkeys(net.parameters(), copies)
    wrapper = OptimizerWrapper(net, options("--clip-grad", "0.5"), shard_group=ANY_GROUP, replica_counts=counts)
    wrapper.backward(net(torch.ones(5, 4)).square().sum())
    before = torch.cat([p.detach().flatten().clone() for p in net.parameters()])
    wrapper.step()

    step = torch.cat([p.detach().flatten() for p in net.parameters()]) - before
    assert pytest.approx(norm, rel=1e-4) == float(step.norm())


def test_an_overflow_on_another_rank_skips_the_step_here() -> None:
    """A rank that updated alone would hold other parameters than its peers expect."""
    net = model()
    wrapper = OptimizerWrapper(net, options("--amp", "fp16"), shard_group=ANY_GROUP)
    wrapper.backward(net(torch.ones(5, 4)).square().sum())
    before = [p.detach().clone() for p in net.parameters()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "all_reduce", lambda tensor, *_, **__: tensor.zero_())
        wrapper.step()

    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


# The state of a training: restored bit for bit, or refused.


def _state(seed: int, steps: int = 2) -> TrainingState:
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

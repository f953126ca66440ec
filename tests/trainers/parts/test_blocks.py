"""Wrappers around a model's blocks change how it is computed, and not the result."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from dptrace.errors import UsageError

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from dptrace.record import Options


def options(*arguments: str) -> Options:
    from dptrace.record import parse_options

    return parse_options("", "single", ["--model", "gpt-tiny", "--batch-size", "2", *arguments])


def gradients(*arguments: str) -> dict[str, Any]:
    from dptrace.record import World
    from dptrace.trainers.parts.task import build_task

    task = build_task(options(*arguments), World(0, 1, torch.device("cpu")))
    x, y = next(task.batches(1))
    task.loss(task.model(x), y).backward()
    return {name: parameter.grad for name, parameter in task.model.named_parameters()}


@pytest.mark.heavy
def test_checkpointed_activations_give_the_same_gradients() -> None:
    """Bit for bit, for each parameter, and under the same names."""
    plain, again = gradients(), gradients("--checkpoint-activations")

    assert plain.keys() == again.keys()
    assert all(torch.equal(plain[name], again[name]) for name in plain)


@pytest.mark.heavy
def test_checkpointed_blocks_run_forward_twice() -> None:
    """Backward recomputes each block; without checkpointing, forward runs once."""
    from dptrace.record import World
    from dptrace.trainers.parts import gpt
    from dptrace.trainers.parts.task import build_task

    for arguments, times in (((), 1), (("--checkpoint-activations",), 2)):
        calls: list[object] = []
        task = build_task(options(*arguments), World(0, 1, torch.device("cpu")))
        for module in task.model.modules():
            if isinstance(module, gpt.FeedForward):
                module.register_forward_pre_hook(lambda *seen, calls=calls: calls.append(seen))
        x, y = next(task.batches(1))
        task.loss(task.model(x), y).backward()
        assert 4 * times == len(calls)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_lower_precision_comes_near_the_gradients(kind: str) -> None:
    """Parameters and gradients stay float32; their values differ by the rounding of the lower precision."""
    plain, lower = gradients(), gradients("--amp", kind)

    assert all(gradient.dtype == torch.float32 for gradient in lower.values())
    name = "1.mlp.up.weight"
    apart = (plain[name] - lower[name]).norm() / plain[name].norm()
    assert 0 < apart < 0.05


def test_compilation_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install, before torch fails deep inside."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="apt-get install"):
        gradients("--compile")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "small", "--checkpoint-activations"], "no blocks"),
        (["--data", "x"], "resnet18"),
        (["--amp", "bf16", "--dtype", "bfloat16"], "leave --dtype bfloat16 out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], says: str) -> None:
    """Such options are refused, not ignored."""
    with pytest.raises(UsageError, match=says):
        options(*arguments)

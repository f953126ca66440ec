"""What stands around a model's blocks changes how it is computed, and not what."""

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

    work = build_task(options(*arguments), World(0, 1, torch.device("cpu")))
    x, y = next(work.batches(1))
    work.loss(work.model(x), y).backward()
    return {name: parameter.grad for name, parameter in work.model.named_parameters()}


def test_checkpointed_activations_give_the_same_gradients() -> None:
    """To the bit, for each parameter, and under the same names."""
    plain, again = gradients(), gradients("--checkpoint-activations")

    assert plain.keys() == again.keys()
    assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_checkpointed_blocks_run_forward_twice() -> None:
    """Backward computes each block again; without, forward runs once."""
    from dptrace.record import World
    from dptrace.trainers.parts import gpt
    from dptrace.trainers.parts.task import build_task

    for arguments, times in (((), 1), (("--checkpoint-activations",), 2)):
        calls: list[object] = []
        work = build_task(options(*arguments), World(0, 1, torch.device("cpu")))
        for module in work.model.modules():
            if isinstance(module, gpt.FeedForward):
                module.register_forward_pre_hook(lambda *seen, calls=calls: calls.append(seen))
        x, y = next(work.batches(1))
        work.loss(work.model(x), y).backward()
        assert 4 * times == len(calls)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_lower_precision_comes_near_the_gradients(kind: str) -> None:
    """Parameters and gradients stay float32; their values move by the precision's rounding, and do move."""
    plain, lower = gradients(), gradients("--amp", kind)

    assert all(gradient.dtype == torch.float32 for gradient in lower.values())
    name = "1.mlp.up.weight"
    apart = (plain[name] - lower[name]).norm() / plain[name].norm()
    assert 0 < apart < 0.05


def test_compilation_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch fails deep inside; the message says what to install."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="apt-get install"):
        gradients("--compile")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "small", "--checkpoint-activations"], "no blocks"),
        (["--data", "x"], "resnet18 reads"),
        (["--amp", "bf16", "--dtype", "bfloat16"], "leave --dtype bfloat16 out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], says: str) -> None:
    """Rather than ignored."""
    with pytest.raises(UsageError, match=says):
        options(*arguments)

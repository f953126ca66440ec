"""The task of a training: shards that together are the batch."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from dptrace.errors import UsageError

torch = pytest.importorskip("torch")

from dptrace.record import World, parse_options  # noqa: E402
from dptrace.record.options.modes import MODELS  # noqa: E402
from dptrace.trainers.parts import models  # noqa: E402
from dptrace.trainers.parts.task import build_task, layers_of  # noqa: E402

if TYPE_CHECKING:
    from dptrace.record import Options


def options(*arguments: str) -> Options:
    return parse_options("", "single", list(arguments))


@pytest.mark.slow
def test_every_rank_gets_its_own_shard_of_the_same_batch() -> None:
    """The concatenated shards of all ranks are the batch of a single process, and batches differ."""
    chosen, cpu = options("--model", "small", "--seed", "7", "--batch-size", "12"), torch.device("cpu")
    (whole, classes), (second, _) = build_task(chosen, World(0, 1, cpu)).batches(2)
    shards = [next(build_task(chosen, World(rank, 3, cpu)).batches(1)) for rank in range(3)]

    assert torch.equal(whole, torch.cat([x for x, _ in shards]))
    assert torch.equal(classes, torch.cat([y for _, y in shards]))
    assert not torch.equal(whole, second)
    assert whole.shape == (12, 784)


# Wrappers around a model's blocks change how it is computed, and not the result.


def block_options(*arguments: str) -> Options:
    return parse_options("", "single", ["--model", "gpt-tiny", "--batch-size", "2", *arguments])


def gradients(*arguments: str) -> dict[str, Any]:
    task = build_task(block_options(*arguments), World(0, 1, torch.device("cpu")))
    x, y = next(task.batches(1))
    task.loss(task.model(x), y).backward()
    return {name: parameter.grad for name, parameter in task.model.named_parameters()}


@pytest.mark.heavy
def test_checkpointed_activations_give_the_same_gradients() -> None:
    """Bit for bit, for each parameter, and under the same names."""
    plain = gradients()
    for arguments in (["--checkpoint-activations"], ["--checkpoint-activations-every", "2"]):
        again = gradients(*arguments)
        assert plain.keys() == again.keys()
        assert all(torch.equal(plain[name], again[name]) for name in plain)


@pytest.mark.heavy
def test_checkpointed_blocks_run_forward_twice() -> None:
    """Backward recomputes each block, or every k-th from the first on; without checkpointing, forward runs once."""
    every = "--checkpoint-activations-every"
    for arguments, times in (
        ((), [1, 1, 1, 1]),
        (("--checkpoint-activations",), [2, 2, 2, 2]),
        ((every, "1"), [2, 2, 2, 2]),
        ((every, "2"), [2, 1, 2, 1]),
        ((every, "3", "--checkpoint-activations"), [2, 1, 1, 2]),
    ):
        calls: Counter[int] = Counter()
        task = build_task(block_options(*arguments), World(0, 1, torch.device("cpu")))
        blocks: list[Any] = list(task.model)[1:-1]
        for number, block in enumerate(blocks):
            block.mlp.register_forward_pre_hook(lambda *_, number=number, calls=calls: calls.update([number]))
        x, y = next(task.batches(1))
        task.loss(task.model(x), y).backward()
        assert times == [calls[number] for number in range(4)]


def test_the_equal_blocks_of_a_model_are_those_that_its_description_counts() -> None:
    """Without stem, embedding and head, so that what is recomputed is what repeats."""
    with torch.device("meta"):
        built = {
            "balanced": models.balanced(),
            "resnet18": models.build_resnet(),
            **{name: models.build_gpt(name) for name in models.SIZES},
        }
    counted = {name: len(layers_of(model)) for name, model in built.items()}
    assert {name: model.blocks for name, model in MODELS.items() if model.blocks} == counted


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_lower_precision_comes_near_the_gradients(kind: str) -> None:
    """Parameters and gradients stay float32; their values differ by the rounding of the lower precision."""
    plain, lower = gradients(), gradients("--amp", kind)

    assert all(gradient.dtype == torch.float32 for gradient in lower.values())
    name = "1.mlp.up.weight"
    apart = (plain[name] - lower[name]).norm() / plain[name].norm()
    assert 0 < apart < 0.05


@pytest.mark.heavy
def test_compilation_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install, before torch fails deep inside."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="apt-get install"):
        gradients("--compile")

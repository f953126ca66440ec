"""Models in fully_shard: the number types of their messages, and where the shards are."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.errors import UsageError

torch = pytest.importorskip("torch")

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

from dptrace.record import parse_options  # noqa: E402
from dptrace.trainers.parts.fully_sharded import fully_sharded  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")


class _Mesh:
    """A mesh of GPUs, as far as the settings need one."""

    device_type = "cuda"


def options(*arguments: str) -> Any:
    return parse_options("", "fsdp", ["--model", "small", *arguments])


def test_shards_are_kept_in_the_memory_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each block and of the rest of the model."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    asked: list[Any] = []
    monkeypatch.setattr("torch.distributed.fsdp.fully_shard", lambda module, **settings: asked.append(settings))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    fully_sharded(model, _Mesh(), options("--cpu-offload"))  # type: ignore[arg-type]

    assert [CPUOffloadPolicy] * 3 == [type(one["offload_policy"]) for one in asked]


def test_there_is_nothing_to_offload_without_a_gpu() -> None:
    """The message says that shards are in the CPU's memory already."""
    with pytest.raises(UsageError, match="--cpu-offload: without a GPU"):
        fully_sharded(
            torch.nn.Sequential(torch.nn.Linear(2, 2)), init_device_mesh("cpu", (1,)), options("--cpu-offload")
        )


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_mixed_precision_comes_near_the_gradients(kind: str) -> None:
    """Also of a model with batch norm; shards, gradients and output are float32, and run.json names the reductions."""

    def gradients(*arguments: str) -> tuple[dict[str, Any], Any, Any]:
        torch.manual_seed(1)
        block = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
        head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32, 5))
        model, chosen = torch.nn.Sequential(block, head), options(*arguments)
        fully_sharded(model, init_device_mesh("cpu", (1,)), chosen)
        output = model(torch.randn(6, 3, 4, 4))
        output.square().mean().backward()
        return {name: p.grad.to_local() for name, p in model.named_parameters()}, output, chosen

    (plain, _, _), (lower, output, chosen) = gradients(), gradients("--mixed-precision", kind)

    assert torch.float32 == output.dtype
    assert {torch.float32} == {gradient.dtype for gradient in lower.values()}
    assert 0 < (plain["1.1.weight"] - lower["1.1.weight"]).norm() / plain["1.1.weight"].norm() < 0.05
    assert kind == chosen.run_options["reduce_dtype"]

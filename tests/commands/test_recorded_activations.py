"""What ``dptrace predict --memory RUN`` expects of a rank's activations, and what torch keeps of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dptrace.commands.recorded_plan import compared_memory

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """Join a process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def expected(info: dict[str, Any]) -> Any:
    """Return the row of activations, which a recording on a CPU does not measure."""
    return compared_memory(info, "RUN")["activation_bytes"]


def kept_by_torch(mode: str, arguments: list[str]) -> tuple[int, dict[str, Any]]:
    """Return the bytes that forward keeps for backward, without parameters, and what run.json says of the training."""
    from torch.distributed.device_mesh import init_device_mesh

    from dptrace.record import World, parse_options
    from dptrace.trainers.parts.fully_sharded import fully_sharded
    from dptrace.trainers.parts.task import build_task

    options = parse_options("", mode, arguments)
    task = build_task(options, World(0, 1, torch.device("cpu")))
    model = fully_sharded(task.model, init_device_mesh("cpu", (1,)), options) if mode == "fsdp" else task.model
    x, y = (part.clone() for part in next(task.batches(1)))
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        if tensor.is_floating_point():
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        assert task.loss(model(x), y).requires_grad
    if mode != "fsdp":  # gathered parameters have been freed: their storage is empty
        for parameter in model.parameters():
            kept.pop(parameter.untyped_storage().data_ptr(), None)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    info = {"mode": mode, "model": options.model, "parameters": parameters, "world_size": 1}
    return sum(storage.nbytes() for storage in kept.values()), info | {"options": options.run_options}


_TINY = ("--model", "gpt-tiny", "--batch-size", "4")


@pytest.mark.slow
def test_torch_keeps_what_is_expected() -> None:
    """Within 2 %, with every block, every k-th or none recomputed, in float32 and in mixed precision."""
    for mode, arguments in (
        ("single", [*_TINY, "--checkpoint-activations"]),
        ("single", [*_TINY, "--checkpoint-activations-every", "3"]),
        ("fsdp", [*_TINY, "--mixed-precision", "bf16"]),
        ("fsdp", ["--model", "small", "--batch-size", "64", "--mixed-precision", "fp16"]),
        ("fsdp", [*_TINY, "--mixed-precision", "bf16", "--checkpoint-activations-every", "2"]),
        ("single", ["--model", "balanced", "--batch-size", "16"]),
        ("single", ["--model", "balanced", "--batch-size", "16", "--checkpoint-activations-every", "3"]),
    ):
        kept, info = kept_by_torch(mode, arguments)

        assert pytest.approx(kept, rel=0.02) == expected(info), (mode, arguments)


def test_what_is_not_known_is_not_expected() -> None:
    """Under --amp, torch keeps casts of the weights as well."""
    info = {"mode": "single", "model": "gpt-tiny", "parameters": 932_608, "world_size": 1}

    assert expected(info | {"options": {"batch_size": 4, "amp": "bf16"}}) is None
    assert expected(info | {"options": {"batch_size": 4}}) == expected(
        info | {"options": {"batch_size": 4, "checkpoint_activations_every": "all"}}
    )


def test_offloaded_state_is_not_expected_on_the_gpu() -> None:
    """Of a training with --cpu-offload, only activations remain there."""
    info = {"mode": "fsdp", "model": "gpt-tiny", "parameters": 932_608, "world_size": 2}
    kept, offloaded = (
        compared_memory(info | {"options": {"batch_size": 4, "cpu_offload": offload}}, "RUN")
        for offload in (False, True)
    )

    assert offloaded["per_gpu_bytes"] == offloaded["activation_bytes"]
    assert kept["per_gpu_bytes"] - offloaded["per_gpu_bytes"] == 16 * 932_608 / 2  # AdamW in float32, shared

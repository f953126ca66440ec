"""The ranks that train together."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from dptrace.errors import RecordingError, UsageError  # noqa: E402
from dptrace.record.distributed import (  # noqa: E402
    RankStore,
    World,
    _device,
    _init_process_group,
    assert_in_sync,
    process_group,
    save_parameters,
)
from dptrace.record.messages import LauncherSettings  # noqa: E402


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def world() -> Iterator[World]:
    with process_group() as joined:
        yield joined


@pytest.mark.heavy
def test_a_process_started_by_plain_python_is_a_group_of_its_own(world: World) -> None:
    """It is rank 0 of 1, on the GPU if there is one."""
    assert (0, 1, torch.cuda.is_available()) == (world.rank, world.size, world.device.type == "cuda")


@pytest.mark.heavy
def test_parameters_that_are_no_longer_finite_are_found(world: World) -> None:
    """Otherwise a diverged model would pass as in sync, because NaN has no difference on any rank."""
    model = torch.nn.Linear(2, 2).to(world.device)
    assert_in_sync(model)
    with torch.no_grad():
        model.bias[0] = float("nan")

    with pytest.raises(RecordingError, match="bias is no longer finite"):
        assert_in_sync(model)


@pytest.mark.heavy
@pytest.mark.parametrize("replicated", [False, True])
def test_shards_are_compared_with_those_of_other_replicas_alone(
    replicated: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that shard a parameter hold different parts of it; ranks with the same shard hold the same."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh(world.device.type, (1,))
    model: Any = torch.nn.Linear(2, 2, bias=False, device=world.device)
    model.weight = torch.nn.Parameter(distribute_tensor(model.weight, mesh, [Replicate() if replicated else Shard(0)]))
    assert_in_sync(model)

    def all_reduce(tensor: Any, op: object = None, group: object = None) -> None:
        # As if the mesh had another rank, all of whose values are larger by 0.5.
        if group is mesh.get_group() and op == torch.distributed.ReduceOp.MAX:
            tensor += 0.5

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    if replicated:
        with pytest.raises(RecordingError, match=r"weight differs by 0\.5 between ranks"):
            assert_in_sync(model)
    else:
        assert_in_sync(model)
        with torch.no_grad():
            model.weight.to_local()[0] = float("inf")
        with pytest.raises(RecordingError, match="weight is no longer finite"):
            assert_in_sync(model)


def test_saved_parameters_are_arrays_by_their_names(tmp_path: Path) -> None:
    """bfloat16 is saved as float32; no temporary file is left; without a path nothing is written."""
    model = torch.nn.Linear(3, 2, dtype=torch.bfloat16)
    save_parameters(model, str(tmp_path / "p.npz"))
    save_parameters(model, None)

    arrays = np.load(tmp_path / "p.npz")
    assert [(2, 3), (2,)] == [arrays[name].shape for name in ("weight", "bias")]
    assert [tmp_path / "p.npz"] == list(tmp_path.iterdir())


def test_several_ranks_without_torchrun_are_asked_to_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world size of two without a store is a usage error."""
    monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(UsageError, match="start the script with torchrun"):
        RankStore("x")


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
@pytest.mark.parametrize(("visible", "count", "index"), [("3", 1, 0), ("0,1", 2, 1), ("", 2, 1)])
def test_a_rank_takes_the_gpu_that_is_its_own(
    variable: str, visible: str, count: int, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the GPU of its local rank, or the only one that Slurm shows it."""
    chosen: list[int] = []
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(variable, visible)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)

    assert torch.device("cuda", index) == _device()
    assert [index] == chosen


@pytest.mark.parametrize(("on_cpu", "expected"), [(False, "nccl"), (True, "cpu:gloo,cuda:nccl")])
def test_ranks_on_gpus_exchange_tensors_on_the_cpu_where_these_are_trained(
    on_cpu: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards that are offloaded are clipped and compared through gloo, in the group of NCCL."""
    asked: list[str] = []
    monkeypatch.setattr("dptrace.record.distributed._device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr("torch.distributed.init_process_group", lambda backend, **_: asked.append(backend))
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    _init_process_group(on_cpu)

    assert [expected] == asked


def test_ranks_that_share_a_gpu_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """More ranks than GPUs are detected at once; only NCCL detects that all ranks use the same GPU."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="Local rank 1 has no GPU: this process sees 1"):
        _device()

    def refuse(*arguments: object, **keywords: object) -> None:
        raise RuntimeError("NCCL error ... Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr("torch.cuda.set_device", lambda index: None)
    monkeypatch.setattr("torch.distributed.init_process_group", refuse)
    with pytest.raises(UsageError, match="the same GPU"):
        _init_process_group()


@pytest.mark.heavy
@pytest.mark.parametrize(("launched", "tied"), [(True, [None]), (False, [])])
def test_only_what_the_launcher_started_ends_with_its_parent(
    launched: bool, tied: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tied to its parent before it joins a group; a process started by hand may outlive its shell."""
    ties: list[str | None] = []
    monkeypatch.setattr("dptrace.record.distributed.tie_to_parent", lambda parent, busy: ties.append(parent))
    monkeypatch.delenv("DPTRACE_RECORDING", raising=False)
    for name, value in LauncherSettings("f", "s").environment().items() if launched else ():
        monkeypatch.setenv(name, value)
    with process_group():
        assert tied == ties


def test_machines_that_were_given_different_commands_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes before the first step and says what differs; equal commands pass."""
    from dptrace.record import distributed, messages

    published = {"command": json.dumps(["ddp.py", "--lr=0.5", "--model=small"])}

    class FakeStore:
        def __init__(self, name: str) -> None:
            assert name == "command"

        def receive(self, what: str) -> str:
            return published[what]

    monkeypatch.setattr(distributed, "RankStore", FakeStore)
    monkeypatch.setattr(messages.LauncherSettings, "from_environment", classmethod(lambda cls: cls("", "")))
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    world = World(3, 4, torch.device("cpu"))
    monkeypatch.setattr(sys, "argv", ["/x/ddp.py", "--model=small", "--lr=0.5"])
    distributed._check_same_command(world)
    monkeypatch.setattr(sys, "argv", ["/y/naive.py", "--model=small", "--lr=0.1"])
    with pytest.raises(UsageError, match=r"naive.py --lr=0.1 on rank 3, ddp.py --lr=0.5 on rank 0"):
        distributed._check_same_command(world)

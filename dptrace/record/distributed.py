"""The ranks that train together: process group, proof that the replicas agree, and a meeting point beside it."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import torch
import torch.distributed as dist
from torch import nn

from dptrace.errors import DptraceError, RecordingError, UsageError
from dptrace.record.accelerator import accelerator_of, available_accelerator, backend_of
from dptrace.record.launch import messages
from dptrace.record.launch.process_tree import AGENT_PID_ENV, end_with_parent

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["RankStore", "World", "assert_in_sync", "check_finite", "process_group", "save_parameters", "unwrapped_name"]

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class World:
    """Where this process stands among those that train together."""

    rank: int
    size: int
    device: torch.device


@contextmanager
def process_group() -> Iterator[World]:
    """Join the process group: one process per GPU with NCCL, or gloo on CPU where there is no GPU.

    Reads what torchrun puts into the environment; started by plain ``python``, the process is a group of its own.
    An exception ends a rank of several at once, without the leave-taking in which peers would hang.
    """
    if messages.LauncherSettings.from_environment() is not None:
        # Started by hand, a process may outlive the shell that started it.
        end_with_parent(signal.SIGKILL, os.environ.get(AGENT_PID_ENV))
    try:
        world = _init_process_group()
        _check_same_command(world)
        yield world
    except Exception as error:
        messages.report_failure(error)
        if isinstance(error, DptraceError):
            print(f"Error: {error}", file=sys.stderr)
            exit_now(error.exit_code)
        if messages.world_size() == 1:
            raise
        traceback.print_exc()
        exit_now(1)
    # DDP's cycles of references keep the group; left to the interpreter's end, torch 2.13 now and then aborts there.
    gc.collect()
    dist.destroy_process_group()


def _check_same_command(world: World) -> None:
    """Make sure, on several machines, that all launchers were given the same command.

    Raises:
        UsageError: they were not; the message says what differs.
    """
    if messages.LauncherSettings.from_environment() is None or int(os.environ.get("GROUP_WORLD_SIZE", "1")) < 2:
        return
    rank_store = RankStore("command")
    mine = [Path(sys.argv[0]).name, *sorted(sys.argv[1:])]
    if world.rank == 0:
        rank_store.publish("command", json.dumps(mine))
        return
    first = json.loads(rank_store.receive("command"))
    if mine != first:
        here, there = (
            " ".join(word for word in a if word not in b) or "nothing" for a, b in ((mine, first), (first, mine))
        )
        raise UsageError(f"The machines were given different commands: {here} on rank {world.rank}, {there} on rank 0.")


def exit_now(code: int) -> NoReturn:
    """End this process without its exit handlers: NCCL's would wait for peers that wait for us."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _init_process_group() -> World:
    device = _device()
    # torch documents its stores, but does not list them in __all__.
    alone = None if "RANK" in os.environ else dist.HashStore()  # type: ignore[attr-defined]
    try:
        dist.init_process_group(
            backend_of(device),
            store=alone,
            rank=0 if alone else -1,
            world_size=1 if alone else -1,
            device_id=None if accelerator_of(device) is None else device,
        )
    except RuntimeError as error:
        if "duplicate gpu" not in str(error).lower():
            raise
        raise UsageError("Two ranks were given the same GPU. Start one process per GPU.") from None
    return World(dist.get_rank(), dist.get_world_size(), device)


def _device() -> torch.device:
    accelerator = available_accelerator()
    if accelerator is None:
        return torch.device("cpu")
    index, count = messages.local_rank(), accelerator.module.device_count()
    visible = os.environ.get(accelerator.visible_devices, "")
    if count == 1 and visible and "," not in visible:
        # Each rank was given a GPU of its own, as by srun --gpus-per-task=1; or all the same one. The variable
        # can't tell: in containers all see a GPU 0. NCCL tells, when the ranks join.
        index = 0
    if index >= count:
        raise UsageError(
            f"Local rank {index} has no GPU: this process sees {count}. Start one process per GPU; where each has "
            f"one of its own, name it in {accelerator.visible_devices}."
        )
    accelerator.module.set_device(index)
    return torch.device(accelerator.device_type, index)


def assert_in_sync(model: nn.Module, exclude: Container[str] = (), group: dist.ProcessGroup | None = None) -> None:
    """Prove that ranks that hold the same parameters hold them bit for bit alike, and that all are finite.

    A parameter in shards (DTensor) is compared among the ranks that hold the same shard; any other among all ranks.
    All ranks of the group must call.

    Args:
        besides: names of parameters that each rank holds alone, such as its experts'.
        group: the ranks that hold the same; by default all.

    Raises:
        RecordingError: they do not; the message names the first parameter that differs, and by how much.
    """
    for name, parameter in model.named_parameters():
        if name in exclude:
            continue
        held = parameter.detach()
        own = held.to_local() if _is_sharded(held) else held
        differs, broken = _max_difference(own, _replica_groups(held, group)), ~torch.isfinite(own).all()
        # Told to all, so that all end here, and none waits for one that has.
        worst = torch.stack([differs, broken.double()])
        dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=group)
        apart, broken_anywhere = worst.tolist()
        check_finite(name, bool(broken_anywhere))
        if apart:
            raise RecordingError(f"The replicas drifted apart: parameter {name} differs by {apart:.3g} between ranks.")


def _is_sharded(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    # Told without its class, whose import takes long, and which older torch has elsewhere.
    return hasattr(tensor, "full_tensor")


def _replica_groups(parameter: torch.Tensor, group: dist.ProcessGroup | None) -> list[dist.ProcessGroup | None]:
    """Give the groups of ranks that hold the same of a parameter; None is the group of all."""
    if not _is_sharded(parameter):
        return [group]
    mesh = parameter.device_mesh
    return [mesh.get_group(dim) for dim, placement in enumerate(parameter.placements) if placement.is_replicate()]


def _max_difference(own: torch.Tensor, groups: list[dist.ProcessGroup | None]) -> torch.Tensor:
    """Give how far a tensor is from that of any rank of the groups; above 0 where it differs at all."""
    if not own.numel():  # the shard of one of more ranks than there are rows
        return own.double().sum()
    low, high = own.clone(), own.clone()
    for group in groups:
        dist.all_reduce(low, op=dist.ReduceOp.MIN, group=group)
        dist.all_reduce(high, op=dist.ReduceOp.MAX, group=group)
    apart = (high.double() - low.double()).abs()
    # Infinities and what is no number have no distance, and are told by themselves.
    return torch.nan_to_num(apart, 0.0, 0.0, 0.0).max()


def save_parameters(
    model: nn.Module, path: str | None, full_parameters: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Save all parameters by their names, as the single process has them; nothing when *path* is None.

    Rank 0 writes, but all ranks must call: the shards of a parameter are gathered. Call it after
    :func:`assert_in_sync`.

    Args:
        whole: the whole parameters, where the trainer gathered them itself; else the model's own.
    """
    if path is None:
        return
    import numpy as np

    tensors = dict(model.named_parameters()) if full_parameters is None else full_parameters
    # NumPy has no bfloat16; float32 holds every value of the smaller formats.
    arrays = {
        unwrapped_name(name): _full_tensor(tensor.detach()).float().cpu().numpy() for name, tensor in tensors.items()
    }
    if messages.rank() != 0:
        return
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for allow_pickle
    os.replace(temporary, target)


def check_finite(name: str, broken: bool) -> None:
    """End a training that diverged.

    Args:
        broken: whether a number of the parameter is none.

    Raises:
        RecordingError: it is broken; the message names the parameter.
    """
    if broken:
        raise RecordingError(f"Parameter {name} is no longer finite: training diverged. Try a smaller --lr.")


def unwrapped_name(name: str) -> str:
    """Give a parameter's name in the model itself, without what wrappers put before it."""
    for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module."):
        name = name.replace(wrapper, "")
    return name.removeprefix("module.")


def _full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Gather a tensor that lies in shards on the ranks."""
    return tensor.full_tensor() if _is_sharded(tensor) else tensor


def _store() -> Any:
    """Give the store through which the ranks found each other."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if host and port:
        # A connection of our own: one that waits keeps all others of its process waiting.
        return dist.TCPStore(host, int(port), is_master=False)  # type: ignore[attr-defined]
    if messages.initialized_process_group() is None:
        raise UsageError("MASTER_ADDR and MASTER_PORT are not set: start the script with torchrun.")
    # Scripts that hand an address or a file to init_process_group(). torch names no public way to the store.
    return dist.distributed_c10d._get_default_store()


class RankStore:
    """A place where ranks wait for each other without a collective, so that none shows in a trace or times out."""

    def __init__(self, name: str) -> None:
        # Kept: a script may leave its process group before its recording ends.
        self.rank, self.size = messages.rank(), messages.world_size()
        self._prefix = f"dptrace/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}"
        self._store: Any = None
        if self.size > 1:
            self._store = _store()

    def barrier(self, barrier_name: str, timeout: timedelta) -> bool:
        """Wait until all ranks are here; tell whether they came in time."""
        if self._store is None:
            return True
        try:
            self.arrive(barrier_name)
            self._store.wait([f"{self._prefix}/{barrier_name}/all"], timeout)
        except RuntimeError:
            return False
        return True

    def barrier_unless_failed(self, barrier_name: str, timeout: timedelta) -> bool:
        """Wait as :meth:`wait` does, for hours, but no longer than until a rank tells that it ``failed``."""
        if self._store is None:
            return True
        until = time.monotonic() + timeout.total_seconds()
        try:
            self.arrive(barrier_name)
            # Asked again and again, since torch logs a warning each time that a wait ends without the key.
            while not self._store.check([f"{self._prefix}/{barrier_name}/all"]):
                if time.monotonic() > until or self._store.check([f"{self._prefix}/failed"]):
                    return False
                time.sleep(_POLL_S)
        except RuntimeError:  # the store is gone, and with it the process that kept it
            return False
        return True

    def failure(self) -> str | None:
        """Give what a rank told as ``failed``; None when none has."""
        try:
            told = self._store is not None and self._store.check([f"{self._prefix}/failed"])
            return self.receive("failed") if told else None
        except RuntimeError:
            return None

    def arrive(self, barrier_name: str) -> None:
        """Be counted at a place without waiting there."""
        if self._store is not None and self._store.add(f"{self._prefix}/{barrier_name}", 1) == self.size:
            self._store.set(f"{self._prefix}/{barrier_name}/all", "1")

    def publish(self, what: str, text: str) -> None:
        """Leave a text for the others."""
        if self._store is not None:
            self._store.set(f"{self._prefix}/{what}", text)

    def receive(self, what: str) -> str:
        """Wait for a text that another rank leaves."""
        return str(self._store.get(f"{self._prefix}/{what}").decode())

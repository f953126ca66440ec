"""The ranks that train together: their process group, the check that replicas agree, and a key-value store."""

from __future__ import annotations

import gc
import io
import json
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import torch
import torch.distributed as dist
from torch import nn

from dptrace.core.files import atomic_write
from dptrace.errors import DptraceError, RecordingError, UsageError
from dptrace.record import messages
from dptrace.record.accelerator import ACCELERATORS, accelerator_of, available_accelerator, backend_of
from dptrace.record.failures import answer_launcher
from dptrace.record.processes import AGENT_PID_ENV, tie_to_parent
from dptrace.version import __version__

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


_POLL_S = 0.05
"""How often the store is asked whether all ranks are there."""
_exit = os._exit
"""As Python has it; a script's own calls are replaced."""
_CLOSING_S = 5.0
"""How long an end waits for files that another thread holds."""


@dataclass(frozen=True, slots=True)
class World:
    """This process's rank, the number of ranks, and its device."""

    rank: int
    size: int
    device: torch.device


@contextmanager
def process_group(cpu_tensors: bool = False) -> Iterator[World]:
    """Join the process group: one process per GPU with NCCL, or gloo on CPU if there is no GPU.

    Reads torchrun's environment variables; started by plain ``python``, the process forms a group of its own. With
    several ranks, an exception ends this one at once, without a shutdown that would wait for the peers.

    Args:
        cpu_tensors: whether ranks on GPUs also exchange tensors in the CPU's memory, through gloo.
    """
    settings = messages.LauncherSettings.from_environment()
    if settings is not None:
        # Only under the launcher: a process started by hand may outlive its shell.
        folder = Path(settings.folder)
        tie_to_parent(os.environ.get(AGENT_PID_ENV), lambda: messages.rank() in messages.writers(folder))
        answer_launcher()
    try:
        world = _init_process_group(cpu_tensors)
        _check_same_command(world)
        yield world
    except SystemExit as stop:  # as SIGTERM causes; what was recorded is written
        exit_now(messages.exit_code(stop))
    except Exception as error:
        messages.report_failure(error)
        if isinstance(error, DptraceError):
            print(f"Error: {error}", file=sys.stderr)
            exit_now(error.exit_code)
        if messages.world_size() == 1:
            raise
        traceback.print_exc()
        exit_now(1)
    # DDP's reference cycles keep the group alive; torch 2.13 sometimes aborts if they last until the interpreter exits.
    gc.collect()
    dist.destroy_process_group()


def _check_same_command(world: World) -> None:
    """Check that all launchers of a job on several machines have the same command.

    Raises:
        UsageError: they have not; the message says what differs.
    """
    if messages.LauncherSettings.from_environment() is None or int(os.environ.get("GROUP_WORLD_SIZE", "1")) < 2:
        return
    rank_store = RankStore("command")
    command = [Path(sys.argv[0]).name, *sorted(sys.argv[1:])]
    if world.rank == 0:
        rank_store.publish("command", json.dumps(command))
        return
    first = json.loads(rank_store.receive("command"))
    if command != first:
        only_here, only_there = (
            " ".join(word for word in a if word not in b) or "nothing" for a, b in ((command, first), (first, command))
        )
        raise UsageError(
            f"The machines have different commands: {only_here} on rank {world.rank}, {only_there} on rank 0. Start "
            "the same command on all of them."
        )


def exit_now(code: int) -> NoReturn:
    """End this process without its exit handlers and its teardown, or by a signal, whose number is then negative.

    Files that are open are written first, as Python does in its teardown, unless another thread holds one: a thread
    that wrote when the script forked holds it in the child forever.
    """
    closing = threading.Thread(target=_close_files, daemon=True)
    try:
        closing.start()
        closing.join(_CLOSING_S)
    except RuntimeError:  # the interpreter is ending and starts no thread
        _close_files()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    _exit(code)


def _close_files() -> None:
    """Close the files that are open for writing: text, then what compresses, then the buffers below both."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a full disk, a terminal that is gone, a stream that the script closed or replaced
            stream.flush()
    found = [file for file in gc.get_objects() if issubclass(type(file), (io.TextIOWrapper, io.BufferedIOBase))]
    buffers = [file for file in found if isinstance(file, io.BufferedWriter | io.BufferedRandom)]
    texts = [file for file in found if isinstance(file, io.TextIOWrapper)]
    others = [file for file in found if not isinstance(file, io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom)]
    for file in (*texts, *others, *buffers):
        with suppress(Exception):
            if file.writable() and file.fileno() > 2:
                file.close()


def _init_process_group(cpu_tensors: bool = False) -> World:
    device = _device()
    accelerator = accelerator_of(device)
    # torch documents its stores, but does not list them in __all__.
    local_store = None if "RANK" in os.environ else dist.HashStore()  # type: ignore[attr-defined]
    try:
        dist.init_process_group(
            f"cpu:gloo,{accelerator.backend_config}" if accelerator and cpu_tensors else backend_of(device),
            store=local_store,
            rank=0 if local_store else -1,
            world_size=1 if local_store else -1,
            device_id=None if accelerator is None else device,
        )
    except RuntimeError as error:
        if "duplicate gpu" not in str(error).lower():
            raise
        raise UsageError("Two ranks use the same GPU. Start one process per GPU.") from None
    return World(dist.get_rank(), dist.get_world_size(), device)


def _device() -> torch.device:
    accelerator = available_accelerator()
    if accelerator is None:
        return torch.device("cpu")
    index, count = messages.local_rank(), accelerator.module.device_count()
    visible = [os.environ.get(name) for name in accelerator.visible_devices]
    if count == 1 and any(value and "," not in value for value in visible):
        # Each rank sees a GPU of its own, as with srun --gpus-per-task=1, or all see the same one. The variable cannot
        # tell which, because in containers all see a GPU 0; NCCL raises an error for the latter when ranks join.
        index = 0
    if index >= count:
        raise UsageError(
            f"Local rank {index} has no GPU: this process sees {count}. Start one process per GPU, or set "
            f"{accelerator.visible_devices[0]} to the GPU of each process."
        )
    accelerator.module.set_device(index)
    return torch.device(accelerator.device_type, index)


def assert_in_sync(model: nn.Module, exclude: Container[str] = (), group: dist.ProcessGroup | None = None) -> None:
    """Check that parameters are finite and bit for bit the same on all ranks that hold them.

    A sharded parameter (DTensor) is compared among the ranks that hold the same shard, any other among all ranks.
    All ranks of the group must call this.

    Args:
        exclude: names of parameters that only one rank holds, such as those of its experts.
        group: the ranks that hold the same model; by default all ranks.

    Raises:
        RecordingError: a parameter is not; the message names the first one, and the difference.
    """
    for name, parameter in model.named_parameters():
        if name in exclude:
            continue
        tensor = parameter.detach()
        local = tensor.to_local() if _is_sharded(tensor) else tensor
        difference, broken = _max_difference(local, _replica_groups(tensor, group)), ~torch.isfinite(local).all()
        # Shared with all ranks, so that all of them end here and none waits for one that has ended.
        worst = torch.stack([difference, broken.double()])
        dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=group)
        max_difference, broken_anywhere = worst.tolist()
        check_finite(name, bool(broken_anywhere))
        if max_difference:
            raise RecordingError(
                f"The replicas drifted apart: parameter {name} differs by {max_difference:.3g} between ranks."
            )


def _is_sharded(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    # Without its class, which takes long to import and is elsewhere in older torch.
    return hasattr(tensor, "full_tensor")


def _replica_groups(parameter: torch.Tensor, group: dist.ProcessGroup | None) -> list[dist.ProcessGroup | None]:
    """Return the groups of ranks that hold the same values of a parameter; None is the group of all ranks."""
    if not _is_sharded(parameter):
        return [group]
    mesh = parameter.device_mesh
    return [mesh.get_group(dim) for dim, placement in enumerate(parameter.placements) if placement.is_replicate()]


def _max_difference(local: torch.Tensor, groups: list[dist.ProcessGroup | None]) -> torch.Tensor:
    """Return the largest difference of a tensor from that of any rank in the groups, as a tensor."""
    if not local.numel():  # an empty shard: more ranks than rows
        return local.double().sum()
    low, high = local.clone(), local.clone()
    for group in groups:
        dist.all_reduce(low, op=dist.ReduceOp.MIN, group=group)
        dist.all_reduce(high, op=dist.ReduceOp.MAX, group=group)
    difference = (high.double() - low.double()).abs()
    # Infinities and NaN have no difference; check_finite reports them.
    return torch.nan_to_num(difference, 0.0, 0.0, 0.0).max()


def save_parameters(
    model: nn.Module, path: str | None, full_parameters: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Save all parameters under the names that they have in a single process; do nothing if *path* is None.

    Rank 0 writes, but all ranks must call this, because sharded parameters are gathered. Call it after
    :func:`assert_in_sync`.

    Args:
        full_parameters: the parameters that the trainer has gathered; by default those of the model.
    """
    if path is None:
        return
    import numpy as np

    tensors = dict(model.named_parameters()) if full_parameters is None else full_parameters
    # NumPy has no bfloat16; float32 represents every value of the smaller formats.
    arrays = {
        unwrapped_name(name): at_least_float32(tensor.full_tensor() if _is_sharded(tensor) else tensor).cpu().numpy()
        for name, tensor in ((name, tensor.detach()) for name, tensor in tensors.items())
    }
    if messages.rank() != 0:
        return
    with atomic_write(Path(path)) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub mistakes the names for allow_pickle


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Convert a half-precision tensor to float32; return float32 and float64 as they are."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def check_finite(name: str, broken: bool) -> None:
    """Raise an error for a training that has diverged.

    Args:
        broken: whether a value of the parameter is NaN or infinite.

    Raises:
        RecordingError: *broken* is true; the message names the parameter.
    """
    if broken:
        raise RecordingError(f"Parameter {name} is no longer finite: the training diverged. Try a smaller --lr.")


def unwrapped_name(name: str) -> str:
    """Return a parameter's name in the model itself, without the prefixes of wrappers."""
    for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module."):
        name = name.replace(wrapper, "")
    return name.removeprefix("module.")


def _store() -> Any:
    """Return the key-value store that the ranks used to find each other.

    Raises:
        UsageError: there is none, because torchrun did not start this process.
    """
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if host and port:
        # A separate connection: one that waits blocks all other users of it in this process.
        return dist.TCPStore(host, int(port), is_master=False)  # type: ignore[attr-defined]
    if messages.initialized_process_group() is None:
        raise UsageError("MASTER_ADDR and MASTER_PORT are not set: start the script with torchrun.")
    # Scripts that pass an address or a file to init_process_group(). torch has no public function for the store.
    return dist.distributed_c10d._get_default_store()


class RankStore:
    """Barriers and messages between ranks without a collective, which would show in the trace or time out."""

    def __init__(self, name: str) -> None:
        # Stored here, because a script may leave its process group before its recording ends.
        self.rank, self.size = messages.rank(), messages.world_size()
        self._prefix = f"dptrace/{messages.restart_count()}/{name}"
        self._store: Any = None
        # Ranks that a script itself starts need not join a group; then nothing connects them.
        apart = messages.is_spawned() and messages.initialized_process_group() is None
        if self.size > 1 and not apart:
            self._store = _store()

    @property
    def is_in_group(self) -> bool:
        """Whether a rank's process group hosts the store, which ends with it, and no agent of torchrun."""
        return self._store is not None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    def barrier(self, barrier_name: str, timeout: timedelta) -> bool:
        """Wait for all ranks; return whether they arrived in time."""
        if self._store is None:
            return True
        try:
            self.arrive(barrier_name)
            self._store.wait([f"{self._prefix}/{barrier_name}/all"], timeout)
        except RuntimeError:
            return False
        return True

    def is_published(self, what: str) -> bool:
        """Return whether any rank has published this, without waiting."""
        try:
            return self._store is not None and bool(self._store.check([f"{self._prefix}/{what}"]))
        except RuntimeError:  # the process that hosted the store has ended
            return False

    def any(self, question: str, answer: bool, timeout: timedelta) -> bool | None:
        """Return whether one of the ranks answers yes to a question that all ask; None if not all ask it in time."""
        if answer:
            with suppress(RuntimeError):  # the process that hosted the store has ended
                self.publish(f"{question}/yes", "1")
        if not self.barrier(question, timeout):
            return None
        return answer or self.is_published(f"{question}/yes")

    def barrier_unless_failed(self, barrier_name: str, timeout: timedelta) -> bool:
        """Wait for all ranks, but only until one of them publishes ``failed``; return whether all arrived in time."""
        if self._store is None:
            return True
        deadline = time.monotonic() + timeout.total_seconds()
        try:
            self.arrive(barrier_name)
            # Polled, because torch logs a warning each time that a wait ends without the key.
            while not self._store.check([f"{self._prefix}/{barrier_name}/all"]):
                if time.monotonic() > deadline or self._store.check([f"{self._prefix}/failed"]):
                    return False
                time.sleep(_POLL_S)
        except RuntimeError:  # the process that hosted the store has ended
            return False
        return True

    def arrive(self, barrier_name: str) -> None:
        """Count this rank at a barrier without waiting there."""
        if self._store is not None and self._store.add(f"{self._prefix}/{barrier_name}", 1) == self.size:
            self._store.set(f"{self._prefix}/{barrier_name}/all", "1")

    def agree(self, what: str, number: int, timeout: timedelta) -> int:
        """Return rank 0's number on all ranks; this rank's own if rank 0's does not arrive in time."""
        if self.rank == 0 or self._store is None:
            self.publish(what, str(number))
            return number
        published = self.receive_within(what, timeout)
        return number if published is None else int(published)

    def receive_within(self, what: str, timeout: timedelta) -> str | None:
        """Wait for a text that another rank publishes; return None if it does not arrive in time."""
        try:
            self._store.wait([f"{self._prefix}/{what}"], timeout)
            return self.receive(what)
        except RuntimeError:
            return None

    def count(self, barrier_name: str) -> int:
        """Return how many ranks have arrived at a barrier; 0 if this rank is the only one."""
        return 0 if self._store is None else int(self._store.add(f"{self._prefix}/{barrier_name}", 0))

    def claim(self, what: str) -> bool:
        """Return whether this rank is the first to claim something; all others get no."""
        return self._store is None or self._store.add(f"{self._prefix}/{what}/claims", 1) == 1

    def publish(self, what: str, text: str) -> None:
        """Publish a text for the other ranks."""
        if self._store is not None:
            self._store.set(f"{self._prefix}/{what}", text)

    def peek(self, what: str) -> str | None:
        """Return a text that a rank has published; None if it is not there yet."""
        return self.receive(what) if self.is_published(what) else None

    def receive(self, what: str) -> str:
        """Wait for a text that another rank publishes, and return it."""
        return str(self._store.get(f"{self._prefix}/{what}").decode())


# The environment of a rank: its device and the versions of the relevant software.


def device_name(device: torch.device) -> str:
    """Return the name of the device, ``CPU`` for any processor."""
    accelerator = accelerator_of(device)
    return "CPU" if accelerator is None else str(accelerator.module.get_device_name(device))


def device_uuid(device: torch.device) -> str | None:
    """Return what tells a GPU from others of its name on any machine; None for a CPU, and where torch is too old."""
    accelerator = accelerator_of(device)
    uuid = None if accelerator is None else getattr(accelerator.module.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)


def versions() -> dict[str, str | None]:
    """Return the versions of dptrace, torch, Python, and of each accelerator's platform and backend."""
    found: dict[str, str | None] = {
        "dptrace": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    for accelerator in ACCELERATORS:
        found[accelerator.device_type] = getattr(torch.version, accelerator.device_type, None)
        found[accelerator.backend] = accelerator.backend_version()
    return found

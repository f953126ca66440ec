"""The measured collectives, as calls on preallocated buffers for messages of any size."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from dptrace.bench.links.algorithms import all_reduce_call
from dptrace.errors import RecordingError
from dptrace.model.link_report import ADDITION, ALGORITHM_PREFIX
from dptrace.record.ranks.accelerator import accelerator_of
from dptrace.record.ranks.distributed import World

__all__ = ["ELEMENT_BYTES", "Operations", "largest_message"]

# torch 2.13 renames them, and its older names issue a warning at each call, which would be timed.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_BUFFERS = 3
"""Tensors of the largest size that a rank may hold: sent, received, and a copy that the backend makes."""
_FREE_MEMORY_SHARE = 0.5
"""Share of the free memory that these may take together."""
ELEMENT_BYTES = 4
"""Bytes of float32, the type of nccl-tests."""


def largest_message(world: World, min_bytes: int, max_bytes: int) -> int:
    """Return the largest size, up to *max_bytes*, for which every rank has memory.

    Raises:
        RecordingError: not even *min_bytes* fits.
    """
    accelerator = accelerator_of(world.device)
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if accelerator is None else 1
    free = _free_on_machine() if accelerator is None else accelerator.module.mem_get_info(world.device)[0]
    fits = torch.tensor(int(free * _FREE_MEMORY_SHARE / _BUFFERS / sharing), dtype=torch.int64, device=world.device)
    dist.all_reduce(fits, op=dist.ReduceOp.MIN)
    if fits.item() < min_bytes:
        raise RecordingError(
            f"too little memory: messages of {min_bytes:,} bytes need {min_bytes * _BUFFERS * sharing:,} bytes, and at "
            f"most {int(fits.item()) * _BUFFERS * sharing:,} are available. Choose a smaller --min-bytes."
        )
    return min(max_bytes, int(fits.item()))


def _free_on_machine() -> int:
    """Return the bytes that can be allocated without swapping, within the limit of the container, if any."""
    free = [1 << 62]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            free.append(int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass  # not Linux, or no such cgroup controller
    if free == [1 << 62] and hasattr(os, "sysconf"):
        free.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    return max(min(free), 0)


class Operations:
    """Calls that move messages of one size among all ranks.

    Args:
        ranks_per_node: for the hierarchical all-reduce.
    """

    def __init__(self, world: World, max_bytes: int, ranks_per_node: int = 1) -> None:
        self.world, self._ranks_per_node = world, ranks_per_node
        count = -(-max_bytes // ELEMENT_BYTES)
        # Filled, since memory never written to is one page of zeros that stays in the cache. Sums of zeros stay zero.
        self._sent = torch.empty(count, device=world.device).fill_(0)
        self._received = torch.empty(count, device=world.device).fill_(0)

    def call(self, kind: str, size: int) -> Callable[[], object]:
        """Return a call that runs one collective.

        Args:
            kind: a key of ``collectives.COUNTED``, which defines what *size* counts; or an algorithm of an all-reduce,
                such as ``all_reduce/tree``; or ``add``, which adds two tensors of *size* without communication.
            size: bytes; a whole number of elements for each rank.
        """
        ranks = self.world.size
        count = size // ELEMENT_BYTES
        sent, received, part = self._sent[:count], self._received[:count], count // ranks
        if kind.startswith(ALGORITHM_PREFIX):
            name = kind.removeprefix(ALGORITHM_PREFIX)
            return all_reduce_call(name, self.world, self._ranks_per_node, sent, received)
        first = self.world.rank == 0
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(sent),
            "all_gather": lambda: _ALL_GATHER(received, sent[:part]),
            "reduce_scatter": lambda: _REDUCE_SCATTER(received[:part], sent),
            "all_to_all": lambda: dist.all_to_all_single(received, sent),
            "broadcast": lambda: dist.broadcast(sent, src=0),
            "reduce": lambda: dist.reduce(sent, dst=0),
            "gather": lambda: dist.gather(sent[:part], list(received.tensor_split(ranks)) if first else None, dst=0),
            "scatter": lambda: dist.scatter(received[:part], list(sent.tensor_split(ranks)) if first else None, src=0),
            "send_recv": lambda: self._round_trip(sent, received),
            ADDITION: lambda: received.add_(sent),
        }
        return calls[kind]

    def _round_trip(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        """Send from the first rank to the last and back: two messages; the other ranks do nothing."""
        last = self.world.size - 1
        if self.world.rank == 0:
            dist.send(sent, dst=last)
            dist.recv(received, src=last)
        elif self.world.rank == last:
            dist.recv(received, src=0)
            dist.send(sent, dst=0)

"""All-reduce algorithms written with send and receive, as calls to be timed, and the check that they add up right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dptrace.errors import RecordingError
from dptrace.record.ranks.distributed import World
from dptrace.trainers.parts.communication.all_reduce import (
    halving_doubling_all_reduce,
    hierarchical_all_reduce,
    naive_all_reduce,
    neighbors,
    swap,
    tree_all_reduce,
)
from dptrace.trainers.parts.communication.collectives import ring_all_reduce

__all__ = ["all_reduce_call", "check_sums"]

_LENGTHS = (1, 1000, 4099)
"""Elements of the tensors that are checked: fewer than ranks, and numbers that do not divide."""


def all_reduce_call(
    name: str, world: World, ranks_per_node: int, tensor: Tensor, buffer: Tensor
) -> Callable[[], object]:
    """Return a call that replaces a tensor by its sum over the ranks.

    Args:
        name: of ``dptrace.model.collectives.ALL_REDUCES``.
        buffer: as long as the tensor; it is overwritten.
    """
    of = (tensor, world.rank, world.size)
    around = neighbors(range(world.size), world.rank, swap)
    calls: dict[str, Callable[[], object]] = {
        "ring": lambda: ring_all_reduce(*of, around, buffer),
        "tree": lambda: tree_all_reduce(*of, swap, buffer),
        "halving-doubling": lambda: halving_doubling_all_reduce(*of, swap, buffer),
        "hierarchical": lambda: hierarchical_all_reduce(*of, swap, buffer, ranks_per_node),
        "naive": lambda: naive_all_reduce(*of, swap, buffer),
    }
    return calls[name]


def check_sums(names: Sequence[str], world: World, ranks_per_node: int) -> None:
    """Run each algorithm on known numbers before it is timed.

    Raises:
        RecordingError: this rank did not end with the sum.
    """
    for name in names:
        for length in _LENGTHS:
            # Whole numbers, so that the sum is exact in any order.
            place = torch.arange(length, dtype=torch.float32, device=world.device) % 1009
            expected = place * (world.size * (world.size + 1) // 2)
            tensor = place * (world.rank + 1)
            all_reduce_call(name, world, ranks_per_node, tensor, torch.empty_like(tensor))()
            if not torch.equal(expected, tensor):
                wrong = int((expected != tensor).sum())
                raise RecordingError(
                    f"the {name} all-reduce among {world.size} ranks gave {wrong} of {length} wrong sums on rank "
                    f"{world.rank}; nothing was timed. Leave {name} out of --algorithms, and report this."
                )

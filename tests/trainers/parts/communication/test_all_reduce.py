"""All-reduces written with send and receive, for any number of ranks and any length, without processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import Tensor

torch = pytest.importorskip("torch")

from dptrace.model.collectives import ALL_REDUCES, all_reduce_volume  # noqa: E402 - below needs torch
from dptrace.trainers.parts.communication import all_reduce  # noqa: E402
from dptrace.trainers.parts.communication.collectives import ring_all_reduce  # noqa: E402


def algorithm(name: str, per_node: int) -> Callable[..., None]:
    if name == "ring":
        return lambda tensor, rank, size, swap, buffer: ring_all_reduce(
            tensor, rank, size, all_reduce.neighbors(range(size), rank, swap), buffer
        )
    found: Callable[..., None] = getattr(all_reduce, f"{name.replace('-', '_')}_all_reduce")
    return partial(found, ranks_per_node=per_node) if name == "hierarchical" else found


def run(name: str, tensors: list[Tensor], per_node: int = 2) -> list[int]:
    """All-reduce in place with a thread for each rank, and return how many elements each sent."""
    size, sent = len(tensors), [0] * len(tensors)
    links: defaultdict[tuple[int, int], Queue[Tensor]] = defaultdict(Queue)

    def rank_of(rank: int) -> None:
        def swap(out: all_reduce.Messages, into: all_reduce.Messages) -> None:
            for tensor, peer in out:
                sent[rank] += len(tensor)
                links[rank, peer].put(tensor.clone())
            for tensor, peer in into:
                tensor.copy_(links[peer, rank].get(timeout=60))

        buffer = torch.empty_like(tensors[rank])
        algorithm(name, per_node)(tensors[rank], rank, size, swap, buffer)

    with ThreadPoolExecutor(size) as pool:
        list(pool.map(rank_of, range(size)))
    return sent


def numbers(size: int, length: int) -> Any:
    generator = torch.Generator().manual_seed(size * 100 + length)
    return torch.randint(-1000, 1000, (size, length), generator=generator).float()


@pytest.mark.parametrize("name", ALL_REDUCES)
def test_every_rank_ends_with_the_sum(name: str) -> None:
    """On 1 to 9 ranks, with fewer elements than ranks, with lengths that do not divide, and with uneven nodes."""
    for size in range(1, 10):
        for length, per_node in ((0, 1), (1, 2), (37, 3), (64, 4)):
            values = numbers(size, length)
            tensors = list(values.clone())

            run(name, tensors, per_node)

            assert all(torch.equal(values.sum(0), tensor) for tensor in tensors), (size, length, per_node)


@pytest.mark.parametrize("name", ALL_REDUCES)
def test_what_is_sent_is_what_the_formulas_say(name: str) -> None:
    """The busiest rank's share, and 2(P-1) tensors from all ranks together, whatever the algorithm."""
    length = 2520  # divisible by all numbers of chunks
    for size in range(2, 10):
        sent = run(name, list(numbers(size, length)), per_node=3)
        volume = all_reduce_volume(name, size, 3)

        assert 2 * (size - 1) * length == sum(sent) == round(volume.total_share * length)
        assert max(sent) == round(volume.sent_share * length), size

"""All-reduces written with send and receive, and flat gradients, without processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from dptrace.model.collectives import ALL_REDUCES, all_reduce_volume  # noqa: E402 - below needs torch
from dptrace.trainers.parts import collectives  # noqa: E402
from dptrace.trainers.parts.collectives import flat_gradients, ring_all_reduce, rounds  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor


@given(size=st.integers(2, 12), rank=st.integers(0, 11))
def test_a_rank_receives_the_chunk_that_its_neighbour_sends(size: int, rank: int) -> None:
    """In every round and on all ranks, because messages carry no tag that could identify them."""
    rank %= size
    before = list(rounds((rank - 1) % size, size))
    rank_rounds = list(rounds(rank, size))

    assert [sent for sent, _, _ in before] == [received for _, received, _ in rank_rounds]
    assert 2 * (size - 1) == len(rank_rounds)


def test_flat_gradients_are_written_back() -> None:
    """One buffer holds all gradients in the order of the parameters; a parameter without a gradient is left out."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Linear(1, 1))
    model[0](torch.ones(1, 2)).sum().backward()
    with flat_gradients(model) as gradients:
        assert [1.0, 1.0, 1.0] == gradients.tolist()
        gradients *= torch.tensor([1.0, 2.0, 3.0])

    assert ([[1.0, 2.0]], [3.0]) == (model[0].weight.grad.tolist(), model[0].bias.grad.tolist())
    assert model[1].weight.grad is None


# All-reduces written with send and receive, for any number of ranks and any length, without processes.


def algorithm(name: str, per_node: int) -> Callable[..., None]:
    if name == "ring":
        return lambda tensor, rank, size, swap, buffer: ring_all_reduce(
            tensor, rank, size, collectives.neighbors(range(size), rank, swap), buffer
        )
    found: Callable[..., None] = getattr(collectives, f"{name.replace('-', '_')}_all_reduce")
    return partial(found, ranks_per_node=per_node) if name == "hierarchical" else found


def run(name: str, tensors: list[Tensor], per_node: int = 2) -> list[int]:
    """All-reduce in place with a thread for each rank, and return how many elements each sent."""
    size, sent = len(tensors), [0] * len(tensors)
    # All at once: threads that make one at the same time would each have their own.
    links: dict[tuple[int, int], Queue[Tensor]] = {pair: Queue() for pair in product(range(size), range(size))}

    def rank_of(rank: int) -> None:
        def swap(out: collectives.Messages, into: collectives.Messages) -> None:
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
def test_every_rank_ends_with_the_sum_all_reduce(name: str) -> None:
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


@pytest.mark.heavy
@given(length=st.integers(1, 40), size=st.integers(2, 9), seed=st.integers(0, 1 << 30))
def test_ranks_of_a_ring_agree_to_the_last_bit(length: int, size: int, seed: int) -> None:
    """Each chunk is summed in one order on all ranks, although fractions round."""
    random = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(length, generator=random) for _ in range(size)]

    run("ring", tensors)

    assert all(torch.equal(tensors[0], tensor) for tensor in tensors)

"""The ring all-reduce for any length on any number of ranks, and flat gradients, without processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from dptrace.trainers.parts.collectives import flat_gradients, ring_all_reduce, rounds  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor


@pytest.mark.heavy
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


def ring_of(tensors: list[Tensor]) -> None:
    """All-reduce in place with a thread for each rank."""
    size = len(tensors)
    links: list[Queue[Tensor]] = [Queue() for _ in tensors]

    def run(rank: int) -> None:
        def exchange(out: Tensor, into: Tensor) -> None:
            links[(rank + 1) % size].put(out.clone())
            into.copy_(links[rank].get(timeout=120))

        ring_all_reduce(tensors[rank], rank, size, exchange)

    with ThreadPoolExecutor(size) as pool:
        list(pool.map(run, range(size)))


@pytest.mark.slow
@given(length=st.integers(0, 40), size=st.integers(1, 9), seed=st.integers(0, 1 << 30))
def test_every_rank_of_a_ring_ends_with_the_sum(length: int, size: int, seed: int) -> None:
    """Bit for bit the same on all ranks, also if the length is not divisible, or there are more ranks than elements."""
    random = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(length, generator=random) for _ in range(size)]
    total = torch.stack(tensors).sum(0)

    ring_of(tensors)

    assert all(torch.equal(tensors[0], tensor) for tensor in tensors)
    assert torch.allclose(total, tensors[0], atol=1e-5)

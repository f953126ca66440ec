"""The ring all-reduce for any length on any number of ranks, and flat gradients, without processes."""

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
from dptrace.trainers.parts.collectives import GradientSums, flat_gradients, ring_all_reduce, rounds  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor


def ring_of(tensors: list[Tensor]) -> list[int]:
    """All-reduce in place with a thread for each rank, and return how many elements each sent."""
    size = len(tensors)
    links: list[Queue[Tensor]] = [Queue() for _ in tensors]
    sent = [0] * size

    def run(rank: int) -> None:
        def exchange(out: Tensor, into: Tensor) -> None:
            sent[rank] += len(out)
            links[(rank + 1) % size].put(out.clone())
            into.copy_(links[rank].get(timeout=120))

        ring_all_reduce(tensors[rank], rank, size, exchange)

    with ThreadPoolExecutor(size) as pool:
        list(pool.map(run, range(size)))
    return sent


@pytest.mark.heavy
@given(length=st.integers(0, 40), size=st.integers(1, 9), seed=st.integers(0, 1 << 30))
def test_every_rank_ends_with_the_sum(length: int, size: int, seed: int) -> None:
    """Also if the length is not divisible, and with more ranks than elements."""
    random = torch.Generator().manual_seed(seed)
    tensors = [torch.randint(-1000, 1000, (length,), generator=random).float() for _ in range(size)]
    total = torch.stack(tensors).sum(0)

    ring_of(tensors)

    assert all(torch.equal(total, tensor) for tensor in tensors)


@pytest.mark.heavy
@given(length=st.integers(1, 40), size=st.integers(2, 9), seed=st.integers(0, 1 << 30))
def test_ranks_agree_to_the_last_bit(length: int, size: int, seed: int) -> None:
    """Each chunk is summed in one order on all ranks, although fractions round."""
    random = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(length, generator=random) for _ in range(size)]

    ring_of(tensors)

    assert all(torch.equal(tensors[0], tensor) for tensor in tensors)


@pytest.mark.heavy
@given(length=st.integers(0, 200), size=st.integers(2, 9))
def test_all_ranks_together_send_twice_n_minus_one_times_the_tensor(length: int, size: int) -> None:
    """That is 2 (n-1)/n of it each; if the length is not divisible, no rank is more than two elements off."""
    sent = ring_of([torch.zeros(length) for _ in range(size)])

    assert 2 * (size - 1) * length == sum(sent)
    assert all(abs(count - 2 * (size - 1) * length / size) <= 2 for count in sent)


@given(size=st.integers(2, 12), rank=st.integers(0, 11))
def test_a_rank_receives_the_chunk_that_its_neighbour_sends(size: int, rank: int) -> None:
    """In every round and on all ranks, because messages carry no tag that could identify them."""
    rank %= size
    before = list(rounds((rank - 1) % size, size))
    rank_rounds = list(rounds(rank, size))

    assert [sent for sent, _, _ in before] == [received for _, received, _ in rank_rounds]
    assert 2 * (size - 1) == len(rank_rounds)


def test_one_rank_keeps_what_it_has() -> None:
    """A ring of one sends nothing."""
    tensor = torch.tensor([1.0, 2.0])

    assert [0] == ring_of([tensor])
    assert [1.0, 2.0] == tensor.tolist()


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


# All-reduces that start while backward goes on.


class Network:
    """A process group of two ranks with equal gradients, which carries messages when they are waited for."""

    def __init__(self, size: int) -> None:
        self.size, self.sent = size, list[Any]()

    def get_world_size(self, group: object) -> int:
        return self.size

    def all_reduce(self, gradient: Any, group: object, async_op: bool) -> Network:
        self.sent.append(gradient)
        return self

    def wait(self) -> None:
        self.sent.pop().mul_(2)


def test_gradients_are_sent_in_the_last_backward_and_complete_after_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two micro-batches sends nothing; the second sends each layer's gradient, the last layer's first."""
    network = Network(2)
    monkeypatch.setattr(collectives, "dist", network)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(3, 1, bias=False))
    last = False
    sums = GradientSums(lambda: last)
    sums.add(model.named_parameters(), group=None)

    model(torch.ones(1, 2)).sum().backward()
    assert [] == network.sent
    last = True
    model(torch.ones(1, 2)).sum().backward()
    assert [(1, 3), (3, 2)] == [tuple(gradient.shape) for gradient in network.sent]
    before = model[0].weight.grad.clone()
    sums.wait()
    assert torch.equal(2 * before, model[0].weight.grad)


def test_a_rank_alone_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradients are the sum."""
    network = Network(1)
    monkeypatch.setattr(collectives, "dist", network)
    model = torch.nn.Linear(2, 3)
    sums = GradientSums(lambda: True)
    sums.add(model.named_parameters(), group=None)
    model(torch.ones(1, 2)).sum().backward()
    sums.wait()

    assert [] == network.sent

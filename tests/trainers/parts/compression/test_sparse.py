"""Compressors that send some of the numbers: which, as what, and in how many bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from torch import Tensor

torch = pytest.importorskip("torch")

from dptrace.trainers.parts.compression.sparse import Compressor, RandomK, Threshold, TopK  # noqa: E402

numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)
ratios = st.floats(0.01, 1)
CPU = torch.device("cpu")


def decoded(message: Compressor, gradient: Tensor) -> Tensor:
    """Return a gradient as the other ranks decode it."""
    into: Tensor = torch.zeros_like(gradient)
    message.unpack(message.pack(gradient), into)
    return into


@given(numbers, ratios)
@example([0.0, 0.0, 0.0], 0.5)
def test_top_k_sends_the_largest_as_they_are(values: list[float], ratio: float) -> None:
    """The number of values follows the ratio and is at least one; no omitted value is larger than a sent one."""
    gradient = torch.tensor(values)
    message = TopK(ratio)
    count = max(1, int(len(values) * ratio))
    sent = decoded(message, gradient)
    left = gradient - sent

    assert 8 * count == message.pack(gradient).nbytes
    assert torch.equal(sent + left, gradient)
    assert ((sent == 0) | (sent == gradient)).all()
    assert torch.count_nonzero(sent) <= count
    assert sorted(left.abs().tolist())[-1] <= sorted(gradient.abs().tolist())[-count]


@given(numbers, st.floats(1e-3, 1e6))
@example([0.0, 1.0], 1.0)
def test_a_threshold_sends_what_is_above_it(values: list[float], limit: float) -> None:
    """Eight bytes for each such value, and nothing of the others; zeros at the end change nothing."""
    gradient, message = torch.tensor(values), Threshold(limit)
    above = gradient.abs() > limit
    sent = message.pack(gradient)
    padded = torch.zeros_like(gradient)
    message.unpack(torch.nn.functional.pad(sent, (0, 16)), padded)

    assert 8 * int(above.sum()) == sent.nbytes
    assert torch.equal(gradient * above, decoded(message, gradient))
    assert torch.equal(gradient * above, padded)


@given(numbers, ratios, st.integers(0, 1 << 40))
def test_random_positions_are_the_same_on_every_rank(values: list[float], ratio: float, seed: int) -> None:
    """Two ranks with one seed choose one value in each of k parts: the sum of messages is that of the values."""
    mine, theirs = torch.tensor(values), torch.tensor(values).flip(0)
    ranks = [RandomK(ratio, seed) for _ in range(2)]
    for _ in range(3):
        first, second = (rank.draw(len(values), CPU) for rank in ranks)
        count = max(1, int(len(values) * ratio))
        into = torch.zeros_like(mine)
        first.unpack(first.pack(mine) + second.pack(theirs), into)
        positions = first.positions.tolist()

        assert 4 * count == first.pack(mine).nbytes
        assert sorted(set(positions)) == positions
        assert [p * count // len(values) for p in positions] == pytest.approx(range(count), abs=1)
        assert torch.equal((mine + theirs)[positions], into[positions])
        assert count >= torch.count_nonzero(into)


def test_every_position_has_its_turn() -> None:
    """In 400 draws of 5 out of 23, each position is drawn about as often as the share of its part says."""
    drawn = torch.zeros(23)
    random = RandomK(5 / 23, 1)
    for _ in range(400):
        drawn[random.draw(23, CPU).positions] += 1

    assert 2000 == drawn.sum()
    assert 50 < drawn.min() <= drawn.max() < 150

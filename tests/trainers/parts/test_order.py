"""The order of the data: that of torch's sampler, every sample once in an epoch, another order in the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dptrace.errors import UsageError

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("samples", "batch", "ranks"), [(20, 4, 2), (23, 6, 3), (16, 8, 1)])
def test_each_rank_gets_the_samples_of_torchs_sampler(samples: int, batch: int, ranks: int) -> None:
    """In the first two epochs, after a warm-up: the same numbers in the same order."""
    from torch.utils.data import DistributedSampler

    from dptrace.trainers.parts.order import Order

    order = Order(samples, batch, 7, warmup=3)
    steps, share = order.steps_per_epoch, batch // ranks
    for rank in range(ranks):
        data: Any = range(samples)
        sampler: Any = DistributedSampler(data, ranks, rank, seed=7, drop_last=True)
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            mine = np.concatenate([order.rows(3 + epoch * steps + step, rank, ranks) for step in range(steps)])
            assert list(sampler)[: steps * share] == mine.tolist()


def test_the_shares_are_disjoint_and_an_epoch_uses_each_sample_once() -> None:
    """Whatever the number of ranks, a step uses the same samples; the warm-up and other seeds have other orders."""
    from dptrace.trainers.parts.order import Order

    def numbers(step: int, rank: int = 0, ranks: int = 1, seed: int = 1) -> list[int]:
        rows = Order(24, 6, seed, warmup=2).rows(step, rank, ranks)
        assert isinstance(rows, np.ndarray)
        return [int(row) for row in rows]

    steps = [[row for rank in range(3) for row in numbers(2 + step, rank, 3)] for step in range(4)]

    assert list(range(24)) == sorted(row for step in steps for row in step)
    assert [sorted(numbers(2 + step)) for step in range(4)] == [sorted(step) for step in steps]
    assert numbers(2) != numbers(6)
    assert numbers(0) != numbers(4)
    assert numbers(2) != numbers(2, seed=2)
    assert 6 == len(numbers(7, seed=(1 << 63) - 1))


def test_without_a_seed_batches_follow_each_other() -> None:
    """And begin again after the last full batch."""
    from dptrace.trainers.parts.order import Order

    order = Order(11, 4, None)

    assert [slice(2, 4), slice(6, 8), slice(2, 4)] == [order.rows(step, 1, 2) for step in range(3)]


def test_a_batch_that_the_data_does_not_fill_is_refused() -> None:
    """The message has the number of samples."""
    from dptrace.trainers.parts.order import Order

    with pytest.raises(UsageError, match="only 7 samples"):
        Order(7, 8, None)

"""The task of a training: shards that together are the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dptrace.record import Options

torch = pytest.importorskip("torch")


def options(*arguments: str) -> Options:
    from dptrace.record import parse_options

    return parse_options("", "single", list(arguments))


@pytest.mark.heavy
def test_every_rank_gets_its_own_shard_of_the_same_batch() -> None:
    """The concatenated shards of all ranks are the batch of a single process, and batches differ."""
    from dptrace.record import World
    from dptrace.trainers.parts.task import build_task

    chosen, cpu = options("--model", "small", "--seed", "7", "--batch-size", "12"), torch.device("cpu")
    (whole, classes), (second, _) = build_task(chosen, World(0, 1, cpu)).batches(2)
    shards = [next(build_task(chosen, World(rank, 3, cpu)).batches(1)) for rank in range(3)]

    assert torch.equal(whole, torch.cat([x for x, _ in shards]))
    assert torch.equal(classes, torch.cat([y for _, y in shards]))
    assert not torch.equal(whole, second)
    assert whole.shape == (12, 784)


def test_a_training_that_goes_on_sees_the_batches_that_come_next() -> None:
    """Starting at step 2 yields the batches of step 2 and later."""
    from dptrace.record import World
    from dptrace.trainers.parts.task import build_task

    chosen = options("--model", "small", "--batch-size", "8")
    task = build_task(chosen, World(0, 1, torch.device("cpu")))
    all_of_them = list(task.batches(4))
    chosen.first_step = 2
    later = list(task.batches(4))

    assert 2 == len(later)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(all_of_them[2:], later, strict=True))

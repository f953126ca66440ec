"""DDP's buckets."""

from __future__ import annotations

import pytest

from dptrace.errors import UsageError
from dptrace.simulate.parallelism import data_parallel
from dptrace.simulate.parallelism.data_parallel import buckets
from tests.support.explanations import explained


def test_buckets_are_those_of_torch() -> None:
    """As torch assigns them by size, with DDP's default limits of 1 and 25 MiB or one limit, from the last layer on."""
    dist = pytest.importorskip("torch.distributed")
    torch = pytest.importorskip("torch")
    for megabytes in (0.5, 4, 10, 30):
        elements = int(megabytes * 2**20 / 4)
        tensors = [torch.empty(elements, device="meta") for _ in range(7)]
        for cap in (None, 12):
            limits = [2**20, 25 * 2**20] if cap is None else [cap * 2**20]
            theirs, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * 7)
            ours = buckets(7, 4 * elements, cap and cap * 2**20)

            assert [[6 - index for index in bucket] for bucket in theirs] == ours


@pytest.mark.parametrize("ranks", range(2, 10))
def test_the_volume_is_that_of_one_all_reduce(ranks: int) -> None:
    """However many buckets there are: 2(P-1)/P·n, and 2(P-1) messages for each bucket."""
    for size in (10 * 2**20, 2**30):
        cost = explained("ddp-buckets", ranks, 60e6, bucket_bytes=size).cost

        assert (2 * (ranks - 1) / ranks * 60e6,) * ranks == pytest.approx(cost.sent_bytes)
        assert cost.figures["buckets"] * 2 * (ranks - 1) == cost.messages


def test_an_all_reduce_begins_when_its_bucket_is_full() -> None:
    """Not before the last gradient of the bucket, and not during another all-reduce."""
    explanation = explained("ddp-buckets", 2, 120e6, layers=6, bucket_bytes=40e6)
    work = {one.label: one for one in explanation.work if one.rank == 0}

    titles = [step.title for step in explanation.steps if step.title.startswith("AR0")]
    assert ["AR0: all-reduce of the gradients of layers 5, 4"] == titles
    assert work["AR0"].start == work["B4"].end
    assert work["AR1"].start == work["B2"].end
    assert work["AR2"].start == work["AR1"].end >= work["B0"].end
    assert work["O"].start == work["AR2"].end
    assert work["AR2"].end - work["B0"].end == explanation.cost.figures["exposed_units"]


def test_a_bucket_of_one_layer_is_named_in_the_singular() -> None:
    """All buckets of a limit below the size of a layer."""
    steps = explained("ddp-buckets", 2, 120e6, layers=6, bucket_bytes=15e6).steps

    assert "AR0: all-reduce of the gradients of layer 5" in [step.title for step in steps]


def test_wrong_averages_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that is not averaged raises an error."""
    monkeypatch.setattr(data_parallel._Replicas, "average", lambda self, bucket: None)

    with pytest.raises(AssertionError):
        explained("ddp-buckets", 2)


def test_layers_have_limits() -> None:
    """At least one."""
    with pytest.raises(UsageError, match="--layers"):
        explained("ddp-buckets", 2, layers=25)

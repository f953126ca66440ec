"""DDP's buckets, FSDP and ZeRO."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.errors import UsageError
from dptrace.simulate import data_parallel
from dptrace.simulate.data_parallel import buckets, state_bytes
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


@pytest.mark.parametrize(
    ("name", "part", "method", "options"),
    [
        ("ddp-buckets", "_Replicas", "average", {}),
        ("fsdp", "_Sharded", "update", {}),
        *(("zero", "_Partitioned", "update", {"stage": stage}) for stage in (1, 2, 3)),
    ],
)
def test_wrong_results_are_not_drawn(
    name: str, part: str, method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that is not averaged, or a rank that forgets to update, raises an error."""
    monkeypatch.setattr(getattr(data_parallel, part), method, lambda *arguments: [])

    with pytest.raises(AssertionError):
        explained(name, 2, **options)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [("ddp-buckets", {"layers": 25}, "--layers"), ("fsdp", {"layers": 13}, "--layers"), ("zero", {"stage": 4}, "1, 2")],
)
def test_what_is_out_of_range_is_refused(name: str, options: dict[str, Any], says: str) -> None:
    """The message names the option."""
    with pytest.raises(UsageError, match=says):
        explained(name, 2, **options)


# FSDP.


@pytest.mark.parametrize("ranks", range(2, 10))
def test_three_times_the_parameters_travel(ranks: int) -> None:
    """Guide "Distributed Training", section 8.4: 3N, for an all-reduce's 2N."""
    cost = explained("fsdp", ranks, 1e9).cost

    assert (3 * (ranks - 1) / ranks * 1e9,) * ranks == pytest.approx(cost.sent_bytes)
    assert 1.5 == pytest.approx(cost.sent_bytes[0] / explained("ddp-buckets", ranks, 1e9).cost.sent_bytes[0])


def test_no_more_than_two_layers_are_whole() -> None:
    """The one that computes, and the next."""
    explanation = explained("fsdp", 3, layers=6)
    whole = [sum(cell.label == "whole" for cell in step.after[0]) for step in explanation.steps]

    assert 2 == max(whole)
    assert 0 == whole[-1]
    assert 2 == explanation.cost.figures["most_gathered_layers"]


def test_a_layer_is_gathered_before_it_computes_and_scattered_after() -> None:
    """Guide "Distributed Training", section 8.3; all-gathers overlap the compute of the layer before."""
    work = [one for one in explained("fsdp", 2, layers=3).work if one.rank == 0]
    starts: dict[str, list[float]] = {}
    for one in work:
        starts.setdefault(one.label, []).append(one.start)

    for layer in range(3):
        forward_gather, backward_gather = starts[f"AG{layer}"]
        assert (
            forward_gather < starts[f"F{layer}"][0] < backward_gather < starts[f"B{layer}"][0] < starts[f"RS{layer}"][0]
        )
    assert starts["AG1"][0] == starts["F0"][0]


# ZeRO's stages.


def test_the_paper_and_the_guide() -> None:
    """Rajbhandari et al. 2020, figure 1: 7.5 B parameters on 64 GPUs. The guide's 112 GB for 7 B without ZeRO."""
    assert [120.0, 31.4, 16.6, 1.9] == [round(state_bytes(7.5e9, 64, stage) / 1e9, 1) for stage in range(4)]
    assert 112e9 == state_bytes(7e9, 8, 0)


@pytest.mark.parametrize("ranks", range(2, 10))
@pytest.mark.parametrize(("stage", "times"), [(1, 2), (2, 2), (3, 3)])
def test_volumes_of_the_stages(stage: int, times: int, ranks: int) -> None:
    """Guide "Distributed Training", section 8.4: 2N, 2N and 3N."""
    cost = explained("zero", ranks, 1e6, stage=stage).cost

    assert (times * (ranks - 1) / ranks * 1e6,) * ranks == pytest.approx(cost.sent_bytes)


def test_what_each_stage_keeps_whole() -> None:
    """After the step: parameters in stages 1 and 2, only shards in stage 3."""
    held = {stage: [cell.label for cell in explained("zero", 2, stage=stage).steps[-1].after[1]] for stage in (1, 2, 3)}

    assert ["all", "shard 1 summed", "shard 1 updated"] == held[1]
    assert ["all", "shard 1", "shard 1 updated"] == held[2]
    assert ["shard 1 updated", "shard 1", "shard 1 updated"] == held[3]

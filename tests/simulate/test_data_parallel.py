"""DDP's buckets, FSDP and ZeRO."""

from __future__ import annotations

import pytest

from dptrace.simulate.data_parallel import buckets
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


# FSDP.


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


def test_what_each_stage_keeps_whole() -> None:
    """After the step: parameters in stages 1 and 2, only shards in stage 3."""
    held = {stage: [cell.label for cell in explained("zero", 2, stage=stage).steps[-1].after[1]] for stage in (1, 2, 3)}

    assert ["all", "shard 1 summed", "shard 1 updated"] == held[1]
    assert ["all", "shard 1", "shard 1 updated"] == held[2]
    assert ["shard 1 updated", "shard 1", "shard 1 updated"] == held[3]

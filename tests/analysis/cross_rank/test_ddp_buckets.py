"""DDP's buckets among the collectives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dptrace.analysis.cross_rank.ddp_buckets import (
    Bucket,
    bucket_numbers,
    buckets,
    call_names,
    instance_names,
    short_name,
)
from dptrace.analysis.matching.match import Matches, match
from dptrace.run.run import Run
from dptrace.timeline.model import Collective
from tests.support.builders import TimelineBuilder
from tests.support.rank_cases import rank as one_rank
from tests.support.rank_cases import reduce

MS = 1_000_000
DDP = {"rebuilt_bucket_sizes": "100, 300, 100", "rebuilt_per_bucket_param_indices": "5 4, 3, 2 1 0"}


def reduced(*sizes: int) -> Matches:
    """Make a step of all-reduces of these sizes on two ranks."""
    calls = [reduce(0, (i + 1) * MS, size) for i, size in enumerate(sizes)]
    return match([one_rank(0, calls), one_rank(1, calls)])


@pytest.mark.parametrize("info", [{"ddp": DDP}, {"ranks": [{"rank": 0}, {"rank": 1, "ddp": DDP}]}])
def test_buckets_are_what_has_their_sizes_in_turn(info: dict[str, Any]) -> None:
    """Another all-reduce between them is not a bucket; two backward passes per step reduce all buckets twice."""
    matches = reduced(100, 300, 8, 100, 100, 300, 100)

    found = buckets(matches, info)

    assert found is not None
    assert [0, 1, -1, 2, 0, 1, 2] == found.bucket.tolist()
    assert (Bucket(0, 100, (5, 4)), Bucket(1, 300, (3,)), Bucket(2, 100, (2, 1, 0))) == found.buckets
    assert () == found.notes
    assert ["bucket 0", "bucket 1", "", "bucket 2"] == instance_names(matches, found)[:4]


def test_each_group_of_replicas_has_its_own() -> None:
    """With layers shared by ranks there are several groups; the labeled all-reduces of those layers are not buckets."""
    devices = []
    for number in range(4):
        about: dict[str, Any] = {"group": str(number % 2), "group_size": 2, "ranks": (number % 2, number % 2 + 2)}
        calls = [reduce(0, (i + 1) * MS, size, **about) for i, size in enumerate((100, 300, 100))]
        calls += [reduce(0, 2 * MS + 500, 300, group="tp", label="TP::all_reduce (0+2)")]
        devices.append(one_rank(number, calls))
    matches = match(devices)
    found = buckets(matches, {"ddp": DDP})

    assert found is not None
    labels = [what.label for what in matches.collectives]
    assert [0, 0, 1, 1, 2, 2] == sorted(found.bucket[[not label for label in labels]].tolist())
    assert [-1] == [b for b, label in zip(found.bucket.tolist(), labels, strict=True) if label]
    assert () == found.notes


def test_other_sizes_than_ddps_are_reported() -> None:
    """A compression hook halves the sizes."""
    found = buckets(reduced(50, 150, 50), {"ddp": DDP})

    assert found is not None
    assert {-1} == set(found.bucket.tolist())
    assert "buckets of 100, 300, 100 bytes" in found.notes[0]
    assert "ProfilerStep#0" in found.notes[0]


def test_without_logging_data_there_are_none() -> None:
    """Traces not recorded with dptrace, or trainers without DDP."""
    for info in ({}, {"ddp": None}, {"ddp": {"rebuilt_bucket_sizes": ""}}, {"ranks": 5}):
        assert buckets(reduced(100), info) is None
        assert [""] == instance_names(reduced(100), None)


def test_damaged_logging_data_names_no_bucket() -> None:
    """Malformed numbers are ignored, and so are parameters that do not match the sizes."""
    found = buckets(
        reduced(100), {"ddp": {"rebuilt_bucket_sizes": "100, x", "rebuilt_per_bucket_param_indices": "1, 2"}}
    )

    assert found is not None
    assert (Bucket(0, 100, ()),) == found.buckets


# Short names of single collectives.


def test_a_name_says_what_the_label_says() -> None:
    """Layer, micro-batch and peer, with the field's abbreviation of the kind; nothing where nothing is known."""
    for kind, label, peer, expected in (
        ("all_gather", "FSDP::all_gather (layers.3)", -1, "AG layers.3"),
        ("reduce_scatter", "FSDP::post_backward_reduce (layers.3)", -1, "RS layers.3"),
        ("all_reduce", "TP::all_reduce (norms and biases)", -1, "AR norms and biases"),
        ("all_to_all", "MoE::dispatch (1.mlp)", -1, "A2A dispatch 1.mlp"),
        ("send", "PP:0SEND_F1", 2, "send F1 → rank 2"),
        ("recv", "PP:1RECV_B3", -1, "receive B3"),
        ("all_reduce", "DP::all_reduce (1.up.weight)", -1, "AR 1.up.weight"),
        ("send", "Ring::reduce-scatter (chunk 2 out, 1 in)", 3, "send reduce-scatter chunk 2 → rank 3"),
        ("recv", "Ring::reduce-scatter (chunk 2 out, 1 in)", -1, "receive reduce-scatter chunk 1"),
        ("send_recv", "Ring::all-gather (chunk 0 out, 3 in)", -1, "send_recv all-gather 0 out, 3 in"),
        ("recv", "", 0, "receive ← rank 0"),
        ("broadcast", "made by hand", -1, "broadcast made by hand"),
        ("all_reduce", "", -1, ""),
        ("other", "", -1, ""),
    ):
        assert expected == short_name(Collective(kind, label=label, peer=peer))


def test_each_rank_s_calls_have_the_names_of_their_buckets() -> None:
    """In the order of its timeline; an all-reduce that is no bucket has no name, nor has one without counterpart."""
    timelines = []
    for rank in range(2):
        build = TimelineBuilder(rank).all_reduce(10, 20, 8)
        timelines.append(build.all_reduce(30, 40, 100).compute(35, 50).all_reduce(60, 90, 300).build())
    run = Run("two", tuple(timelines), world_size=2)
    matches = run.cross_rank.matches
    found = buckets(matches, {"ddp": {"rebuilt_bucket_sizes": "100, 300"}})

    assert found is not None
    names = call_names(timelines, matches, instance_names(matches, found))
    assert (("", "AR bucket 0", "AR bucket 1"),) * 2 == names


def ddp(*steps: tuple[int, ...], uses_ddp: bool = True) -> dict[int, int]:
    """Return the buckets of steps that reduce gradients of these sizes, after an all-reduce of something else."""
    build = TimelineBuilder(bounds=tuple(1_000 * step for step in range(len(steps) + 1)))
    for step, sizes in enumerate(steps):
        build.all_reduce(1_000 * step + 1, 1_000 * step + 9, 4)
        for place, size in enumerate(sizes):
            what = Collective("all_reduce", size, "Float", "0", 2, gradients=True)
            build.collective(1_000 * step + 100 * place + 50, 1_000 * step + 100 * place + 90, what)
    timeline = build.build()
    return bucket_numbers(replace(timeline, uses_ddp=uses_ddp, launch_ns=np.asarray(timeline.start_ns)))


def test_ddp_s_buckets_are_counted_where_no_run_json_lists_them() -> None:
    """In the order of their launches, one pass per step; what autograd did not launch for a gradient is none."""
    assert {1: 0, 2: 1, 3: 2, 5: 0, 6: 1, 7: 2} == ddp((8, 32, 16), (8, 32, 16))


def test_unclear_buckets_are_not_counted() -> None:
    """Two passes in a step, equal sizes that may be two, a step that lacks a bucket, hooks of another library."""
    assert {} == ddp((8, 32, 8, 32), (8, 32, 8, 32))
    assert {} == ddp((8, 8))
    assert {1: 0, 2: 1, 6: 0, 7: 1} == ddp((8, 32), (32,), (8, 32))
    assert {} == ddp((8, 32), uses_ddp=False)

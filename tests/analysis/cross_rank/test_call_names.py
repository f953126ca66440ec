"""Short names of single collectives."""

from __future__ import annotations

import pytest

from dptrace.analysis.cross_rank.call_names import call_names, short_name
from dptrace.analysis.cross_rank.ddp_buckets import buckets, instance_names
from dptrace.run.run import Run
from dptrace.timeline.model import Collective
from tests.support.builders import TimelineBuilder


@pytest.mark.parametrize(
    ("kind", "label", "peer", "expected"),
    [
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
    ],
)
def test_a_name_says_what_the_label_says(kind: str, label: str, peer: int, expected: str) -> None:
    """Layer, micro-batch and peer, with the field's abbreviation of the kind; nothing where nothing is known."""
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

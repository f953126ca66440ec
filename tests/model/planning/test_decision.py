"""The guide's decision tree with the numbers that decide."""

from __future__ import annotations

from typing import Any

import pytest

import dptrace
from dptrace.model.planning.decision import RULES, Decision, decide
from dptrace.model.planning.describe import Description
from dptrace.model.planning.search import search


def decided(**described: Any) -> Decision:
    description = Description(**described)
    return decide(description, search(description))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("described", "strategy"),
    [
        ({"params": 7e9}, "DDP or FSDP"),
        ({"params": 13e9}, "TP 2 to 8 × FSDP"),
        ({"params": 70e9, "gpus": 64}, "TP 8 × PP 2 to 4 × FSDP"),
        ({"params": 175e9, "gpus": 128}, "TP 8 × PP 8 to 16 × DP"),
        ({"layers": 60, "hidden": 5120, "mlp": 12_288, "experts": 16, "gpus": 16, "tp": 4}, "EP × TP × PP × DP"),
    ],
)
def test_the_tree_ends_where_the_guide_says(described: dict[str, Any], strategy: str) -> None:
    """Guide, 12.5: by size; from 10 to 100 billion by what a node holds; above, by dense or experts."""
    assert strategy == decided(**described).strategy


@pytest.mark.heavy
def test_each_question_has_its_number_and_its_source() -> None:
    """7 billion on 40 GB: DDP and ZeRO-1 do not fit, ZeRO-2 does; NVLink 3 is just as fast as the guide asks for."""
    path = {one.name: one for one in decided(params=7e9, gpu="a100-40", link="nvlink3").path}

    assert pytest.approx(112e9, rel=0.05) == path["replicate"].value
    assert pytest.approx(0.9 * 42.3e9) == path["replicate"].limit
    assert path["replicate"].answer.startswith("no")
    assert path["zero_stage"].answer.startswith("ZeRO-2")
    assert (600e9, 600e9) == (path["tensor_link"].value, path["tensor_link"].limit)
    assert all(one.source for one in path.values())


@pytest.mark.heavy
@pytest.mark.parametrize("link", ["pcie4", "nvlink2", "nvlink-400", "nvlink4"])
def test_tensor_parallelism_is_advised_where_the_best_plan_has_it(link: str) -> None:
    """Whatever the guide says of links below 600 GB/s; the number that it asks for is beside it."""
    description = Description(params=34e9, gpus=16, batch=64, seq=4096, link=f"{link},ib-hdr")
    found = search(description)
    asked = next(one for one in decide(description, found).path if one.name == "tensor_link")

    assert asked.answer.startswith("yes") == (found[0].plan.layout.tensor > 1)
    assert "asks for 600" in asked.numbers


def test_what_covers_communication_is_computation_as_predicted() -> None:
    """A step that hides all but 2 % computes; where it does not, what grows is the batch that is gathered for."""
    hidden = decided(params=7e9, gpus=64, strategy="fsdp", seq=4096, batch=64, link="nvlink4,ib-hdr")
    exposed = decided(params=7e9, gpus=64, strategy="fsdp", micro_batch=1, link="nvlink4,eth-25")
    once = decided(params=1e9, gpus=64, strategy="ddp", micro_batch=1, batch=64, link="nvlink4,eth-25")
    asked = [next(one for one in path.path if one.name == "ridge").answer for path in (hidden, exposed, once)]

    assert not asked[0].startswith("no")
    assert "larger micro-batch" in asked[1]
    assert "larger batch" in asked[2]


def test_gathers_are_covered_by_larger_micro_batches() -> None:
    """Twice the micro-batches of FSDP gather twice: the batch that covers them is that of one, and so is the advice."""
    some, more = (
        dptrace.predict(params=7e9, gpus=64, strategy="fsdp", micro_batch=1, recompute="full", batch=64 * count,
                        link="nvlink4,eth-25")["roofline"][-1]
        for count in (2, 8)
    )  # fmt: skip

    assert some["critical_batch"] == pytest.approx(more["critical_batch"])
    assert "micro-batch" in more["advice"]


def test_the_rule_of_four_micro_batches_is_corrected() -> None:
    """Guide, 10.8: M ≥ 4·P leaves up to 20 %; the note has the right number."""
    assert "20 %" in RULES["micro_batches"].note
    path = {one.name: one for one in decided(params=70e9, gpus=64, tp=8, pp=8, batch=64, schedule="gpipe").path}

    assert path["bubble"].answer.startswith("no")
    assert "63" in path["bubble"].numbers

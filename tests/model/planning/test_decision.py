"""The guide's decision tree with the numbers that decide."""

from __future__ import annotations

from typing import Any

import pytest

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


def test_each_question_has_its_number_and_its_source() -> None:
    """7 billion on 40 GB: DDP and ZeRO-1 do not fit, ZeRO-2 does; NVLink 3 is just fast enough for TP."""
    path = {one.name: one for one in decided(params=7e9, gpu="a100-40", link="nvlink3").path}

    assert pytest.approx(112e9, rel=0.05) == path["replicate"].value
    assert pytest.approx(0.9 * 42.3e9) == path["replicate"].limit
    assert path["replicate"].answer.startswith("no")
    assert path["zero_stage"].answer.startswith("ZeRO-2")
    assert (600e9, 600e9) == (path["tensor_link"].value, path["tensor_link"].limit)
    assert path["tensor_link"].answer.startswith("yes")
    assert all(one.source for one in path.values())


def test_the_rule_of_four_micro_batches_is_corrected() -> None:
    """Guide, 10.8: M ≥ 4·P leaves up to 20 %; the note has the right number."""
    assert "20 %" in RULES["micro_batches"].note
    path = {one.name: one for one in decided(params=70e9, gpus=64, tp=8, pp=8, batch=64, schedule="gpipe").path}

    assert path["bubble"].answer.startswith("no")
    assert "63" in path["bubble"].numbers

"""Distribution of tokens over experts."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.analysis.per_gpu.expert_load import ExpertLoad, expert_loads


def test_shares_are_of_the_tokens_of_a_layer() -> None:
    """Shares sum to 1 in each layer; the first among equals is named."""
    first, second = expert_loads({"options": {"expert_load": [[10, 30, 20, 20], [5, 5, 0, 0]]}})

    assert ExpertLoad(0, (0.125, 0.375, 0.25, 0.25)) == first
    assert (1, 0, 0.25) == (first.most_loaded, first.least_loaded, first.even_share)
    assert (1, 0, 2) == (second.layer, second.most_loaded, second.least_loaded)


@pytest.mark.parametrize(
    "options", [None, [], {}, {"expert_load": 3}, {"expert_load": [[], [0, 0], ["a"], [1, -1], [True, 2], [0.5], 7]}]
)
def test_what_is_no_load_is_left_out(options: Any) -> None:
    """Runs without experts, layers without tokens, and malformed run.json files."""
    assert () == expert_loads({"options": options}) == expert_loads({})


def test_a_layer_keeps_its_number_where_another_is_left_out() -> None:
    """Layers are numbered as in run.json's list."""
    assert [1] == [load.layer for load in expert_loads({"options": {"expert_load": ["", [1, 2]]}})]


def test_ranks_with_other_layers_complete_each_other() -> None:
    """Of a mesh with stages each rank has its own layers; with a capacity, the share of dropped tokens is known."""
    first = {"layers": [0], "expert_load": [[6, 2]], "expert_dropped": [[2, 0]]}
    second = {"layers": [1, 2], "expert_load": [[4, 4], [0, 0]], "expert_dropped": [[0, 0], [0, 0]]}
    ranks = [
        {"experts": second},
        {"experts": first},
        {"experts": second},
        {"experts": {"layers": 3}},
        {"experts": None},
    ]

    assert (ExpertLoad(0, (0.75, 0.25), 0.25), ExpertLoad(1, (0.5, 0.5), 0.0)) == expert_loads({"ranks": ranks})

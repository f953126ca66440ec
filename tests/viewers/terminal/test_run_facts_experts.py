"""The load of experts, in a line for each layer."""

from __future__ import annotations

from dptrace.viewers.terminal.run_facts import MAX_LAYERS, expert_lines


def test_each_layer_names_its_most_and_least_loaded_expert() -> None:
    """With their shares of the tokens, and the share of an even load."""
    assert [
        "Tokens of each expert, all steps (an even load is 25.0 %):",
        "  layer 0: most 37.5 % (expert 1), least 12.5 % (expert 0)",
        "  layer 1: most 50.0 % (expert 0), least 0.0 % (expert 2)",
    ] == expert_lines({"options": {"expert_load": [[10, 30, 20, 20], [5, 5, 0, 0]]}})


def test_a_run_without_experts_says_nothing() -> None:
    """Most runs have none."""
    assert [] == expert_lines({"options": {"lr": 0.1}})


def test_many_layers_are_cut_unless_all_are_asked_for() -> None:
    """What is left out is counted."""
    info = {"options": {"expert_load": [[1, 2]] * (MAX_LAYERS + 3)}}

    assert (MAX_LAYERS + 2, "  3 more layers; --all shows them.") == (len(expert_lines(info)), expert_lines(info)[-1])
    assert MAX_LAYERS + 4 == len(expert_lines(info, every=True))

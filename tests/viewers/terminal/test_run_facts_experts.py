"""The load of experts, in a line for each layer."""

from __future__ import annotations

from dptrace.viewers.terminal.summary import MAX_LAYERS, expert_lines, in_flight_lines, mesh_lines


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
    assert MAX_LAYERS + 4 == len(expert_lines(info, all_rows=True))


def test_dropped_tokens_are_reported() -> None:
    """With a capacity, as a share of the layer's tokens."""
    info = {"options": {"expert_load": [[6, 2]], "expert_dropped": [[2, 0]]}}

    assert expert_lines(info)[1].endswith("dropped 25.0 %")


def test_ranks_of_a_pipeline_and_of_a_mesh_have_a_line_each() -> None:
    """What each holds beside what its schedule holds, and where it stands; without --all the first ones."""
    entry = {
        "schedule": "gpipe",
        "ranks": 2,
        "stages": [0],
        "micro_batches": 4,
        "in_flight": 4,
        "in_flight_bytes": 2000,
    }
    info = {"ranks": [{"rank": rank, "pipeline": entry | {"rank": rank % 2}} for rank in range(MAX_LAYERS + 2)]}
    mesh = {rank: {"dp": rank // 2, "tp": rank % 2} for rank in range(MAX_LAYERS + 2)}

    assert "  rank 1: 4 (expected 4), 2.0 kB" == in_flight_lines(info)[2]
    assert ["Mesh: dp 5 × tp 2", "  rank 0: dp 0 · tp 0"] == mesh_lines(mesh)[:2]
    for lines, all_rows in (
        (in_flight_lines(info), in_flight_lines(info, True)),
        (mesh_lines(mesh), mesh_lines(mesh, True)),
    ):
        assert "  2 more ranks; --all shows them." == lines[-1]
        assert MAX_LAYERS + 3 == len(all_rows)
    assert [] == in_flight_lines({}) == mesh_lines({})

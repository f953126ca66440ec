"""The coordinates of ranks in a mesh."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.analysis.matching.calls import Group
from dptrace.analysis.matching.coordinates import coordinates, place


def test_groups_of_a_mesh_show_where_a_rank_stands() -> None:
    """Outer dimensions first, by their purpose; torch's descriptions and Megatron's."""
    mesh = [Group("3", (0, 4), 2, "mesh_dp"), Group("4", (4, 6), 2, "mesh_pp"), Group("5", (4, 5), 2, "mesh_tp")]
    megatron = [Group("1", (1, 3), 2, "TENSOR_MODEL_PARALLEL_GROUP"), Group("2", (2, 3), 2, "DATA_PARALLEL_GROUP")]

    assert "dp 1 · pp 0 · tp 0" == place(coordinates(mesh, {}, 8)[4])
    assert {"pp": 1} == coordinates(mesh, {}, 8)[6]
    assert "dp 1 · tp 1" == place(coordinates(megatron, {}, 4)[3])


def test_what_is_unclear_is_not_reported() -> None:
    """Groups without a dimension, ranks that the trace does not list, and a rank at two places of one dimension."""
    assert {} == coordinates([Group("0", (0, 1), 2, "default_pg"), Group("1", (), 2, "mesh_tp")], {}, 2)
    twice = [Group("1", (0, 1), 2, "mesh_dp"), Group("2", (1, 2), 2, "mesh_dp"), Group("3", (1, 3), 2, "mesh_tp")]
    assert {1: {"tp": 0}, 3: {"tp": 1}} == coordinates(twice, {}, 4)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"mode": "3d", "options": {"tp": 2, "pp": 2}}, "dp 1 · pp 0 · tp 1"),
        ({"mode": "dp-tp", "options": {"tp": 2}}, "dp 2 · tp 1"),
        ({"mode": "ddp", "options": {"tp": 2}}, ""),
        ({"mode": "3d", "options": {"tp": 0, "pp": 2}}, ""),
        ({"mode": "3d", "options": {"tp": "2", "pp": 2}}, ""),
        ({"mode": "3d", "options": None}, ""),
        ({"mode": "3d", "options": {"tp": 2, "pp": 2}, "script": "train.py"}, ""),
        ({"mode": ["3d"]}, ""),
    ],
)
def test_a_trainer_s_options_show_its_mesh(metadata: dict[str, Any], expected: str) -> None:
    """Gloo's traces list no groups; whatever else ``run.json`` may hold tells nothing."""
    assert expected == place(coordinates([], metadata, 8).get(5, {}))


def test_a_rank_s_own_coordinates_come_first() -> None:
    """run.json has them for dptrace's meshes; entries that are none are left out."""
    ranks: list[Any] = [{"rank": 5, "coordinates": {"dp": 1, "ep": 0}}, {"rank": 6, "coordinates": None}, 3]
    broken = [{"rank": 0, "coordinates": numbers} for numbers in ({"dp": -1}, {"<b>": 1}, {"dp": True}, [1], {1: 1})]

    assert {5: {"dp": 1, "ep": 0}} == coordinates([Group("3", (5, 6), 2, "mesh_tp")], {"ranks": ranks}, 8)
    assert {} == coordinates([], {"ranks": broken}, 8) == coordinates([], {"ranks": 3}, 8)

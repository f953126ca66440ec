"""The communication calls of all ranks in one table."""

from __future__ import annotations

from typing import Any

from dptrace.analysis.matching.calls import NO_STEP, Group, calls_of, coordinates, place
from dptrace.timeline.model import Collective
from dptrace.timeline.steps import WHOLE_TRACE
from tests.support.rank_cases import rank, reduce

MS = 1_000_000


def one(kind: str, size: int = 0, **about: object) -> Collective:
    return Collective(kind, size, "Float", "0", **about)  # type: ignore[arg-type]


def test_what_two_ranks_can_show_of_one_collective_is_of_one_sort() -> None:
    """Kind, group, dtype and bytes, as far as these are equal on all ranks; and the endpoints of messages."""
    for first, second, alike in (
        (one("all_reduce", 8), one("all_reduce", 8), True),
        (one("all_reduce", 8), one("all_reduce", 16), False),
        (one("all_reduce", 8), one("all_gather", 8), False),
        (one("all_reduce", 8), Collective("all_reduce", 8, "Half", "0"), False),
        (one("all_reduce", 8, ranks=(0, 1)), one("all_reduce", 8, ranks=(0, 2)), False),
        (one("all_to_all", 8), one("all_to_all", 16), True),  # parts may be uneven
        (one("scatter", 8), one("scatter", 0), True),
        (one("send", 8, peer=1), one("recv", 8, peer=0), True),
        (one("send", 8, peer=1), one("send", 8, peer=0), False),
        (one("send", 8, ranks=(0, 1)), one("recv", 8, ranks=(0, 1)), True),
    ):
        calls = calls_of([rank(0, [(0, 0, 1, first)]), rank(1, [(0, 0, 1, second)])])
        assert alike == (calls.signature[0] == calls.signature[1])


def test_a_call_of_unknown_group_is_its_streams() -> None:
    """Each of NCCL's streams serves one group; if a stream serves several, the group stays unknown."""
    known = [reduce(0, MS, ranks=(0, 1), group_size=2), reduce(0, 2 * MS, group="1")]
    orphan = (-1, 0, 10, Collective("all_reduce"))
    clear = calls_of([rank(0, [known[0], orphan])])
    unclear = calls_of([rank(0, [*known, orphan])])

    assert [Group("0", (0, 1), 2, "")] == [clear.groups[i] for i in set(clear.group.tolist())]
    assert [False, True] == clear.described.tolist()
    assert clear.family[0] == clear.family[1]
    assert Group() == unclear.groups[unclear.group[0]]


def test_steps_are_labels_only_where_they_are_marked() -> None:
    """An unmarked trace has no step if others are marked; if none is, the whole trace is one step."""
    marked, plain = rank(0, [reduce(0, MS), reduce(-1, 5)]), rank(1, [reduce(0, MS)], (WHOLE_TRACE,))

    mixed, alone = calls_of([marked, plain]), calls_of([plain])

    assert ("ProfilerStep#0", "ProfilerStep#1") == mixed.step_names
    assert [NO_STEP, 0, NO_STEP] == mixed.step_index.tolist()
    assert [[True, False], [True, False]] == mixed.device_has_step.tolist()
    assert ((WHOLE_TRACE,), [0]) == (alone.step_names, alone.step_index.tolist())


# The coordinates of ranks in a mesh.


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


def test_a_trainer_s_options_show_its_mesh() -> None:
    """Gloo's traces list no groups; whatever else ``run.json`` may hold tells nothing."""
    for metadata, expected in (
        ({"mode": "3d", "options": {"tp": 2, "pp": 2}}, "dp 1 · pp 0 · tp 1"),
        ({"mode": "dp-tp", "options": {"tp": 2}}, "dp 2 · tp 1"),
        ({"mode": "ddp", "options": {"tp": 2}}, ""),
        ({"mode": "3d", "options": {"tp": 0, "pp": 2}}, ""),
        ({"mode": "3d", "options": {"tp": "2", "pp": 2}}, ""),
        ({"mode": "3d", "options": None}, ""),
        ({"mode": "3d", "options": {"tp": 2, "pp": 2}, "script": "train.py"}, ""),
        ({"mode": ["3d"]}, ""),
    ):
        assert expected == place(coordinates([], metadata, 8).get(5, {}))


def test_a_rank_s_own_coordinates_come_first() -> None:
    """run.json has them for dptrace's meshes; entries that are none are left out."""
    ranks: list[Any] = [{"rank": 5, "coordinates": {"dp": 1, "ep": 0}}, {"rank": 6, "coordinates": None}, 3]
    broken = [{"rank": 0, "coordinates": numbers} for numbers in ({"dp": -1}, {"<b>": 1}, {"dp": True}, [1], {1: 1})]

    assert {5: {"dp": 1, "ep": 0}} == coordinates([Group("3", (5, 6), 2, "mesh_tp")], {"ranks": ranks}, 8)
    assert {} == coordinates([], {"ranks": broken}, 8) == coordinates([], {"ranks": 3}, 8)

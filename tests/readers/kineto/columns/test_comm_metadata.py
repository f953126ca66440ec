"""The metadata of collectives."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dptrace.readers.kineto.columns.comm_metadata import MAX_BYTES, comm_args, with_global_ranks
from dptrace.readers.kineto.event_schema import Args
from dptrace.readers.trace import CommArgs


def test_message_bytes_are_the_larger_side() -> None:
    """As nccl-tests counts them: an all-gather's output, a reduce-scatter's input."""
    args = Args(collective="_allgather_base", in_elements=10, out_elements=80, dtype="BFloat16", group="0", seq=4)

    assert CommArgs("_allgather_base", 160, "BFloat16", "0", 0, 4) == comm_args("nccl", args)


def _shaped(name: str, dims: Any, types: Any, inputs: Any = ()) -> CommArgs:
    spelled = {"Input Dims": dims, "Input type": types, "Concrete Inputs": list(inputs)}
    return comm_args(name, msgspec.json.decode(json.dumps(spelled), type=Args))


def test_gloos_events_show_what_goes_in() -> None:
    """Several tensors are added up; a scalar counts as one element."""
    assert CommArgs("all_reduce", 44, "float", elements=11) == _shaped("gloo:all_reduce", [[8], [3]], ["float"] * 2)
    assert CommArgs("broadcast", 4, "int", elements=1) == _shaped("gloo:broadcast", [[]], ["int"])


def test_what_asks_for_a_collective_shows_both_sides() -> None:
    """In elements, since lists have no type; input and output of a gather show the size of the group."""
    gather = _shaped("c10d::_allgather_base_", [[40], [10], [], []], ["float", "float", "", "Scalar"])
    assert CommArgs("_allgather_base_", group_size=4, elements=40) == gather
    listed = _shaped("c10d::allreduce_coalesced_", [[[8], [3]], []], ["TensorList", ""])
    assert CommArgs("allreduce_coalesced_", elements=11) == listed
    uneven = _shaped("c10d::alltoall_base_", [[40], [10]], ["float", "float"])
    assert CommArgs("alltoall_base_", elements=40) == uneven


def test_a_message_shows_its_other_end_by_the_rank_in_the_job() -> None:
    """Ranks in the group; dropped where several groups would give different global ranks."""
    sent = _shaped("c10d::send", [[[8]], [], [], []], ["TensorList", "", "Scalar", "Scalar"], ["", "", "1", "0"])
    assert 1 == sent.peer

    def peer(*groups: list[int]) -> int:
        return with_global_ranks({0: sent}, [{"ranks": ranks} for ranks in groups])[0].peer

    assert [1, 6, 6, -1] == [peer(), peer([4, 6]), peer([4, 6], [5]), peer([4, 6], [0, 1])]


@pytest.mark.parametrize(
    ("dims", "types"),
    [
        ({}, []),
        ([["x"]], ["float"]),
        ([[10**30]], ["float"]),
        ([[-1, 4]], ["float"]),
        (5, 5),
        ([[MAX_BYTES]], ["int"]),
    ],
    ids=str,
)
def test_shapes_that_are_none_show_nothing(dims: Any, types: Any) -> None:
    """Impossible sizes of a damaged file are not added up."""
    assert 0 == _shaped("gloo:all_reduce", dims, types).bytes

"""The metadata of collectives."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from dptrace.readers.kineto.columns import MAX_BYTES, Columns, IdMap, comm_args, with_global_ranks
from dptrace.readers.kineto.event_schema import DAMAGE, SPAN, UNKNOWN, Args, as_count, code_of
from dptrace.readers.trace import Category, CommArgs


def _shaped(name: str, dims: Any, types: Any, inputs: Any = ()) -> CommArgs:
    spelled = {"Input Dims": dims, "Input type": types, "Concrete Inputs": list(inputs)}
    return comm_args(name, msgspec.json.decode(json.dumps(spelled), type=Args))


def test_gloos_events_show_what_goes_in() -> None:
    """Several tensors are added up, those of a list too; a scalar counts as one element."""
    assert 96 == _shaped("gloo:all_gather", [[[4], [8]]], ["double"]).bytes
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
    """Ranks in the group; dropped where several groups would give different global ranks other than its own."""
    sent = _shaped("c10d::send", [[[8]], [], [], []], ["TensorList", "", "Scalar", "Scalar"], ["", "", "1", "0"])
    assert 1 == sent.peer

    def peer(*groups: list[int], own: int = 4) -> int:
        return with_global_ranks({0: sent}, [{"ranks": ranks} for ranks in groups], own)[0].peer

    assert [1, 6, 6, -1] == [peer(), peer([4, 6]), peer([4, 6], [5]), peer([4, 6], [0, 1])]
    assert 1 == peer([4, 6], [0, 1], own=6)


def test_shapes_that_are_none_show_nothing() -> None:
    """Impossible sizes of a damaged file are not added up."""
    for dims, types in (
        ({}, []),
        ([["x"]], ["float"]),
        ([[10**30]], ["float"]),
        ([[-1, 4]], ["float"]),
        (5, 5),
        ([[MAX_BYTES]], ["int"]),
    ):
        assert 0 == _shaped("gloo:all_reduce", dims, types).bytes


# Events reduced to columns.

PLACES = {name: i for i, name in enumerate(("start", "end", "category", "name", "thread", "correlation"))}


def event(**fields: object) -> dict[str, object]:
    return {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": 5, "dur": 1, **fields}


def reduced(*events: dict[str, object]) -> Columns:
    columns = Columns()
    columns.decode(json.dumps(list(events)).encode())
    return columns


def lists(columns: Columns) -> list[list[int]]:
    return [column.tolist() for column in columns.take_arrays()]


def test_only_complete_events_of_known_categories_stay() -> None:
    """Flows, metadata, python functions and the GPU's copies of labels are counted and dropped, whatever they hold."""
    columns = reduced(
        event(),
        event(ph="s", cat="ac2g", ts={}, name=[1], args=5),
        event(ph="M", cat=None, ts=None),
        event(cat="python_function"),
        event(cat="gpu_user_annotation"),
        event(cat="Kernel", name="b", args={"device": 3, "stream": 9, "correlation": 4}),
    )

    assert (6, 2, ("a", "b")) == (columns.events, columns.kept, columns.names)
    *_, category, _, _, correlation, device, stream = lists(columns)
    assert [Category.CPU_OP, Category.KERNEL] == category
    assert [[-1, 4], [-1, 3], [-1, 9]] == [correlation, device, stream]


def test_threads_are_pairs_and_may_be_texts() -> None:
    """One thread id in two processes is two threads."""
    columns = reduced(event(), event(pid=9), event(pid="Spans", tid="x"), event(), event(pid=None, tid=None))

    assert [0, 1, 2, 0, 3] == lists(columns)[PLACES["thread"]]


@pytest.mark.heavy
def test_more_names_and_longer_times_than_16_and_32_bits_hold() -> None:
    """Columns have small types only while these suffice in every chunk."""
    columns = Columns()
    for first in range(0, 40_000, 10_000):
        chunk = [event(name=f"n{first + i}", dur=first * 1000, ts=first + i) for i in range(10_000)]
        columns.decode(json.dumps(chunk).encode())
    columns.decode(json.dumps([event(cat="kernel", args={"correlation": 2**40, "stream": 2**35})]).encode())

    start, end, _, name, _, correlation, _, stream = columns.take_arrays()
    assert [*range(40_001)] == name.tolist()
    assert 30_000_000_000 == end[39_999] - start[39_999]
    assert (2**40, 2**35) == (correlation[-1], stream[-1])


def test_collectives_have_metadata_wherever_the_figures_look_for_them() -> None:
    """Kernels, and what encloses their launches on the CPU, give the collective's metadata."""
    for category, name in (
        ("kernel", "k"),
        ("cpu_op", "record_param_comms"),
        ("user_annotation", "nccl:all_reduce"),
        ("cpu_op", "c10d::x"),
    ):
        columns = reduced(event(), event(cat=category, name=name, args={"Collective name": "allreduce", "Seq": 7}))
        assert {1: CommArgs("allreduce", seq=7)} == columns.comm


BEYOND_ANY_CLOCK = json.dumps([event(), event(ts=2**60)]).encode()


def test_damage_takes_nothing() -> None:
    """Text that is not a list of events leaves the columns unchanged, whatever its first events are."""
    for bad in (
        b"[1]",
        b'[{"ph": 5}]',
        b'[{"ph": "X", "args": 5}]',
        b"[",
        b"\xff",
        b'[{"ph": "X", "ts": {}}]',
        BEYOND_ANY_CLOCK,
    ):
        columns = reduced(event())
        with pytest.raises(DAMAGE):
            columns.decode(bad)
        assert (1, 1) == (columns.events, columns.kept)


def test_a_correlation_is_a_number_however_written() -> None:
    """Alone in its chunk or beside others; what is no whole number from 0 to below 2**62 is none."""
    for spelling in (5, 5.0, "5"):
        args = [{"correlation": value} for value in (spelling, 7, 5.5, "x", "5.0", 2.0**70, "9" * 25, -1.0, True, None)]
        alone, among = reduced(event(cat="kernel", args=args[0])), reduced(*(event(cat="kernel", args=a) for a in args))
        assert [5] == lists(alone)[PLACES["correlation"]]
        assert [5, 7, *[-1] * 8] == lists(among)[PLACES["correlation"]]


def test_an_odd_argument_does_not_cost_its_event() -> None:
    """An argument of another type counts as absent; the event and its other arguments are kept."""
    odd: dict[str, object] = {
        "correlation": "x",
        "device": [1],
        "stream": {},
        "Seq": "third",
        "dtype": None,
        "In msg nelems": -4,
    }
    columns = reduced(
        event(cat="kernel", args={**odd, "Collective name": "allreduce"}),
        event(cat="cuda_runtime", args={"correlation": 2}),
    )

    assert 2 == columns.kept
    assert [-1, 2] == lists(columns)[PLACES["correlation"]]
    assert CommArgs("allreduce") == columns.comm[0]


def test_parts_from_two_processes_join_as_if_one_had_read_them() -> None:
    """Ids of names and threads, indices of collectives and counts do not depend on who read which chunk."""
    metadata = {"Collective name": "allreduce"}
    chunks = [
        [event(name="b"), event(name="a", tid=9)],
        [event(name="c", tid=9), event(ph="s"), event(cat="kernel", name="a", args=metadata)],
        [event(name="c"), event(name="d", pid=3), event(ts=None)],
        [event(name="e"), event(cat="kernel", name="b", tid=9, args=metadata), event(cat="Trace")],
    ]
    alone, joined = Columns(), Columns()
    readers = [(Columns(), IdMap()), (Columns(), IdMap())]
    for i, chunk in enumerate(chunks):
        text = json.dumps(chunk).encode()
        alone.decode(text)
        reader, sender = readers[i % 2]
        reader.decode(text)
        joined.add(reader.part(), sender)

    for name in ("names", "comm", "events", "kept", "missing_start", "saw_last_event"):
        assert getattr(alone, name) == getattr(joined, name), name
    for mine, theirs in zip(alone.take_arrays(), joined.take_arrays(), strict=True):
        assert np.array_equal(mine, theirs)


# Conversion of times in JSON.


# The fields of events.


def text(*events: object) -> bytes:
    return json.dumps(list(events)).encode()


def test_categories_of_every_year_are_known() -> None:
    """The spellings of 2021 and of today, Kineto's own span, unused and unknown categories."""
    names = ("python_function", "cpu_op", "Operator", "hip_runtime", "Kernel", "Memcpy", "Trace")
    codes = [code_of(name) for name in names]

    expected = [Category.PYTHON, Category.CPU_OP, Category.CPU_OP, Category.LAUNCH, Category.KERNEL, Category.MEMORY]
    assert [*expected, SPAN] == codes
    assert UNKNOWN > code_of("overhead") > SPAN
    assert {UNKNOWN} == {*map(code_of, ("hpu_op", "", None))}


def test_whole_numbers_are_counts_however_they_are_spelled() -> None:
    """A float or a string may be a whole number; what does not fit 62 bits is none."""
    for value, count in (
        *((5, 5), (5.0, 5), ("5", 5), (0, 0), (2**62 - 1, 2**62 - 1)),
        *((2**62, None), (10**400, None), ("9" * 400, None), (5.5, None), (float("inf"), None), (1e300, None)),
        *((-5, None), (True, None), ("0x7f", None), ("", None), (None, None), ([5], None)),
    ):
        assert count == as_count(value)

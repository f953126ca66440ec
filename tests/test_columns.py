"""Events reduced to columns."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dptrace.columns import DAMAGE, Columns
from dptrace.trace import Category, CommArgs


def event(**fields: object) -> dict[str, object]:
    return {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": 5, "dur": 1, **fields}


def reduced(*events: dict[str, object]) -> Columns:
    columns = Columns()
    columns.decode(json.dumps(list(events)).encode())
    return columns


def test_only_complete_events_of_known_categories_stay() -> None:
    """Flows, metadata, python functions and the GPU's copies of labels are counted and dropped."""
    columns = reduced(
        event(),
        event(ph="s", cat="ac2g"),
        event(ph="M", cat=None, ts=None),
        event(cat="python_function"),
        event(cat="gpu_user_annotation"),
        event(cat="Kernel", name="b", args={"device": 3, "stream": 9, "correlation": 4}),
    )

    assert (6, 2, ("a", "b")) == (columns.events, columns.kept, columns.names)
    assert [Category.CPU_OP, Category.KERNEL] == columns.chunks[0][2].tolist()
    assert [[-1, 3], [-1, 9], [-1, 4]] == [columns.chunks[0][i].tolist() for i in (6, 7, 5)]


def test_numbering_goes_on_from_chunk_to_chunk() -> None:
    """Names, threads and the places of collectives fit together over chunks."""
    columns = Columns()
    gloo = event(
        cat="user_annotation",
        name="gloo:broadcast",
        args={"Input Dims": [[2, 3], []], "Input type": ["c10::BFloat16", "Scalar"]},
    )
    for chunk in ([event(), event(tid=7)], [event(tid=7), gloo]):
        columns.decode(json.dumps(chunk).encode())

    assert [[0, 1], [1, 0]] == [chunk[4].tolist() for chunk in columns.chunks]
    assert {3: CommArgs("broadcast", 12, "c10::BFloat16")} == columns.comm


def test_a_list_of_tensors_counts_each() -> None:
    """All-gather lists its tensors: their bytes add up."""
    dims = {"Input Dims": [[[4], [8]]], "Input type": ["double"]}

    assert 96 == reduced(event(name="gloo:all_gather", cat="user_annotation", args=dims)).comm[0].bytes


@pytest.mark.parametrize("bad", [b"[1]", b'[{"ph": 5}]', b'[{"args": 5}]', b"[", b"\xff", b'[{"ts": {}}]'])
def test_damage_takes_nothing(bad: bytes) -> None:
    """Text that is no list of events leaves the columns as they were."""
    columns = reduced(event())

    with pytest.raises(DAMAGE):
        columns.decode(bad)
    assert (1, 1) == (columns.events, columns.kept)


def test_odd_devices_and_streams_are_unknown() -> None:
    """A device or stream that is a text, negative or absurdly large is -1."""
    args = [{"device": d, "stream": s} for d, s in ((-1, 0), (2**40, 2**63), ("cuda", "0x0"))]
    columns = reduced(*(event(args=a) for a in args), event(args=None))

    assert [-1] * 4 == columns.chunks[0][6].tolist()
    assert [0, -1, -1, -1] == columns.chunks[0][7].tolist()
    assert np.int32 == columns.chunks[0][6].dtype


def test_an_odd_argument_does_not_cost_its_event() -> None:
    """What is not of the type meant is taken for absent; the event and its other arguments stay."""
    odd: dict[str, object] = {
        "correlation": "x",
        "device": [1],
        "stream": {},
        "Seq": "3",
        "dtype": None,
        "In msg nelems": -4,
    }
    columns = reduced(event(cat="kernel", args={**odd, "Collective name": "allreduce"}), event(args={"correlation": 2}))

    assert 2 == columns.kept
    assert [-1, 2] == columns.chunks[0][5].tolist()
    assert CommArgs("allreduce") == columns.comm[0]

"""Packed columns unpack to the same values."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.core.intervals import Int64
from dptrace.viewers.gantt.chart import Lane, Role, chart
from dptrace.viewers.gantt.packing import GAPS, REST, pack, pack_times, unpack
from tests.support.paths import ROOT
from tests.support.synthetic import training_run
from tests.support.times import unpack_times


def test_round_trip() -> None:
    """Integers of any size are packed in the narrowest type, from 2**32 - 1 on as escapes."""
    for values, kind in (
        ([], "Uint8"),
        ([0, 255], "Uint8"),
        ([0, 256], "Uint16"),
        ([65_536], "Uint32"),
        ([2**32 - 2], "Uint32"),
        ([1, 2**32 - 1, 2**32, 2**53 - 1, 3], "Uint32"),
    ):
        packed = pack(np.array(values, np.int64))

        assert kind == packed["type"], (values, kind)
        assert values == unpack(packed).tolist(), (values, kind)
        assert len(packed["escapes"]) == sum(value >= 2**32 - 1 for value in values), (values, kind)


def test_the_same_values_pack_to_the_same_text() -> None:
    """The compressed data has no time stamp, so a run gives the same page twice."""
    values = np.arange(1000, dtype=np.int64)

    assert pack(values) == pack(values)
    assert len(pack(np.zeros(100_000, np.int64))["data"]) < 1_000


# Start times and durations as small numbers.


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=30)


def lane(role: Role, pairs: list[tuple[int, int]], shift: int = -5) -> Lane:
    """Make a lane of intervals, each begin counted from the begin of the one before."""
    start = shift + np.cumsum(np.array([begin for begin, _ in pairs], np.int64))
    none = np.zeros(len(pairs), np.int64)
    duration = np.array([length for _, length in pairs], np.int64)
    return Lane(0, role, start, duration, none.astype(np.uint8), none, none, none[:0])


def unpacked(lanes: list[Lane]) -> list[tuple[Int64, Int64]]:
    found: list[tuple[Int64, Int64]] = []
    for one, (how, starts, durations) in zip(lanes, pack_times(lanes), strict=True):
        assert min(starts.min(initial=0), durations.min(initial=0)) >= 0
        first = int(one.start_ns[0]) if len(one) else 0
        found.append(unpack_times(how, first, starts, durations, found[0] if found else None))
    return found


@pytest.mark.heavy
@given(intervals, intervals, intervals)
def test_any_times_come_back(
    phases: list[tuple[int, int]], pieces: list[tuple[int, int]], gaps: list[tuple[int, int]]
) -> None:
    """Overlapping and empty intervals, and idle time that is not what the phases leave, included."""
    lanes = [lane(Role.PHASES, phases), lane(Role.EXPOSURE, pieces), lane(Role.IDLE, gaps), lane(Role.COMPUTE, gaps)]
    for one, (start, duration) in zip(lanes, unpacked(lanes), strict=True):
        assert one.start_ns.tolist() == start.tolist()
        assert one.duration_ns.tolist() == duration.tolist()


def test_idle_time_of_a_run_takes_nothing_and_touching_phases_little() -> None:
    """It is what the phases leave; a phase that begins where the last one ends has a gap of 0."""
    drawn = chart(training_run(3_000))
    for one, (how, starts, durations) in zip(drawn.lanes, pack_times(drawn.lanes), strict=True):
        if one.role is Role.IDLE:
            assert (REST, 0, 0) == (how, starts.max(), durations.max())
        if one.role is Role.EXPOSURE:
            assert how == GAPS
            assert np.median(starts) == 0


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_page_unpacks_the_same() -> None:
    """static/data/columns.js, on the lanes of a run and on idle time apart from its phases."""
    apart = [lane(Role.PHASES, [(0, 4), (4, 2), (9, 0), (3, 6)]), lane(Role.IDLE, [(11, 3), (3, 5), (20, 2)])]
    lanes = [*chart(training_run(600)).lanes, *apart]
    packed = pack_times(lanes)
    given_lanes = [
        {"role": one.role.value, "first": int(one.start_ns[0]) if len(one) else 0, "times": how}
        for one, (how, _, _) in zip(lanes, packed, strict=True)
    ]
    offsets = np.cumsum([0, *map(len, lanes)]).tolist()
    columns = [np.concatenate([entry[i] for entry in packed]).tolist() for i in (1, 2)]
    script = (
        f'import {{ timesOf }} from "{(ROOT / "viewers/gantt/static/data/columns.js").as_uri()}";'
        "const [lanes, offsets, delta, packed] = JSON.parse(process.argv[1]);"
        "const { start, duration } = timesOf(lanes, offsets, delta, packed);"
        "console.log(JSON.stringify([[...start], [...duration]]));"
    )
    command = ["node", "--input-type=module", "-e", script, json.dumps([given_lanes, offsets, *columns])]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert [
        np.concatenate([getattr(one, key) for one in lanes]).tolist() for key in ("start_ns", "duration_ns")
    ] == found

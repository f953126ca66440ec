"""The data of a critical path on a Gantt page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dptrace
from dptrace.viewers.gantt.chart import Role, chart
from dptrace.viewers.gantt.critical_path import UNLIMITED, path_data, path_notes
from dptrace.viewers.gantt.packing import unpack
from dptrace.viewers.gantt.page import document as gantt
from tests.support.replay_files import write_job

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dptrace.Run:
    return dptrace.open(write_job(tmp_path_factory.mktemp("path_data_job")), cache=False)


def columns(data: dict[str, Any]) -> dict[str, Any]:
    return {name: unpack(packed) for name, packed in data["columns"].items()}


def named(data: dict[str, Any], run: dptrace.Run) -> dict[str, tuple[int, int, int]]:
    """Return track, start and length of the pieces of kernels by name, as the chart has the interval they point to."""
    drawn, own = chart(run), columns(data)
    roles = {1: Role.COMPUTE, 2: Role.COLLECTIVES, 3: Role.MEMORY}
    found = {}
    for i in np.flatnonzero(own["position"]).tolist():
        track, position = int(own["track"][i]) - 1, int(own["position"][i]) - 1
        lane = next(lane for lane in drawn.lanes if lane.track == track and lane.role is roles[int(own["role"][i])])
        name = drawn.names[lane.name[position]] if own["role"][i] == 1 else "collective"
        found[name] = (track, int(lane.start_ns[position]), int(own["start"][i]) + data["first"])
    return found


def test_each_piece_of_a_kernel_points_to_its_interval(run: dptrace.Run) -> None:
    """Kernels start with their piece; the transfer begins where rank 1, the last to arrive, begins its collective."""
    found = named(path_data(run, chart(run), run.critical_path("ProfilerStep#1")), run)

    assert {"forward": 1, "backward": 1, "collective": 1, "optimizer": 0} == {
        name: one[0] for name, one in found.items()
    }
    assert all(start == piece for _, start, piece in found.values())


def test_a_selected_step_has_the_same_pieces(run: dptrace.Run) -> None:
    """The intervals of the selection are numbered anew; those before it are cut off."""
    part = run.select(steps=(2, 2))
    path = part.critical_path()
    whole, own = (named(path_data(one, chart(one), path), one) for one in (run, part))
    shift = chart(part).origin_ns - chart(run).origin_ns

    assert {name: (track, start - shift, piece - shift) for name, (track, start, piece) in whole.items()} == own


def test_slack_is_packed_for_each_interval(run: dptrace.Run) -> None:
    """Rank 0's forward could take 100 µs longer; other steps have none, and what nothing waits for no limit."""
    drawn = chart(run)
    slack = unpack(path_data(run, drawn, run.critical_path("ProfilerStep#2"))["slack"])
    rows = [lane for lane in drawn.lanes if lane.role in (Role.COMPUTE, Role.COLLECTIVES, Role.MEMORY)]
    first = next(lane for lane in drawn.lanes if lane.role is Role.COMPUTE)
    forward = np.flatnonzero(first.name == drawn.names.index("forward"))

    assert sum(map(len, rows)) == len(slack)
    assert [0, 0, 100_002, 0] == slack[forward].tolist()
    assert UNLIMITED == 1 < slack[slack > 0].min()


def test_a_page_of_some_ranks_says_what_it_leaves_out(run: dptrace.Run) -> None:
    """Forward, backward and the all-reduce after them are on rank 1; a page of all ranks has no such note."""
    part = run.select(ranks=[0])
    path = part.critical_path("ProfilerStep#1")
    [note] = path_notes(part, path)
    shown = named(path_data(part, chart(part), path), part)

    assert "of its 800 µs" in note
    assert {"optimizer"} == set(shown)
    assert [] == path_notes(run, path)


def test_a_page_that_merges_intervals_has_no_path(run: dptrace.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how many there are, and what to select."""
    monkeypatch.setattr(gantt, "MAX_INTERVALS", 10)

    with pytest.raises(dptrace.DptraceError, match=r"at most 10.*--steps"):
        gantt.document(run, path=run.critical_path())

"""The process group of each of gloo's events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dptrace.analysis.matching.match import Matches, match
from dptrace.analysis.per_gpu.device import figures_of
from dptrace.readers.kineto.columns import with_gloo_groups
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.trace import UNKNOWN_GROUP, CommArgs
from dptrace.timeline.build import build_timelines
from tests.support.kineto_files import KinetoFile

WORLD = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo,cuda:gloo", "ranks": [0, 1, 2, 3]}
INSIDE = {"pg_name": "3", "pg_desc": "mesh_inside", "backend_config": "cpu:gloo", "ranks": [0, 1]}
EVENTS = {4: CommArgs("all_reduce", 40, "float"), 5: CommArgs("all_reduce", 40, "float")}


_PAIR, _ALL, _UNKNOWN = ("3", 2, (0, 1)), ("0", 4, (0, 1, 2, 3)), (UNKNOWN_GROUP, 0, ())
_NCCL = {"pg_name": "1", "backend_config": "cuda:nccl", "ranks": [0]}
_SAME: tuple[Any, ...] = (None, [], "?", [WORLD], [WORLD, {**WORLD, "pg_name": "1"}], [7, WORLD, {}])


def test_the_thread_of_an_event_shows_its_group() -> None:
    """If each group's threads are known."""
    for threads, groups, listed, found in (
        # Two threads are each group's, in the order of their making, as the recorder lists them.
        ((70, 61), [WORLD, INSIDE], [60, 61, 69, 70], [_PAIR, _ALL]),
        # Groups of NCCL have no threads of gloo.
        ((3, 4), [WORLD, _NCCL, {**INSIDE, "ranks": [0, 2]}], [1, 2, 3, 4], [("3", 2, (0, 2))] * 2),
        # Where a thread was silent, or the list is wrong, nothing shows which groups the file's threads serve.
        *(((70, 69), [WORLD, INSIDE], some, [_UNKNOWN] * 2) for some in (None, [60, 61, 69], [*"abcd"], [1, 2, 3, 4])),
        # Where all groups have the same ranks, or none is listed, nothing changes.
        *(((70, 69), groups, None, [("", 0, ())] * 2) for groups in _SAME),
    ):
        named = with_gloo_groups(EVENTS, dict(zip(EVENTS, threads, strict=True)), groups, listed).values()
        assert found == [(args.group, args.group_size, args.ranks) for args in named]


def test_threads_of_the_file_do_if_none_is_missing() -> None:
    """Two for each group."""
    more = {**EVENTS, **{i: CommArgs("broadcast") for i in (6, 7)}}
    named = with_gloo_groups(more, {4: 70, 5: 61, 6: 60, 7: 69}, [WORLD, INSIDE])

    assert ["3", "0", "0", "3"] == [named[i].group for i in (4, 5, 6, 7)]


def _hierarchical(folder: Path, listed: bool) -> Matches:
    """Four ranks in pairs: each pair reduces on its own thread, at its own time."""
    devices = []
    for rank in range(4):
        file = KinetoFile(rank, 4, "gloo").label("ProfilerStep#1", 0, 1000).op("aten::linear", 1, 2)
        pair = {**INSIDE, "pg_name": str(3 + rank // 2), "ranks": [0, 1] if rank < 2 else [2, 3]}
        file.head["distributedInfo"]["pg_config"] = [WORLD, pair]
        if listed:
            file.head["gloo_threads"] = [60, 61, 69, 70]
        at = 100 if rank < 2 else 500
        shapes = {"Input Dims": [[10]], "Input type": ["float"]}
        file.label("gloo:all_reduce", at + rank, at + 50, 70, **shapes)
        (timeline,) = build_timelines(read_trace(file.write(folder / f"{rank}.json")), rank)
        devices.append(figures_of(timeline))
    return match(devices, 4)


def test_groups_are_matched_each_for_itself(tmp_path: Path) -> None:
    """Two collectives of two ranks each, of the same kind and size in the same step."""
    matches = _hierarchical(tmp_path, listed=True)

    assert [[0, 0, -1, -1], [-1, -1, 0, 0]] == matches.member.tolist()
    assert [(0, 1), (2, 3)] == [matches.groups[group].ranks for group in matches.group.tolist()]
    assert matches.complete.all()
    assert () == matches.notes


def test_the_group_shows_how_much_is_gathered(tmp_path: Path) -> None:
    """Gloo records one rank's share, and so does the operator with a list; the group's size gives the rest."""
    file = KinetoFile(0, 4, "gloo").label("ProfilerStep#1", 0, 1000).op("aten::linear", 1, 2)
    file.head["distributedInfo"]["pg_config"] = [INSIDE, WORLD]
    file.head["gloo_threads"] = [60, 61, 69, 70]
    asked: dict[str, Any] = {"Input Dims": [[], [[10]]], "Input type": ["", "TensorList"]}
    file.op("c10d::allgather_", 10, 12, **asked)
    file.label("gloo:all_gather", 13, 20, 69, **{"Input Dims": [[10]], "Input type": ["float"]})
    (timeline,) = build_timelines(read_trace(file.write(tmp_path / "t.json")), 0)
    (one,) = timeline.collectives

    assert ("all_gather", 160, 4, (0, 1, 2, 3)) == (one.kind, one.bytes, one.group_size, one.ranks)
    assert [160] == match([figures_of(timeline)], 4).bytes.tolist()


def test_ambiguous_groups_are_not_matched(tmp_path: Path) -> None:
    """No wait is computed, and a note says so."""
    matches = _hierarchical(tmp_path, listed=False)

    assert [1] * 4 == [sum(place >= 0 for place in row) for row in matches.member.tolist()]
    assert not matches.complete.any()
    (note,) = matches.notes
    assert "process groups" in note
    assert "4" in note


def test_only_the_peer_tells_the_group_of_a_message() -> None:
    """Messages have no thread of their own: two sends of one group would be taken for a message."""
    named = with_gloo_groups({1: CommArgs("send", peer=1), 2: CommArgs("send")}, {1: 5, 2: 5}, [WORLD, INSIDE])

    assert CommArgs("send", peer=1) == named[1]
    assert UNKNOWN_GROUP == named[2].group

"""Cut files of runs on CPUs: torch.profiler writes thread by thread, so one has lost a thread's work in all steps."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import dptrace
from dptrace.analysis.findings.finding import Finding
from dptrace.errors import DptraceError
from dptrace.replay.findings import findings_of
from dptrace.replay.graph.model import NEVER, EdgeKind
from dptrace.replay.whatif import replay_of_some

_STEPS, _STEP_US, _LATE_US = 8, 60_000, 20_000


def _event(category: str, name: str, thread: int, start: float, length: float) -> dict[str, Any]:
    named = {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": thread, "ts": 1e9 + start, "dur": length}
    return named | {"args": {}}


def _threads(rank: int, gloo_threads: int, first: int = 0) -> list[list[dict[str, Any]]]:
    """Return the events of each thread in the order in which they are written: gloo's threads are around the host's.

    A step computes, sleeps on rank 1, computes and all-reduces; rank 0 waits for rank 1.

    Args:
        first: number of the gloo thread that the first step is on.
    """
    host = list[dict[str, Any]]()
    gloo: list[list[dict[str, Any]]] = [[] for _ in range(gloo_threads)]
    for step in range(_STEPS):
        start, late = step * _STEP_US, _LATE_US * rank
        host.append(_event("user_annotation", f"ProfilerStep#{step}", 1, start, _STEP_US - 10))
        host.append(_event("cpu_op", "aten::mm", 1, start + 100, 15_000))
        host.append(_event("cpu_op", "aten::relu", 1, start + 15_200 + late, 10_000))
        host.append(_event("cpu_op", "c10d::allreduce_", 1, start + 25_300 + late, 60))
        arrived = start + 25_400 + late
        thread = (first + step) % gloo_threads
        own = _event("user_annotation", "gloo:all_reduce", 2 + thread, arrived, start + 46_000 - arrived)
        own["args"] = {"Input Dims": [[1000]], "Input type": ["float"]}
        gloo[thread].append(own)
        host.append(_event("cpu_op", "aten::add_", 1, start + 46_100, 13_000))
    return [*gloo[:-1], host, gloo[-1]]


def _write(folder: Path, cut: Collection[int], kept: float, gloo_threads: int = 2, apart: int = 0) -> Path:
    """Write the files of two ranks; of those that are cut, the first threads and a share of the host's events.

    Args:
        apart: by how many gloo threads the ranks' first steps are apart.
    """
    folder.mkdir()
    for rank in range(2):
        *first, host, last = _threads(rank, gloo_threads, apart * rank)
        events = [event for thread in first for event in thread]
        events += host[: int(kept * len(host))] if rank in cut else [*host, *last]
        info = {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}, "traceEvents": events}
        text = json.dumps(info)
        (folder / f"rank{rank}.pt.trace.json").write_text(text[:-2] + "," if rank in cut else text)
    return folder


def _late(run: dptrace.Run) -> list[Finding]:
    return [finding for finding in findings_of(run) if finding.kind == "straggler" and not finding.is_minor]


@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize("kept", [1, 0.8])
def test_steps_with_all_records_tell_who_is_late(tmp_path: Path, cut: int, kept: float) -> None:
    """Half of the steps lack the records of a gloo thread, on the rank that waits or the late one: the others tell."""
    run = dptrace.open(_write(tmp_path / "run", {cut}, kept), cache=False)

    [finding] = _late(run)

    incomplete = run.timelines[cut].incomplete_steps
    assert 2 <= len(incomplete)
    assert {"1"} == {str(int(name.partition("#")[2]) % 2) for name in incomplete}
    assert [1] == finding.evidence.to_dict()["ranks"]
    assert finding.gain.ns == pytest.approx(1000 * _LATE_US, rel=0.02)
    assert any(f"rank{cut}.pt" in note and "not compared" in note for note in run.notes)


def test_a_lost_collective_follows_the_one_before_it(tmp_path: Path) -> None:
    """Rank 1 has no record of every other collective: it came to each of these a step after the last that it has."""
    model = replay_of_some(dptrace.open(_write(tmp_path / "run", {1}, 1), cache=False)).model

    edge = model.graph.edge
    lag_ns = edge.lag_ns[edge.of(EdgeKind.PEER) & (edge.lag_ns > NEVER)]

    assert len(lag_ns)
    assert (lag_ns < 1000 * _STEP_US).all()


def test_a_rank_without_a_complete_step_is_left_out(tmp_path: Path) -> None:
    """All records of gloo's only thread are lost: what the rank waits for is unknown, and nobody is accused."""
    run = dptrace.open(_write(tmp_path / "run", {0}, 1, gloo_threads=1), cache=False)

    assert (1,) == run.ranks
    assert [] == _late(run)
    assert any("Left out" in note and "rank0.pt" in note for note in run.notes)


@pytest.mark.heavy
def test_files_that_lost_the_collectives_of_other_steps_are_named(tmp_path: Path) -> None:
    """One has those of even steps and one those of odd ones: no step tells who waits for whom. Cut alike, they tell."""
    alike = dptrace.open(_write(tmp_path / "alike", {0, 1}, 1), cache=False)
    apart = dptrace.open(_write(tmp_path / "apart", {0, 1}, 1, apart=1), cache=False)

    [finding] = _late(alike)
    assert [1] == finding.evidence.to_dict()["ranks"]
    assert not _late(apart)
    with pytest.raises(DptraceError, match=r"rank0\.pt\.trace\.json, rank1\.pt\.trace\.json are cut"):
        apart.whatif(no_straggler=True)
    assert any("rank0.pt.trace.json, rank1.pt.trace.json are cut" in note for note in apart.cross_rank.notes)

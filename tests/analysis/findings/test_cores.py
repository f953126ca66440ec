"""A rank that could run but had no core is late for that, where it is recorded, and not for its Python code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dptrace
from dptrace.analysis.findings.cores import Loss, core_waits, lacks_core
from dptrace.analysis.findings.finding import Finding
from dptrace.analysis.findings.stragglers import straggler_reason
from dptrace.replay.findings import findings_of
from tests.support.builders import TimelineBuilder
from tests.support.planted import Plant, planted_job

MS = 1_000_000


def of_job(folder: Path, plants: list[Plant], waits: dict[int, list[float]], kind: str = "straggler") -> list[Finding]:
    """Return findings on a planted job; *waits* are the ms without a core of each rank in its four steps."""
    planted_job(folder, plants)
    rows = [{"rank": rank, "core_wait_ns": [ms * MS for ms in own]} for rank, own in waits.items()]
    folder.joinpath("run.json").write_text(json.dumps({"schema": 1, "world_size": 4, "ranks": rows}))
    run = dptrace.open(folder, cache=False)
    return [finding for finding in findings_of(run) if finding.kind == kind]


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["python", "pause", "operator"])
def test_a_rank_without_a_core_is_late_for_that(tmp_path: Path, kind: str) -> None:
    """The scheduler's time without a core covers what its host loses in each step."""
    waits = {rank: [4.2 if rank == 1 else 0.1] * 4 for rank in range(4)}
    (found,) = of_job(tmp_path, [Plant(1, kind, 4)], waits)

    assert (1, "no_core", None) == tuple(found.evidence.to_dict()[key] for key in ("rank", "cause", "what"))
    assert "has no core" in found.text
    assert "Pin processes to cores" in found.advice


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "cause"), [("python", "python"), ("pause", "nothing_recorded"), ("kernel", "compute")]
)
def test_a_rank_that_had_a_core_is_late_for_its_code(tmp_path: Path, kind: str, cause: str) -> None:
    """It waited for a core for less than it lost; or its GPU computes longer, for which no core is needed."""
    waits = {rank: [9.0 if kind == "kernel" else 1.0] * 4 for rank in range(4)}
    (found,) = of_job(tmp_path, [Plant(1, kind, 4)], waits)

    assert (1, cause) == (found.evidence.rank, found.evidence.to_dict()["cause"])
    assert "core" not in found.text


@pytest.mark.heavy
def test_ranks_that_share_too_few_cores_are_one_finding(tmp_path: Path) -> None:
    """In other steps, other ranks lose time in other places: that is the machine's load, and no rank's delay."""
    plants = [Plant(1, "python", 5, [0, 2], layer=1), Plant(2, "pause", 5, [1, 3], layer=4)]
    waits = {1: [5.1, 0.0, 5.1, 0.0], 2: [0.0, 5.1, 0.0, 5.1], 0: [0.0] * 4, 3: [0.0] * 4}
    (found,) = of_job(tmp_path, plants, waits, "jitter")

    assert not of_job(tmp_path, plants, waits)
    assert "can't tell a cause from noise. Most of the time, there was no core to run on" in found.text
    assert ("no_core", [1, 2]) == (found.evidence.to_dict()["cause"], found.evidence.to_dict()["ranks"])


@pytest.mark.heavy
def test_what_all_ranks_lack_makes_none_late(tmp_path: Path) -> None:
    """Each had no core for as long as one is late: it may have slept, or waited in another place than the others."""
    waits = {rank: [4.5] * 4 for rank in range(4)}
    (found,) = of_job(tmp_path, [Plant(1, "python", 4)], waits)

    assert "python" == found.evidence.to_dict()["cause"]
    assert "(or has no core: the recording doesn't tell)" in found.text


def test_a_sleep_beside_a_busy_core_is_a_sleep() -> None:
    """Of 50 ms that a rank loses, 10 were without a core; in another step, all were."""
    losses = [Loss(1, "a", "python", 40), Loss(1, "a", "nothing_recorded", 10), Loss(1, "b", "python", 10)]
    waits = {(1, "a"): 10, (1, "b"): 10}

    assert [False, False, True] == lacks_core(losses, waits, on_cpu=False)


@pytest.mark.parametrize(("cause", "on_cpu", "lacks"), [("compute", True, True), ("compute", False, False)])
def test_only_compute_of_a_cpu_needs_a_core(cause: str, on_cpu: bool, lacks: bool) -> None:
    """A GPU computes while its host has none; a loader or a collective is no code of this thread."""
    assert [lacks, False] == lacks_core(
        [Loss(0, "a", cause, 10), Loss(0, "a", "data_loading", 10)], {(0, "a"): 10}, on_cpu
    )


def test_steps_have_their_own_figures_in_a_selection() -> None:
    """By the numbers of the steps, if the run has others as well; damaged and missing entries are not known."""
    rows = [{"rank": 0, "core_wait_ns": [1, 2, 3]}, {"rank": 1, "core_wait_ns": None}, None]
    info = {"ranks": rows, "schedule": {"wait": 1, "warmup": 0}}
    one = TimelineBuilder(0, bounds=(0, 10, 20)).compute(0, 20).build()
    whole = TimelineBuilder(0, bounds=(0, 10, 20, 30)).compute(0, 30).build()
    other = TimelineBuilder(1, bounds=(0, 10)).compute(0, 10).build()

    assert {(0, "ProfilerStep#1"): 1} == core_waits(info, [one, other])
    assert [1, 2, 3] == list(core_waits(info, [whole]).values())
    assert {} == core_waits({}, [whole])


@pytest.mark.parametrize("cause", ["python", "nothing_recorded", "compute"])
def test_what_is_not_recorded_is_said_so(cause: str) -> None:
    """A pause on a CPU may be a sleep or a missing core, and so may compute that takes longer; not that of a GPU."""
    assert "(or has no core: the recording doesn't tell)" in straggler_reason(cause, "", "", [1], True, True)
    assert "core" not in straggler_reason(cause, "", "", [1], True)
    assert (cause == "compute") == ("core" not in straggler_reason(cause, "", "", [1], False, True))

"""Simulated jobs with planted causes: each is named once, with its cost, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dptrace
from dptrace.analysis.findings.finding import Finding
from dptrace.replay.findings import findings_of
from tests.support.planted import Plant, planted_job

MS = 1_000_000


def straggler_findings(folder: Path) -> list[Finding]:
    run = dptrace.open(folder, cache=False)
    return [finding for finding in findings_of(run) if finding.kind == "straggler" and not finding.is_minor]


# Name, plants and other options of the job, then rank, cause and what of the finding, and its gain in ms per step.
CASES: list[tuple[str, dict[str, Any], int, str, str, float]] = [
    ("cudaMalloc", {"plants": [Plant(1, "allocator", 6, [2])]}, 1, "allocator", "cudaMalloc", 1.2),
    ("slow loader", {"plants": [Plant(2, "loader", 5)]}, 2, "data_loading", "enumerate(DataLoader)", 5.0),
    ("GC pause", {"plants": [Plant(3, "pause", 4, layer=4)]}, 3, "nothing_recorded", "", 2.5),
    ("Python", {"plants": [Plant(0, "python", 4, layer=2)]}, 0, "python", "## layer 2 ##", 2.9),
    ("operator", {"plants": [Plant(0, "operator", 4, layer=5)]}, 0, "host_bound", "aten::linear", 2.2),
    ("kernel", {"plants": [Plant(2, "kernel", 1.5)]}, 2, "compute", "gemm", 1.5),
    ("drift", {"plants": [Plant(2, "kernel", 1.5)], "drift_ppm": {1: 30.0}}, 2, "compute", "gemm", 1.5),
    (
        "carried",
        {"plants": [Plant(1, "operator", 8, [1], layer=1)], "blocking": False, "kernel_us": 50},
        1,
        "host_bound",
        "aten::linear",
        2.0,
    ),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "job", "rank", "cause", "what", "gain"), CASES, ids=[case[0] for case in CASES])
def test_a_planted_cause_is_named_once(
    tmp_path: Path, name: str, job: dict[str, Any], rank: int, cause: str, what: str, gain: float
) -> None:
    """The rank, the cause and the call are right, and the gain is what the step would be shorter without it."""
    (finding,) = straggler_findings(planted_job(tmp_path, **job))

    assert (rank, cause) == (finding.evidence.rank, finding.evidence.to_dict()["cause"])
    assert (finding.evidence.to_dict()["what"] or "").startswith(what)
    assert finding.figure[0] == pytest.approx(gain * MS, rel=0.1)


@pytest.mark.heavy
def test_a_pause_in_each_step_is_a_finding_of_its_own(tmp_path: Path) -> None:
    """Of a job whose host is late for each kernel and does nothing for 10 ms a step, these are apart from the rest."""
    plant = Plant(0, "pause", 10, range(12), layer=5)
    folder = planted_job(tmp_path, [plant], ranks=1, steps=12, kernel_us=20)
    run = dptrace.open(folder, cache=False)
    found = {finding.kind: finding for finding in findings_of(run)}
    paused, late = found["unrecorded"], found["host_bound"]

    assert paused.counted_ns == pytest.approx(10 * MS, rel=0.01)
    assert "12 gaps in 12 steps" in paused.text
    assert "between “## layer 4 ##” and “## layer 5 ##”" in paused.text
    assert "with_stack" in paused.advice
    assert "recorded" not in late.text + late.advice
    assert paused.has_gain
    assert late.has_gain
    assert paused.figure[0] == pytest.approx(10 * MS, rel=0.01)
    assert 0 < late.figure[0] < MS
    assert 0 < late.counted_ns <= run.devices[0].split.figures["idle_ns"].mean() - paused.counted_ns


@pytest.mark.heavy
def test_a_clean_job_has_no_straggler(tmp_path: Path) -> None:
    """Noise of a few percent in kernels and operators is no delay, nor is a delay that a host's lead covers."""
    assert [] == straggler_findings(planted_job(tmp_path / "clean"))
    ahead = planted_job(tmp_path / "ahead", [Plant(1, "operator", 3, [3], layer=1)], blocking=False)
    assert [] == straggler_findings(ahead)


@pytest.mark.heavy
def test_two_causes_are_two_findings(tmp_path: Path) -> None:
    """On two ranks, in different steps."""
    found = straggler_findings(planted_job(tmp_path, [Plant(1, "allocator", 6, [1]), Plant(2, "kernel", 2, layer=6)]))

    assert [(2, "compute"), (1, "allocator")] == [(f.evidence.rank, f.evidence.to_dict()["cause"]) for f in found]


@pytest.mark.heavy
def test_what_most_ranks_do_makes_none_late(tmp_path: Path) -> None:
    """Three of four ranks are in an operator for 4 ms: it is what hosts do, and gains what the one waits."""
    plants = [Plant(rank, "operator", 4, layer=5) for rank in (1, 2, 3)]
    found = findings_of(dptrace.open(planted_job(tmp_path, plants), cache=False))

    assert "host_bound" == found[0].kind
    assert found[0].figure[0] == pytest.approx(2.2 * MS, rel=0.1)
    assert not [finding for finding in found if finding.kind == "straggler" and not finding.is_minor]


@pytest.mark.heavy
@pytest.mark.parametrize("spoil", ["missing", "third", "mixed"])
def test_without_all_ranks_no_wait_is_known(tmp_path: Path, spoil: str) -> None:
    """A rank missing, a third of a rank missing, or ranks of two jobs: what lacks a rank has no wait."""
    plant = Plant(2, "kernel", 1.5, steps=[0])
    folder = planted_job(tmp_path / "job", [plant])
    {"missing": _drop, "third": _cut, "mixed": _mix}[spoil](folder)

    run = dptrace.open(folder, cache=False)

    # What rank 2 does longer than the others is known all the same: 1.5 ms in one of four steps.
    gains = [finding.figure[0] for finding in findings_of(run) if finding.kind == "straggler" and not finding.is_minor]
    assert [] == gains or (spoil != "mixed" and sum(gains) <= 1.1 * 1.5 * MS / 4)
    first = run.steps()[run.steps().step == "ProfilerStep#0"]
    assert first.exposed_wait_ns.isna().all()


def _drop(folder: Path) -> None:
    (folder / "rank0.json").unlink()


def _cut(folder: Path) -> None:
    """Remove the events of the first third of rank 1's recording."""
    path = folder / "rank1.json"
    content = json.loads(path.read_text())
    events = content["traceEvents"]
    first, last = min(e["ts"] for e in events), max(e["ts"] for e in events)
    content["traceEvents"] = [e for e in events if e["ts"] >= first + (last - first) / 3]
    path.write_text(json.dumps(content))


def _mix(folder: Path) -> None:
    """Replace one rank's file by that of another job."""
    other = planted_job(folder.parent / "other", seed=7, kernel_us=900, ranks=4)
    (folder / "rank3.json").write_bytes((other / "rank3.json").read_bytes())

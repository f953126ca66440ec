"""Pauses that all ranks of a run on CPUs share: one finding, on all ranks, with what a step gains without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dptrace
from dptrace.analysis.findings.evidence import Idle
from dptrace.analysis.findings.finding import Finding
from dptrace.replay.findings import findings_of
from tests.support.programs import (
    STEPS,
    Do,
    Plant,
    Program,
    Rank,
    data_parallel,
    fully_sharded,
    one_forward_one_backward,
    pipeline,
    run,
    truth_ms,
    write,
)

PIPELINE = pipeline(one_forward_one_backward, 3)
NAMES = {"forward": "aten::linear", "forward1": "aten::linear", "optimizer": "aten::add_"}
"""The operator after a pause at a place."""


def findings(folder: Path, program: Program, size: int, *plants: Plant) -> tuple[Finding, ...]:
    return findings_of(dptrace.open(write(folder, run(program, size, plants)), cache=False))


def gain_ms(found: tuple[Finding, ...], place: str) -> float:
    """Return what the finding on a place gains; 0 without one."""
    own = [one for one in found if one.kind == "unrecorded" and one.about(Idle).where == NAMES[place]]
    assert len(own) <= 1
    return sum(one.figure[0] for one in own) / 1e6


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("program", "size", "place"),
    [
        (data_parallel, 2, "forward"),
        (data_parallel, 4, "optimizer"),
        (fully_sharded, 3, "forward1"),
        (fully_sharded, 2, "optimizer"),
        (PIPELINE, 3, "optimizer"),
    ],
)
def test_a_sleep_on_all_ranks_is_one_finding_with_its_size(
    program: Program, size: int, place: str, tmp_path: Path
) -> None:
    """Beside the pauses that the program has there by itself."""
    plants = [Plant(rank, place, 40) for rank in range(size)]
    clean, found = findings(tmp_path / "clean", program, size), findings(tmp_path / "slow", program, size, *plants)

    gained = gain_ms(found, place) - gain_ms(clean, place)
    assert gained == pytest.approx(truth_ms(program, size, plants), rel=0.05, abs=3)  # a short pause is none
    assert not [one.text for one in found if one.kind == "straggler"]
    (stall,) = (one for one in found if one.kind == "unrecorded" and one.about(Idle).where == NAMES[place])
    assert stall.about(Idle).ranks == [*range(size)]
    assert "All ranks pause before" in stall.text


@pytest.mark.heavy
def test_one_ranks_longer_pause_is_its_delay(tmp_path: Path) -> None:
    """What all ranks share there stays as it is."""
    clean = findings(tmp_path / "clean", data_parallel, 3)
    late = findings(tmp_path / "late", data_parallel, 3, Plant(1, "forward", 40))

    (straggler,) = (one for one in late if one.kind == "straggler")
    assert straggler.figure[0] / 1e6 == pytest.approx(40, abs=2)
    assert gain_ms(late, "forward") == pytest.approx(gain_ms(clean, "forward"), abs=1)


def test_a_stall_of_one_step_is_once(tmp_path: Path) -> None:
    """It may not happen again, and stands behind what is in each step."""
    plants = [Plant(rank, "optimizer", 150, (3,)) for rank in range(2)]
    found = findings(tmp_path, data_parallel, 2, *plants)

    (stall,) = (one for one in found if one.kind == "unrecorded" and one.about(Idle).where == NAMES["optimizer"])
    assert stall.evidence.once
    assert stall.evidence.step == "ProfilerStep#3"
    assert stall.figure[0] / 1e6 == pytest.approx(2 + 150 / STEPS, abs=1)


def test_the_end_of_a_recording_is_no_operator(tmp_path: Path) -> None:
    """All ranks pause after the last operator: seen once, it may not come again."""

    def pausing(rank: Rank) -> Iterator[Do]:
        yield from data_parallel(rank)
        if rank.step == STEPS - 1:
            yield Do("sleep", ms=150)

    (stall,) = (one for one in findings(tmp_path, pausing, 2) if one.kind == "unrecorded" and one.evidence.once)
    assert "at the end of the last step" in stall.text
    assert "can't tell if it comes again" in stall.gain.reason

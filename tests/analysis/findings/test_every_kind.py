"""What holds for all kinds of findings: no time counts twice, and each kind is tested, documented and replayed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import dptrace
from dptrace.analysis.compute_findings import detect as compute
from dptrace.analysis.findings import detect
from dptrace.analysis.findings.finding import Claim, Finding, FindingContext, Unclaimed
from dptrace.analysis.findings.host import IDLE_KINDS
from dptrace.replay.counterfactual import COUNTERFACTUALS
from dptrace.run.run import Run
from tests.analysis.cross_rank.test_pipeline_bubble import gpipe, run_of
from tests.support.double_counting import check_no_time_counts_twice
from tests.support.paths import ROOT
from tests.support.planted import Plant, planted_job
from tests.support.real_traces import REAL, real_files

OWN = sorted(path.name for path in (ROOT / "traces").iterdir() if path.is_dir())
OTHERS = sorted({path.parent.name for path in real_files() if "_" in path.parent.name and path.parent.parent == REAL})


def check(run: Run) -> None:
    check_no_time_counts_twice(run.cross_rank, run.metadata)


KINDS = sorted(
    {
        "jitter",
        *IDLE_KINDS,
        *(kind for table in (detect.DETECTORS, compute.DETECTORS) for own in table.values() for kind in own),
    }
)
PLANTS = [
    Plant(1, "allocator", 6, [1]),
    Plant(2, "python", 2, layer=6),
    Plant(3, "loader", 3),
    Plant(0, "pause", 4, [2], layer=4),
    Plant(0, "operator", 4, layer=5),
    Plant(2, "kernel", 1.5),
]


@pytest.mark.heavy
@pytest.mark.parametrize(
    "path", [*(ROOT / "traces" / name for name in OWN), *(REAL / name for name in OTHERS)], ids=str
)
def test_no_nanosecond_of_a_recording_counts_in_two_findings(path: Path) -> None:
    """Over all detectors, findings cost at most what was lost, and those on a collective its exposed time."""
    check(dptrace.open(path))


@pytest.mark.parametrize(
    "plants", [PLANTS, *([plant] for plant in PLANTS)], ids=lambda plants: "+".join(p.kind for p in plants)
)
def test_no_planted_nanosecond_counts_in_two_findings(plants: list[Plant], tmp_path: Path) -> None:
    """The same for causes alone and all at once."""
    check(dptrace.open(planted_job(tmp_path, plants), cache=False))


def test_no_nanosecond_of_a_pipeline_counts_in_two_findings() -> None:
    """A bubble is made of messages and idle time, which have findings of their own."""
    check(run_of(gpipe(2, 4), 100, 200))


def test_a_claim_gets_what_those_before_it_left() -> None:
    """Two claims of 6 ns on gaps of 9 ns, then what one lacks in a step: nothing is taken twice, or below zero."""
    idle = {"host_bound_ns": np.array([9]), "waiting_ns": np.array([1])}
    device = replace(run_of(gpipe(2, 4), 100, 200).devices[0], idle_causes=idle)
    claims = [Claim(0, "host_bound_ns", 6), Claim(0, "host_bound_ns", 6, 0, 8, 5, 7), Claim(0, "waiting_ns", 0, 0, 4)]
    left = Unclaimed.after(claims, [device])

    assert [0, 0] == [int(left.idle_ns[0][cause].sum()) for cause in idle]
    assert [(5, 7, 3)] == left.explained[0]
    assert [9, 1] == [int(values.sum()) for values in idle.values()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_a_counterfactual_a_row_and_a_test(kind: str) -> None:
    """Whoever adds a kind of finding says what a step is without it, describes that, and shows when it is found."""
    rows = (ROOT / "docs" / "guides" / "whatif.md").read_text()
    tests = [path for room in ("analysis", "replay") for path in (ROOT / "tests" / room).rglob("test_*.py")]
    tests.remove(Path(__file__))

    assert kind in COUNTERFACTUALS
    assert any(f"`{kind}`" in line for line in rows.splitlines() if line.startswith("| "))
    assert any(f'"{kind}"' in path.read_text() for path in tests)


def test_a_detector_finds_the_kinds_that_it_declares() -> None:
    """Otherwise its findings would escape the test above."""

    def undeclared(context: FindingContext) -> list[Finding]:
        return [Finding("new", "", "", 1, 0.5)]

    detect.DETECTORS[undeclared] = ("declared",)
    try:
        with pytest.raises(AssertionError):
            detect.findings(run_of(gpipe(2, 4), 100, 200).cross_rank)
    finally:
        del detect.DETECTORS[undeclared]

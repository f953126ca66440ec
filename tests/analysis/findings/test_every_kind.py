"""What holds for all kinds of findings: no gain counts twice, and each kind is tested, documented and replayed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dptrace
from dptrace.analysis.compute_findings import detect as compute
from dptrace.analysis.findings import detect
from dptrace.analysis.findings.finding import Finding, FindingContext
from dptrace.replay.counterfactual import COUNTERFACTUALS
from dptrace.replay.findings import findings_of
from dptrace.run.run import Run
from tests.analysis.cross_rank.test_pipeline_bubble import gpipe, run_of
from tests.support.paths import ROOT
from tests.support.planted import Plant, planted_job
from tests.support.real_traces import REAL, real_files

OWN = sorted(path.name for path in (ROOT / "traces").iterdir() if path.is_dir())
OTHERS = sorted({path.parent.name for path in real_files() if "_" in path.parent.name and path.parent.parent == REAL})


INPUTS = ROOT.parent / "shared" / "inputs" / "plants"
PLANTED = sorted(path for path in INPUTS.glob("*") if path.is_dir())


def check_gains(run: Run) -> None:
    """Check that what findings are shown with adds up to what they gain together, of which none counts twice."""
    found = [finding for finding in findings_of(run) if finding.has_gain]
    shown, step_ns = [finding.figure[0] for finding in found], float(np.mean(run.steps()["wall_ns"]))

    assert all(ns >= 0 for ns in shown)
    assert sum(shown) <= step_ns
    assert sum(finding.figure[1] for finding in found) <= 1 + 1e-9
    assert all(finding.share <= 1 for finding in findings_of(run))


KINDS = sorted(
    {
        *("jitter", "straggler"),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [*(ROOT / "traces" / name for name in OWN), *(REAL / name for name in OTHERS), *PLANTED], ids=str
)
def test_gains_of_a_recording_add_up(path: Path) -> None:
    """To what all findings together gain, which is no more than the step."""
    check_gains(dptrace.open(path))


@pytest.mark.heavy
@pytest.mark.parametrize(
    "plants", [PLANTS, *([plant] for plant in PLANTS)], ids=lambda plants: "+".join(p.kind for p in plants)
)
def test_gains_of_planted_causes_add_up(plants: list[Plant], tmp_path: Path) -> None:
    """The same for causes alone and all at once."""
    check_gains(dptrace.open(planted_job(tmp_path, plants), cache=False))


def test_a_kind_has_a_counterfactual_a_row_and_a_test() -> None:
    """Whoever adds a kind of finding says what a step is without it, describes that, and shows when it is found."""
    guide = (ROOT / "docs" / "guides" / "whatif.md").read_text()
    rows = "".join(line for line in guide.splitlines() if line.startswith("| "))
    paths = {path for room in ("analysis", "replay") for path in (ROOT / "tests" / room).rglob("test_*.py")}
    tests = "".join(path.read_text() for path in paths - {Path(__file__)})

    lacking = {
        "an entry in dptrace/replay/counterfactual.py": [
            kind for kind in KINDS if kind not in {*COUNTERFACTUALS, "straggler", "jitter"}
        ],
        "a row in docs/guides/whatif.md": [kind for kind in KINDS if f"`{kind}`" not in rows],
        "its name in a test of analysis or replay": [kind for kind in KINDS if f'"{kind}"' not in tests],
    }
    assert {} == {what: kinds for what, kinds in lacking.items() if kinds}


def test_a_detector_finds_the_kinds_that_it_declares() -> None:
    """Otherwise its findings would escape the test above."""

    def undeclared(context: FindingContext) -> list[Finding]:
        return [Finding("new", "", "", 1, 0.5)]

    detect.DETECTORS[undeclared] = ("declared",)
    try:
        with pytest.raises(AssertionError):
            detect.detected(run_of(gpipe(2, 4), 100, 200).cross_rank)
    finally:
        del detect.DETECTORS[undeclared]

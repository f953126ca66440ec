"""Selected ranks keep what the analysis of all ranks found of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from dptrace.run.run import Run
from tests.support.planted import Plant, planted_job


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = planted_job(tmp_path_factory.mktemp("job"), [Plant(2, "python", 4), Plant(1, "kernel", 2, layer=5)])
    return dptrace.open(folder, cache=False)


@pytest.mark.parametrize("ranks", [{0}, {2}, {1, 3}, {0, 1, 2, 3}])
def test_waits_and_lateness_are_those_among_all_ranks(run: Run, ranks: set[int]) -> None:
    """Rows of the kept ranks are the rows of the whole, in steps, collectives, clocks and stragglers."""
    part = run.select(ranks=ranks)

    for name, columns in (
        ("steps", ["step", "exposed_wait_ns", "exposed_unmatched_ns"]),
        ("matched_collectives", ["kind", "step", "complete", "transfer_ns", "wait_ns", "late_ns"]),
        ("stragglers", ["step", "late_ns", "cost_ns", "cause", "what"]),
        ("clock_offsets", ["at_ns", "uncertainty_ns", "corrected"]),
    ):
        whole, cut = getattr(run, name)().fillna(-1), getattr(part, name)().fillna(-1)
        expected = whole[whole["rank"].isin(ranks)][["rank", *columns]]
        assert expected.to_dict("list") == cut[["rank", *columns]].to_dict("list"), name


def test_findings_are_those_of_the_run(run: Run) -> None:
    """A rank that waits shows whom it waits for, although that rank is left out."""
    part = run.select(ranks={0})

    assert [f.text for f in run.cross_rank.findings] == [f.text for f in part.cross_rank.findings]
    assert 0 == len(part.stragglers())
    for finding in part.cross_rank.findings:
        instance = finding.evidence.get("instance")
        assert instance is None or 0 <= instance < len(part.cross_rank.matches)


def test_steps_and_ranks_together(run: Run) -> None:
    """Steps are selected on all ranks first."""
    part = run.select(ranks={0}, steps=(1, 2))

    assert ["ProfilerStep#1", "ProfilerStep#2"] == part.steps()["step"].tolist()
    assert part.steps()["exposed_wait_ns"].notna().all()
    assert any(finding.kind == "straggler" for finding in part.cross_rank.findings)
    part.to_dict()


def test_without_alignment_a_selection_is_analyzed_as_the_whole(run: Run, tmp_path: Path) -> None:
    """The waits need no common clock."""
    raw = run.select(ranks={0, 3}).analyze_cross_rank(align=False)

    assert not raw.clocks.corrected.any()
    assert [w.total() for w in raw.exposed_waits] == [run.cross_rank.exposed_waits[i].total() for i in (0, 3)]

"""The delays behind a finding on stragglers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import dptrace
from dptrace.analysis.findings.finding import Finding
from dptrace.replay.gains.delayed_ranks import level_ranks
from dptrace.replay.gains.host_time import LevelRanks
from dptrace.replay.whatif import Replay
from tests.support.planted import Plant, planted_job


def finding_of(run: dptrace.Run) -> Finding:
    return next(finding for finding in run.cross_rank.findings if finding.kind == "straggler")


def test_each_delay_is_a_segment_of_its_rank(late: dptrace.Run) -> None:
    """Rank 1's device is 5 ms late in three steps; its segments are in its process and do not overlap."""
    change = level_ranks(finding_of(late), late, late.replay.model)

    assert isinstance(change, LevelRanks)
    assert [(1, 5_000_000, True)] * 3 == [(one.process, one.late_ns, one.on_device) for one in change.segments]
    ends = sorted((one.start_ns, one.end_ns) for one in change.segments)
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))


def test_a_cause_that_no_rank_is_at_fault_for_has_no_counterfactual(late: dptrace.Run) -> None:
    """Recordings that begin at different points, and causes that the trace does not show, have a reason instead."""
    finding = finding_of(late)
    for cause in ("unlevel_start", "uneven_end", "unknown"):
        other = replace(finding, evidence=finding.evidence | {"cause": cause})
        assert isinstance(level_ranks(other, late, late.replay.model), str)


def test_a_part_of_the_ranks_keeps_its_findings(late: dptrace.Run) -> None:
    """Findings on some ranks are those of the whole run, and so are their delays."""
    part = late.select(ranks=[1])
    change = level_ranks(finding_of(part), part, late.replay.model)

    assert isinstance(change, LevelRanks)
    assert 3 == len(change.segments)


def length_ns(run: dptrace.Run) -> float:
    """Return the mean step of the mean rank, from the first step's start to the last one's end."""
    bounds = [timeline.windows.bounds for timeline in run.timelines]
    return float(np.mean([(own[-1] - own[0]) / (len(own) - 1) for own in bounds]))


@pytest.fixture(scope="module")
def clean_ns(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Return the step of the job without anything planted."""
    return length_ns(dptrace.open(planted_job(tmp_path_factory.mktemp("clean")), cache=False))


@pytest.mark.heavy
@pytest.mark.parametrize(
    "plant",
    [
        Plant(1, "allocator", 6, [2]),
        Plant(2, "loader", 5),
        Plant(3, "pause", 4, layer=4),
        Plant(0, "operator", 4, layer=5),
        Plant(2, "kernel", 1.5),
    ],
    ids=lambda plant: plant.kind,
)
def test_the_gain_is_what_the_job_took_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_ns: float, plant: Plant
) -> None:
    """The same job was made with and without the delay: the replay without it is within 2 % of the truth."""
    # These files do not record that all-reduces wait for kernels, which a replay doubts, rightly.
    monkeypatch.setattr(Replay, "doubts_about", lambda *asked: ())
    run = dptrace.open(planted_job(tmp_path, [plant]), cache=False)
    (finding,) = [found for found in run.with_gains().cross_rank.findings if found.kind == "straggler"]
    assert finding.gain is not None

    assert length_ns(run) - clean_ns == pytest.approx(finding.gain.ns, rel=0.02)

"""The delays behind a finding on stragglers."""

from __future__ import annotations

import itertools

from msgspec.structs import replace

import dptrace
from dptrace.analysis.findings.finding import Finding
from dptrace.replay.gains.delayed_ranks import level_ranks
from dptrace.replay.gains.host_time import LevelRanks


def finding_of(run: dptrace.Run) -> Finding:
    return next(finding for finding in run.cross_rank.findings if finding.kind == "straggler")


def test_each_delay_is_a_segment_of_its_rank(late: dptrace.Run) -> None:
    """Rank 1's device is 5 ms late in three steps; its segments are in its process and do not overlap."""
    change = level_ranks(finding_of(late), late, late.replay.model)

    assert isinstance(change, LevelRanks)
    assert [(1, 5_000_000, True)] * 3 == [(one.process, one.late_ns, one.on_device) for one in change.segments]
    ends = sorted((one.start_ns, one.end_ns) for one in change.segments)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


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

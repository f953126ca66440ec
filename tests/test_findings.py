"""What matters about a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dptrace
from dptrace.device import figures_of
from dptrace.findings import Finding, findings
from dptrace.ranks.match import match
from dptrace.ranks.stragglers import stragglers
from dptrace.timeline import Phase, Timeline
from tests.builders import TimelineBuilder
from tests.real_traces import needs_real_traces, real

MS = 1_000_000


def told(*timelines: Timeline) -> tuple[Finding, ...]:
    devices = [figures_of(timeline) for timeline in timelines]
    matches = match(devices, len(devices))
    return findings(devices, matches, stragglers(matches, devices))


def step(rank: int = 0, **kinds: tuple[int, int]) -> TimelineBuilder:
    """A step of 100 ms, all of it compute, but for what is named."""
    build = TimelineBuilder(rank, bounds=(0, 100 * MS))
    edges = sorted(kinds.items(), key=lambda item: item[1])
    at = 0
    for name, (start, end) in edges:
        build.compute(at * MS, start * MS, Phase.BACKWARD)
        if name != "gap":
            getattr(build, name)(start * MS, end * MS)
        at = end
    return build.compute(at * MS, 100 * MS, Phase.OPTIMIZER) if at < 100 else build


def test_nothing_is_said_when_nothing_is_wrong() -> None:
    """A GPU that computes all the time has no finding; nor has a run without steps, or a cost below a hundredth."""
    assert () == told(step().build(), step(1).build())
    assert () == told()


def test_exposed_communication_is_told_with_its_tail() -> None:
    """An all-reduce after backward costs its time; the advice is to start earlier, the evidence a step and rank."""
    (finding,) = told(step(0, all_reduce=(60, 90)).build(), step(1, all_reduce=(60, 90)).build())

    assert ("exposed_comm", 30 * MS, 0.3) == (finding.kind, finding.cost_ns, pytest.approx(finding.share))
    assert "all_reduce that no compute hides, 100 % of it after backward's last kernel" in finding.text
    assert "Start it while backward goes on" in finding.advice
    assert ("ProfilerStep#0", 30 * MS) == (finding.evidence["step"], finding.evidence["exposed_ns"])


def test_waiting_for_a_late_rank_is_the_stragglers_and_not_the_collectives() -> None:
    """The others' wait is told once, under the rank that causes it, dearest first."""
    late = [step(0, all_reduce=(60, 90)), step(1, all_reduce=(85, 90))]
    found = told(*(build.build() for build in late))

    assert ["straggler", "exposed_comm"] == [finding.kind for finding in found]
    assert (25 * MS, 5 * MS) == (found[0].cost_ns, found[1].cost_ns)
    assert found[0].text.startswith(
        "Rank 1 keeps the others waiting: last once (in 100 % of the collectives), by 25.0 ms"
    )
    assert "its own compute takes longer" in found[0].text
    assert {"rank": 1, "step": "ProfilerStep#0", "collective": "all_reduce"}.items() <= found[0].evidence.items()


def test_gradients_that_go_one_by_one_are_told() -> None:
    """Many small all-reduces in a step: buckets are the advice."""
    build = step(0, gap=(50, 98))
    for k in range(40):
        build.all_reduce((50 + k) * MS, (51 + k) * MS, bytes=40_000)
    finding = next(finding for finding in told(build.build()) if finding.kind == "exposed_comm")

    assert "40 in a step, of 40 kB on average" in finding.text
    assert "bucket" in finding.advice


@pytest.mark.parametrize(
    ("kind", "launch", "loading"), [("host_bound", 58, None), ("data_loading", 58, (45, 60)), ("waiting", 1, None)]
)
def test_idle_time_is_told_by_cause(kind: str, launch: int, loading: tuple[int, int] | None) -> None:
    """A gap of 20 ms of one of two ranks costs 10 on the mean GPU, and the worse rank is named."""
    gap = step(0, gap=(40, 60)).build()
    spans = tuple(np.array([edge * MS]) for edge in loading) if loading else gap.loading
    gap = replace(gap, launch_ns=np.array([0, launch * MS]), loading=spans)  # type: ignore[arg-type]
    found = {finding.kind: finding for finding in told(gap, step(1).build())}

    assert kind in found
    assert found[kind].cost_ns == (7.5 if kind == "data_loading" else 10) * MS
    assert "most on rank 0" in found[kind].text
    assert "ProfilerStep#0" == found[kind].evidence["step"]


def test_copies_that_nothing_hides_are_told() -> None:
    """Exposed memory time is a finding of its own."""
    (finding,) = told(step(0, memory=(10, 20)).build())

    assert ("copies", 10 * MS) == (finding.kind, finding.cost_ns)
    assert {"kind", "text", "advice", "cost_ns", "share", "evidence"} == set(finding.to_dict())


@needs_real_traces
def test_real_runs_name_what_costs_them_most() -> None:
    """The straggler of one, the per-parameter all-reduces of another."""
    run = dptrace.open(real("straggler_v100_4ranks"))
    matches = match(run.devices, run.world_size)
    first = findings(run.devices, matches, stragglers(matches, run.devices))[0]
    one_by_one = dptrace.open(real("perparam_v100_rank1of2"))
    matches = match(one_by_one.devices, one_by_one.world_size)
    kinds = findings(one_by_one.devices, matches, stragglers(matches, one_by_one.devices))

    assert ("straggler", 2) == (first.kind, first.evidence["rank"])
    assert any(finding.kind == "exposed_comm" and finding.share > 0.1 for finding in kinds)

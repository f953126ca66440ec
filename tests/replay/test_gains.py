"""Findings with what a step would gain without them."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from dptrace.analysis.findings.finding import Finding, Gain, by_gain
from dptrace.replay.gains import Measurer, with_gains
from dptrace.replay.transforms.change import Compute, HiddenCollectives
from dptrace.viewers.gantt.chart import chart
from dptrace.viewers.gantt.finding_places import finding_places
from tests.support.paths import TRACES
from tests.support.planted import Plant, planted_job
from tests.support.real_traces import needs_real_traces, real
from tests.support.replay_files import job_rank


def gain_of(run: dptrace.Run, kind: str) -> tuple[Finding, Gain]:
    """Return a run's most expensive finding of a kind, and its gain."""
    finding = next(finding for finding in run.with_gains().cross_rank.findings if finding.kind == kind)
    assert finding.gain is not None
    return finding, finding.gain


def test_a_straggler_gains_what_it_costs(late: dptrace.Run) -> None:
    """Nothing else holds the ranks up: a step would be shorter by all that they wait, as the what-if says."""
    finding, gain = gain_of(late, "straggler")

    assert 5_000_000 == finding.cost_ns
    assert 5_000_000 == pytest.approx(gain.ns, abs=10)
    assert late.whatif(no_straggler=True).step_gain_ns == gain.ns == (gain.next_ns or 0) + (gain.rest_ns or 0)
    assert 5_000_000 == pytest.approx(gain.median_step_ns, abs=10)
    assert gain.low_ns is not None
    assert gain.high_ns is not None
    assert gain.low_ns <= 5_000_000 <= gain.high_ns


def test_idle_time_behind_another_rank_gains_nothing(hidden: dptrace.Run) -> None:
    """Rank 0 waits for its data while rank 1 computes: the time is counted, but no step would be shorter."""
    finding, gain = gain_of(hidden, "data_loading")

    assert 2_500_000 == finding.cost_ns
    assert 0 == gain.ns
    assert "2.50 ms" in gain.reason
    assert "critical path" in gain.reason


def test_findings_stay_as_they_are(late: dptrace.Run) -> None:
    """Gains add to findings that are no stragglers: their costs and texts stay, and so does the run that was asked."""
    plain, gained = late.findings(), late.with_gains().findings()
    others = plain[plain["kind"] != "straggler"].reset_index(drop=True)

    assert others.equals(gained[gained["kind"] != "straggler"][list(plain.columns)].reset_index(drop=True))
    assert "gain_ns" not in plain


def test_findings_on_some_steps_have_gains(late: dptrace.Run) -> None:
    """Of some steps, findings are found again, with gains."""
    part = late.with_gains().select(steps=(2, 3))

    assert all(finding.gain is not None for finding in part.cross_rank.findings)
    assert {"straggler"} <= set(part.findings()["kind"])


@pytest.mark.parametrize(("gone", "reason"), [(True, "second time"), (False, "launched the work are not known")])
def test_a_run_that_cannot_be_replayed_says_why(tmp_path: Path, gone: bool, reason: str) -> None:
    """Without its files, or with events of the device alone, there is no gain and no error, but a reason."""
    for rank, forward in enumerate((300, 5300)):
        file = job_rank(rank, forward, 5523)
        file.events[:] = [event for event in file.events if gone or event.get("cat") == "kernel"]
        file.write(tmp_path / f"rank{rank}.json")
    run = dptrace.open(tmp_path, cache=False)
    for path in tmp_path.iterdir() if gone else ():
        path.unlink()
    gains = [finding.gain for finding in run.with_gains().cross_rank.findings]

    assert gains
    assert all(gain and gain.ns is None and reason in gain.reason for gain in gains)


def test_delays_that_hide_each_other_gain_together(hidden: dptrace.Run) -> None:
    """Rank 0 loads data for 5 ms while rank 1 computes: neither gains alone, both together gain all of it."""
    found = hidden.with_gains().cross_rank.findings
    first, second = (finding for finding in found if finding.kind == "straggler")

    assert found[:2] == (first, second)
    assert [0, 0] == [finding.gain and finding.gain.ns for finding in (first, second)]
    assert [0, 5_000_000] == [finding.figure[0] for finding in (first, second)]
    assert not first.is_minor
    assert hidden.whatif(no_straggler=True).step_gain_ns == 5_000_000


def test_the_largest_gain_comes_first(hidden: dptrace.Run) -> None:
    """What is counted most comes after what would gain more; without gains the costs decide."""
    found = [finding for finding in hidden.with_gains().cross_rank.findings if finding.kind != "straggler"]

    assert ["data_loading", "exposed_comm"] == [finding.kind for finding in hidden.cross_rank.findings]
    assert ["exposed_comm", "data_loading"] == [finding.kind for finding in found]
    assert list(found) == list(by_gain(found))


def test_one_cause_counts_once(late: dptrace.Run) -> None:
    """What findings are shown with adds up to no more than what all of them gain together."""
    found = late.with_gains().cross_rank.findings
    step_ns = int(late.steps()["wall_ns"].mean())

    assert sum(finding.figure[0] for finding in found if finding.gain and finding.gain.ns is not None) <= step_ns
    assert all(one.gain.next_ns <= one.gain.ns for one in found if one.gain and one.gain.ns and one.gain.next_ns)


@needs_real_traces
def test_a_known_straggler_gains_what_its_removal_gave() -> None:
    """Rank 2 sleeps for a second in each step: 979 ms of it would come back, as a what-if says."""
    run = dptrace.open(real("straggler_v100_4ranks"))
    finding, gain = gain_of(run, "straggler")

    assert gain.ns is not None
    assert 979 == pytest.approx(gain.ns / 1e6, abs=5)
    assert run.whatif(no_straggler=True).step_gain_ns == pytest.approx(gain.ns, rel=0.01)
    assert finding.cost_ns > gain.ns


def test_waiting_for_missing_ranks_is_no_gain(tmp_path: Path) -> None:
    """Of two ranks one was recorded: how much of its all-reduce is waiting is unknown, so no number is promised."""
    path = job_rank(0, 300, 5523).write(tmp_path / "rank0.json")
    finding, gain = gain_of(dptrace.open(path, cache=False), "exposed_comm")

    assert finding.cost_ns > 5_000_000
    assert gain.ns is None
    assert "missing" in gain.reason


# What one change gains, with its range.


def test_a_gain_is_that_of_a_what_if(run: dptrace.Run) -> None:
    """The gain of a change and its median step are those that a what-if of the same change has."""
    measured, answer = Measurer(run.replay).measure(Compute(2)).gain, run.whatif(compute=2)

    assert answer.step_gain_ns == measured.ns
    assert answer.measured_step_ns - answer.predicted_step_ns == measured.median_step_ns


def test_a_change_by_nothing_gains_nothing(run: dptrace.Run) -> None:
    """The unchanged run ends when it did; the range has the least error of a replay."""
    gain = Measurer(run.replay).measure(Compute(1)).gain

    assert (0, 0, 8_000) == (gain.ns, gain.low_ns, gain.high_ns)


def test_hidden_collectives_leave_the_links_their_time(run: dptrace.Run) -> None:
    """An all-reduce of 100 µs under compute: all of it comes back, and the links need no more than that."""
    change = HiddenCollectives("all_reduce")

    assert 100_000 == Measurer(run.replay).measure(change).gain.ns
    assert 100_000 == change.least_step_ns(run.replay.model)


def test_ranks_that_are_late_in_turns_are_jitter(tmp_path: Path) -> None:
    """Each of four ranks computes longer in one step, too little for a finding of its own: 20 µs more cost 20 µs."""
    cost = []
    for ms in (0.12, 0.14):
        plants = [Plant(rank, "kernel", ms, [rank]) for rank in range(4)]
        run = dptrace.open(planted_job(tmp_path / str(ms), plants), cache=False).with_gains()
        found = {finding.kind: finding for finding in run.cross_rank.findings}
        assert "straggler" not in found
        cost.append(found["jitter"].cost_ns)

    assert 20_000 == pytest.approx(cost[1] - cost[0], abs=10)


def test_what_gains_nothing_is_not_among_the_first(hidden: dptrace.Run) -> None:
    """It stands after what gains something, and above no chart, however much of it was counted."""
    run = hidden.with_gains()
    found = run.cross_rank.findings
    minor = [finding.text for finding in found if finding.is_minor]

    assert minor == [finding.text for finding in found[-len(minor) :]]
    assert not set(minor) & {entry["text"] for entry in finding_places(run, chart(run))}


def test_findings_stay_where_a_replay_does_not_know_their_gain() -> None:
    """Ranks that share a GPU wait for each other without a recorded reason: the costs are those that waiting shows."""
    run = dptrace.open(TRACES / "ddp_h200_2ranks")
    found = with_gains(run).cross_rank.findings

    assert [one.text for one in run.cross_rank.findings] == [one.text for one in found]
    assert all(one.gain is not None and one.gain.ns is None and "unexplained" in one.gain.doubts for one in found)


def test_what_is_said_of_the_replay_of_one_step_is_that_of_a_step() -> None:
    """Not that of the whole recording divided by the steps that were chosen."""
    whole = dptrace.open(TRACES / "ddp_h200_2ranks")
    answers = [run.whatif() for run in (whole, whole.select(steps=(22, 22)))]

    assert answers[0].path_ns == answers[1].path_ns
    assert {doubt.text for doubt in answers[0].doubts} == {doubt.text for doubt in answers[1].doubts}

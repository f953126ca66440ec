"""Findings with what a step would gain without them."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from dptrace.analysis.findings.evidence import Idle
from dptrace.analysis.findings.finding import Finding, Gain
from dptrace.errors import DptraceError
from dptrace.replay.findings import findings_of
from dptrace.replay.gains import Measurer
from dptrace.replay.transforms.change import Change, Compute, HiddenCollectives
from dptrace.replay.transforms.launches import NoRecompute
from dptrace.replay.transforms.schedule import Reschedule
from dptrace.replay.transforms.stragglers import NoStraggler
from dptrace.viewers.gantt.chart import chart
from dptrace.viewers.gantt.finding_places import finding_places
from tests.support.mesh import Mesh
from tests.support.paths import ROOT, TRACES
from tests.support.planted import Plant, planted_job
from tests.support.real_traces import needs_real_traces, real
from tests.support.replay_files import job_rank

PLANTS = ROOT.parent / "shared" / "inputs" / "plants"


def gain_of(run: dptrace.Run, kind: str) -> tuple[Finding, Gain]:
    """Return a run's first finding of a kind, and its gain."""
    finding = next(finding for finding in findings_of(run) if finding.kind == kind)
    return finding, finding.gain


def test_a_straggler_gains_what_others_wait(late: dptrace.Run) -> None:
    """Nothing else holds the ranks up: a step would be shorter by all that they wait, as the what-if says."""
    finding, gain = gain_of(late, "straggler")

    assert 2_500_000 == finding.counted_ns  # of two ranks, one waits for 5 ms
    assert 5_000_000 == pytest.approx(gain.ns, abs=10)
    assert late.whatif(no_straggler=True).step_gain_ns == gain.ns == gain.marginal_ns
    assert 5_000_000 == pytest.approx(gain.median_step_ns, abs=10)
    assert gain.low_ns is not None
    assert gain.high_ns is not None
    assert gain.low_ns <= 5_000_000 <= gain.high_ns


@pytest.mark.heavy
def test_buckets_gain_nothing_more_where_all_reduces_take_no_time() -> None:
    """The first change leaves the second one no messages whose time it could predict."""
    measurer = Measurer(dptrace.open(TRACES / "naive_cpu_2ranks", cache=False).replay)
    hidden = HiddenCollectives("all_reduce")

    assert 0 < measurer.gain_ns([hidden]) == measurer.gain_ns([Reschedule(cap_bytes=32 << 20), hidden])


def test_a_change_that_can_not_be_made_is_an_error(late: dptrace.Run) -> None:
    """What the run does not have is no change that gains nothing, also among others."""
    measurer = Measurer(late.replay)

    with pytest.raises(DptraceError, match="no forward work is repeated"):
        measurer.gain_ns([Compute(2), NoRecompute()])


@pytest.mark.heavy
def test_a_gain_does_not_depend_on_what_was_asked_before(tmp_path: Path) -> None:
    """Of several sets of changes, in any order: bounds that are known from before only save work."""
    run = dptrace.open(planted_job(tmp_path, [Plant(1, "loader", 20)], kernel_us=3000), cache=False)
    late, hidden = NoStraggler(), HiddenCollectives("all_reduce")
    sets: list[list[Change]] = [[late], [late, hidden], [hidden], [late, Compute(2)], [late, hidden, Compute(2)]]
    sets += [[hidden, late], [late]]
    expected = [Measurer(run.replay).gain_ns(one) for one in sets]

    measurer = Measurer(run.replay)
    assert expected == [measurer.gain_ns(one) for one in sets]
    assert [*reversed(expected)] == [measurer.gain_ns(one) for one in reversed(sets)]
    assert 0 < expected[0] < expected[4]


def test_idle_time_behind_another_rank_gains_nothing(hidden: dptrace.Run) -> None:
    """Rank 0 waits for its data while rank 1 computes: the time is counted, but no step would be shorter."""
    finding, gain = gain_of(hidden, "data_loading")

    assert 2_500_000 == finding.counted_ns
    assert 0 == gain.ns
    assert "2.50 ms" in gain.reason
    assert "critical path" in gain.reason


def test_findings_on_some_steps_are_those_of_these_steps(late: dptrace.Run) -> None:
    """They are found again, with gains of the same replay."""
    found = findings_of(late.select(steps=(2, 3)))

    assert all(finding.has_gain for finding in found)
    assert "straggler" == found[0].kind
    assert {"ProfilerStep#2", "ProfilerStep#3"} == set(found[0].evidence.to_dict()["lost_by_step_ns"])


@pytest.mark.heavy
@pytest.mark.skipif(not PLANTS.exists(), reason=f"the inputs are not here ({PLANTS})")
def test_a_step_that_gains_less_than_a_rank_is_late_says_why() -> None:
    """Of 99 ms that rank 0 sleeps longer, step 4 gains 77: other ranks still start it late. Step 8 gains all of it."""
    run = dptrace.open(PLANTS / "mesh_opt")
    fourth, eighth = (findings_of(run.select(steps=f"{step}:{step}"))[0].gain for step in (4, 8))

    assert fourth.ns == pytest.approx(77e6, rel=0.05)
    assert "98.9 ms that it takes longer" in fourth.reason
    assert eighth.ns == pytest.approx(100e6, rel=0.05)
    assert not eighth.reason


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
    found = findings_of(run)

    assert found
    assert all(finding.gain.ns is None and reason in finding.gain.reason for finding in found)


def test_delays_that_hide_each_other_gain_together(hidden: dptrace.Run) -> None:
    """Rank 0 loads data for 5 ms while rank 1 computes: neither gains alone, both gain all of it, and that is first."""
    found = findings_of(hidden)
    first, second = (finding for finding in found if finding.kind == "straggler")

    assert found[:2] == (first, second)
    assert [0, 0] == [finding.gain.ns for finding in (first, second)]
    assert [5_000_000, 0] == [finding.figure[0] for finding in (first, second)]
    assert not second.is_minor
    assert hidden.whatif(no_straggler=True).step_gain_ns == 5_000_000


@pytest.mark.heavy
def test_a_slow_rank_behind_a_late_host_gains_after_it(tmp_path: Path) -> None:
    """Rank 5 computes slowly in one group, rank 1 loads data late in another, as the finding on all loaders says."""
    both, slow = Mesh(slow={5: 1.35}, late_us={1: 900}), Mesh(slow={5: 1.35})
    run = dptrace.open(both.write(tmp_path / "run"), cache=False)

    found = [one for one in findings_of(run) if one.kind == "straggler" and not one.is_minor]

    assert [[1], [5]] == [one.evidence.to_dict()["ranks"] for one in found]
    later, hidden = (one.gain.marginal_ns for one in found)
    assert later == pytest.approx(1000 * (both.step_us() - slow.step_us()), abs=60_000)
    assert (later or 0) + (hidden or 0) == pytest.approx(1000 * (both.step_us() - Mesh().step_us()), rel=0.02)


def test_the_largest_gain_comes_first(hidden: dptrace.Run) -> None:
    """What is counted most comes after what would gain more."""
    found = [finding for finding in findings_of(hidden) if finding.kind != "straggler"]

    assert ["data_loading", "exposed_comm"] == [one.kind for one in sorted(found, key=lambda one: -one.counted_ns)]
    assert ["exposed_comm", "data_loading"] == [finding.kind for finding in found]


@pytest.mark.heavy
def test_one_stall_is_one_finding(tmp_path: Path) -> None:
    """The loader of one rank is late by 5 ms: its idle time has no gain of its own once that rank is level."""
    run = dptrace.open(planted_job(tmp_path, [Plant(1, "loader", 5)]), cache=False)
    first, *others = findings_of(run)

    assert ("straggler", "data_loading") == (first.kind, first.evidence.to_dict()["cause"])
    assert 5_000_000 == pytest.approx(first.figure[0], rel=0.1)
    loading = next(finding for finding in others if finding.kind == "data_loading")
    assert loading.is_minor
    assert 5_000_000 == pytest.approx(loading.gain.ns, rel=0.1)
    assert "Findings above have part of the same time" in loading.gain.reason


@pytest.mark.heavy
def test_what_all_do_is_not_one_ranks(tmp_path: Path) -> None:
    """All loaders are late by 5 ms, and one by 2 ms more: first that is its share, then the rest is everybody's."""
    plants = [Plant(rank, "loader", 7 if rank == 1 else 5) for rank in range(4)]
    found = findings_of(dptrace.open(planted_job(tmp_path, plants), cache=False))
    late, loading = found[:2]

    assert ("straggler", "data_loading") == (late.kind, loading.kind)
    assert [2_000_000, 5_000_000] == [pytest.approx(one.figure[0], rel=0.1) for one in (late, loading)]


def test_shown_gains_add_up_to_that_of_all(late: dptrace.Run, hidden: dptrace.Run) -> None:
    """To the nanosecond, and each is what the changes up to it gain together."""
    for run in (late, hidden):
        found = [finding for finding in findings_of(run) if finding.has_gain]
        step_ns = int(run.steps()["wall_ns"].mean())

        assert 0 < sum(finding.figure[0] for finding in found) <= step_ns
        assert found[0].figure[0] > 0


@pytest.mark.heavy
@needs_real_traces
def test_a_known_straggler_gains_what_its_removal_gave() -> None:
    """Rank 2 sleeps for a second in each step: 979 ms of it would come back, as a what-if says."""
    run = dptrace.open(real("straggler_v100_4ranks"))
    finding, gain = gain_of(run, "straggler")

    assert gain.ns is not None
    assert 979 == pytest.approx(gain.ns / 1e6, abs=5)
    assert run.whatif(no_straggler=True).step_gain_ns == pytest.approx(gain.ns, rel=0.01)
    assert finding.counted_ns > 0


def test_waiting_for_missing_ranks_is_no_gain(tmp_path: Path) -> None:
    """Of two ranks one was recorded: how much of its all-reduce is waiting is unknown, so no number is promised."""
    path = job_rank(0, 300, 5523).write(tmp_path / "rank0.json")
    finding, gain = gain_of(dptrace.open(path, cache=False), "exposed_comm")

    assert finding.counted_ns > 5_000_000
    assert gain.ns is None
    assert "missing" in gain.reason


# What one change gains, with its range.


@pytest.mark.heavy
def test_host_time_gains_no_more_than_steps_without_the_profiler_have() -> None:
    """A step of 4.85 ms takes 3.16 without the profiler, of which 1.33 are idle: what is more is the profiler's."""
    found = [one for one in findings_of(dptrace.open(TRACES / "single_h200")) if isinstance(one.evidence, Idle)]

    [most] = {one.evidence.unprofiled_gain_ns for one in found if isinstance(one.evidence, Idle)} - {None}
    assert most is not None
    of_host = [one for one in found if one.evidence.to_dict().get("unprofiled_gain_ns") is not None]
    assert 0.9 * most < sum(one.gain.marginal_ns or 0 for one in of_host) <= most
    assert all((one.gain.high_ns or 0) <= most for one in of_host)


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


@pytest.mark.heavy
def test_ranks_that_are_late_in_turns_are_jitter(tmp_path: Path) -> None:
    """Each of four ranks computes longer in one step, too little for a finding of its own: 20 µs more gain 20 µs."""
    gained = []
    for ms in (0.12, 0.14):
        plants = [Plant(rank, "kernel", ms, [rank]) for rank in range(4)]
        run = dptrace.open(planted_job(tmp_path / str(ms), plants), cache=False)
        found = {finding.kind: finding for finding in findings_of(run)}
        assert "straggler" not in found
        gained.append(found["jitter"].figure[0])

    assert 20_000 == pytest.approx(gained[1] - gained[0], abs=10)


def test_what_gains_nothing_is_not_among_the_first(hidden: dptrace.Run) -> None:
    """It stands after what gains something, and above no chart, however much of it was counted."""
    found = findings_of(hidden)
    minor = [finding.text for finding in found if finding.is_minor]

    assert minor == [finding.text for finding in found[-len(minor) :]]
    assert not set(minor) & {entry["text"] for entry in finding_places(hidden, chart(hidden))}


@pytest.mark.heavy
def test_where_a_replay_cannot_tell_waiting_has_no_cause() -> None:
    """Ranks that share a GPU wait for each other without a recorded reason: who waits for whom is measured."""
    found = findings_of(dptrace.open(TRACES / "ddp_h200_2ranks"))
    late = next(finding for finding in found if finding.kind == "straggler")

    assert all(one.gain.ns is None and one.gain.reason for one in found)
    assert "Rank 1 waits for rank 0: up to 1.77 ms late at an all_reduce in ProfilerStep#21." == late.text
    assert "unknown" == late.evidence.to_dict()["cause"]


def test_what_is_said_of_the_replay_of_one_step_is_that_of_a_step() -> None:
    """Not that of the whole recording divided by the steps that were chosen."""
    whole = dptrace.open(TRACES / "ddp_h200_2ranks")
    answers = [run.whatif() for run in (whole, whole.select(steps=(22, 22)))]

    assert answers[0].path_ns == answers[1].path_ns
    assert {doubt.text for doubt in answers[0].doubts} == {doubt.text for doubt in answers[1].doubts}


@pytest.mark.heavy
def test_all_ranks_that_wait_are_named(tmp_path: Path) -> None:
    """Also one that is itself late where the late rank is latest, and waits in the other steps."""
    plants = [Plant(1, "python", 20.0, (0, 1, 3)), Plant(1, "python", 30.0, (2,)), Plant(2, "allocator", 25.0, (2,))]
    planted_job(tmp_path, plants, ranks=3)
    finding = next(one for one in findings_of(dptrace.open(tmp_path)) if one.evidence.rank == 1)

    assert [0, 2] == finding.evidence.to_dict()["waiting_ranks"]


@pytest.mark.heavy
@pytest.mark.parametrize(("missing", "said"), [((1,), "rank 1 was not recorded"), ((), "collectives lack ranks")])
def test_only_ranks_without_a_file_were_not_recorded(missing: tuple[int, ...], said: str, tmp_path: Path) -> None:
    """A collective may lack a rank whose file is there, but does not have it."""
    folder = planted_job(tmp_path / "run")
    for rank in missing:
        (folder / f"rank{rank}.json").unlink()
    measurer = Measurer(dptrace.open(folder).replay)
    vars(measurer.replay)["held"] = measurer.replay.model

    assert said in measurer.as_late("it gains nothing")
    assert bool(missing) == ("not recorded" in measurer.as_late("it gains nothing"))

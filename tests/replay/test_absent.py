"""Ranks that are missing, cut or without marks: what is said of the others stands, and what is not known is bounded."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from shutil import copy2

import pytest

import dptrace
from dptrace.analysis.findings.finding import Finding
from dptrace.core.units import duration
from dptrace.errors import UsageError
from dptrace.replay.findings import findings_of
from tests.support.mesh import Mesh
from tests.support.paths import ROOT
from tests.support.programs import Plant, data_parallel, run, write

PLANTS = ROOT.parent / "shared" / "inputs" / "plants"
needs_plants = pytest.mark.skipif(not PLANTS.exists(), reason=f"the inputs are not here ({PLANTS})")
SLOW = Mesh(slow={5: 1.3})
TRUE_NS = 1000 * (SLOW.step_us() - Mesh().step_us())


def late(run: dptrace.Run) -> list[Finding]:
    """Return the findings on late ranks that are not minor."""
    return [finding for finding in findings_of(run) if finding.kind == "straggler" and not finding.is_minor]


@pytest.mark.heavy
@pytest.mark.parametrize("spoiled", ["missing", "cut", "unmarked"])
def test_a_straggler_is_found_although_another_rank_is_spoiled(tmp_path: Path, spoiled: str) -> None:
    """Rank 2 has no trace, half of one, or one without steps; what rank 5 costs the others is measured all the same."""
    which: dict[str, Collection[int]] = {spoiled: (2,)}
    run = dptrace.open(SLOW.write(tmp_path / "run", **which), cache=False)

    [finding] = late(run)

    gain = finding.gain
    assert [5] == finding.evidence.to_dict()["ranks"]
    assert gain.ns is not None
    assert gain.low_ns is not None
    assert gain.high_ns is not None
    assert gain.ns == pytest.approx(TRUE_NS, rel=0.1)
    # A rank that is missing may come as late as the last of the others: then the straggler costs nothing.
    assert (spoiled == "missing") == (gain.low_ns == 0)
    assert gain.low_ns <= TRUE_NS <= gain.high_ns
    assert (spoiled != "missing") == any("--ignore 2" in note and "rank2.pt" in note for note in run.notes)


@pytest.mark.heavy
def test_a_straggler_without_a_trace_is_named(tmp_path: Path) -> None:
    """Rank 5 has no trace: the others' collectives show that it came late, and what a step gains if it does not."""
    run = dptrace.open(SLOW.write(tmp_path / "run", missing=(5,)), cache=False)

    [finding] = late(run)

    assert ([5], "not_recorded") == (finding.evidence.to_dict()["ranks"], finding.evidence.to_dict()["cause"])
    assert finding.gain.ns == pytest.approx(TRUE_NS, rel=0.1)
    assert finding.evidence.rank in run.ranks


def without(rank: int, plant: str, folder: Path) -> dptrace.Run:
    """Open a recording without the trace of a rank."""
    for file in sorted((PLANTS / plant).glob("*.json.gz")):
        if not file.name.startswith(f"rank{rank}."):
            copy2(file, folder)
    return dptrace.open(folder, cache=False)


@pytest.mark.heavy
@needs_plants
def test_all_that_is_said_of_a_rank_without_a_trace_has_one_figure(tmp_path: Path) -> None:
    """The slow middle stage of a pipeline has none. Sends and receives run at once: findings on them, and the reason
    why no gain is known, have the exposed communication of the headline, and all name the rank.
    """
    run = without(1, "ppt_slow1", tmp_path)
    exposed_ns = run.steps()["exposed_comm_ns"].mean()

    found = [finding for finding in findings_of(run) if finding.kind == "exposed_comm"]

    assert sum(finding.counted_ns for finding in found) == pytest.approx(exposed_ns, rel=0.001)
    assert all("rank 1 was not recorded" in finding.text for finding in found)
    assert all(f"Rank 1 was not recorded, and {duration(exposed_ns)}" in finding.gain.reason for finding in found)


@pytest.mark.heavy
@needs_plants
def test_what_an_absent_rank_gains_after_those_it_waited_for_is_unknown(tmp_path: Path) -> None:
    """Rank 0 sleeps 100 ms, so that its peer without a trace is late for a third rank: that rank 0 gains may be hidden
    by its peer, and what the peer gains once rank 0 is not late is beyond what it gains alone.
    """
    found = {tuple(one.evidence.to_dict()["ranks"]): one.gain for one in late(without(1, "mesh_opt", tmp_path))}

    assert found[(0,)].low_ns == 0
    assert found[(0,)].high_ns == pytest.approx(91e6, rel=0.1)
    assert found[(1,)].ns is None
    assert "rank 1 was not recorded" in found[(0,)].reason


@pytest.mark.heavy
@needs_plants
def test_a_lateness_that_an_absent_rank_may_have_too_is_no_gain(tmp_path: Path) -> None:
    """Rank 2 sleeps before an all-reduce, the others after it, one of which has no trace: without any, nothing would
    change. Each gain is within its range, which reaches 0.
    """
    found = [one.gain for one in findings_of(without(1, "hid_comp3", tmp_path)) if one.kind == "straggler"]

    assert 2 == len(found)
    assert all(gain.low_ns == 0 for gain in found)
    assert all((gain.marginal_ns or 0) <= (gain.high_ns or 0) < 20e6 for gain in found)
    assert sum(gain.marginal_ns or 0 for gain in found) < 5e6


@pytest.mark.heavy
def test_what_is_little_beside_the_waiting_for_a_rank_refuses_no_gain(tmp_path: Path) -> None:
    """No all-reduce has all its ranks. It takes 1 to 9 ms after rank 1 came, 100 ms late: that may be its transfer, or
    rank 0, which has no trace. Rank 1 is named, and what it gains if rank 0 was not as late is the most.
    """
    later = [Plant(0, "forward", 100 + ms, (step,)) for step, ms in enumerate((1, 7, 3, 9, 2, 5))]
    folder = write(tmp_path / "run", run(data_parallel, 3, (Plant(1, "forward", 100), *later)))
    (folder / "rank0.json.gz").unlink()
    recorded = dptrace.open(folder, cache=False)

    first = late(recorded)[0]

    assert [1] == first.evidence.to_dict()["ranks"]
    assert 0 == first.gain.low_ns
    assert first.gain.high_ns == pytest.approx(100e6, rel=0.1)
    assert "rank 0 was not recorded" in first.gain.reason


def test_the_range_without_an_absent_rank_holds_all_waiting(tmp_path: Path) -> None:
    """Rank 1 is late at each collective and has no trace: rank 0 alone does not show how long a transfer takes."""
    mesh = Mesh(tp=2, dp=1, late_us={1: 900})
    true_ns = 1000 * (mesh.step_us() - Mesh(tp=2, dp=1).step_us())

    [finding] = late(dptrace.open(mesh.write(tmp_path / "run", missing=(1,)), cache=False))

    gain = finding.gain
    assert [1] == finding.evidence.to_dict()["ranks"]
    assert gain.ns is not None
    assert gain.low_ns is not None
    assert gain.high_ns is not None
    assert gain.ns < 0.9 * true_ns
    assert gain.low_ns <= true_ns <= gain.high_ns


@pytest.mark.heavy
def test_an_absent_rank_goes_on_after_a_collective_in_which_it_waited(tmp_path: Path) -> None:
    """Rank 1 has no trace, waits for rank 0, and is therefore late for rank 3: without rank 0's delay, it is not."""
    mesh = Mesh(tp=2, dp=2, late_us={0: 900})
    true_ns = 1000 * (mesh.step_us() - Mesh(tp=2, dp=2).step_us())
    run = dptrace.open(mesh.write(tmp_path / "run", missing=(1,)), cache=False)

    found = {tuple(one.evidence.to_dict()["ranks"]): one.gain for one in findings_of(run) if one.kind == "straggler"}

    assert found[(0,)].ns == pytest.approx(true_ns, rel=0.1)
    assert all((gain.marginal_ns or 0) < 0.1 * true_ns for ranks, gain in found.items() if ranks != (0,))


@pytest.mark.heavy
def test_steps_that_a_cut_file_lacks_work_of_are_left_out(tmp_path: Path) -> None:
    """The file of rank 2 ends in its last step: that one does not count for it."""
    run = dptrace.open(SLOW.write(tmp_path / "run", cut=(2,)), cache=False)

    steps = {timeline.rank: timeline.windows.names for timeline in run.timelines}

    assert steps[1][:-1] == steps[2]


@pytest.mark.heavy
def test_a_straggler_whose_file_is_cut_is_compared_by_whole_steps(tmp_path: Path) -> None:
    """The file of rank 5 ends early, so that it has fewer collectives than its peers: still, they run one program."""
    [finding] = late(dptrace.open(SLOW.write(tmp_path / "run", cut=(5,)), cache=False))

    assert ([5], "compute") == (finding.evidence.to_dict()["ranks"], finding.evidence.to_dict()["cause"])
    assert finding.gain.ns == pytest.approx(TRUE_NS, rel=0.05)


@pytest.mark.heavy
def test_a_rank_can_be_ignored(tmp_path: Path) -> None:
    """It counts as not recorded, whether its file's name or its content says which it is."""
    folder = SLOW.write(tmp_path / "run", cut=(2,))
    hidden = folder / "other.pt.trace.json"
    next(folder.glob("*rank3.*")).rename(hidden)

    run = dptrace.open(folder, ignore=(2, 3), cache=False)

    assert (0, 1, 4, 5, 6, 7) == run.ranks
    assert 8 == run.world_size
    assert not any("is cut" in note for note in run.notes)
    # Only what was there is said to be left out.
    assert any("ranks 2, 3" in note for note in run.notes) or 2 == sum("Left out" in note for note in run.notes)
    assert not any("Left out" in note for note in dptrace.open(folder, ignore=(99,), cache=False).notes)
    with pytest.raises(UsageError, match="ignore"):
        dptrace.open(folder, ignore=range(8), cache=False)


@pytest.mark.slow
def test_a_slow_node_is_one_finding(tmp_path: Path) -> None:
    """All ranks of node-001 are slow: without one nothing changes, without all a step is shorter; so is one rank."""
    slow = Mesh(dp=4, slow={**dict.fromkeys(range(4, 8), 1.3), 13: 1.5})
    node, both = (1000 * (slow.step_us() - Mesh(dp=4, slow=left).step_us()) for left in ({13: 1.5}, {}))
    run = dptrace.open(slow.write(tmp_path / "run"), cache=False)

    found = {finding.evidence.to_dict().get("node", ""): finding for finding in late(run)}

    assert {"node-001", ""} == found.keys()
    assert (list(range(4, 8)), [13]) == tuple(found[name].evidence.to_dict()["ranks"] for name in ("node-001", ""))
    assert "node-001, ranks 4–7" in found["node-001"].text
    marginal = [finding.gain.marginal_ns or 0 for finding in found.values()]
    assert both == pytest.approx(sum(marginal), rel=0.1)
    # The node alone gains what it costs beyond the slow rank: nothing.
    assert node == pytest.approx(found["node-001"].gain.ns, abs=20_000)
    assert ["node-000", "node-003"] == [run.to_dict()["ranks"][rank]["node"] for rank in (0, 15)]


@pytest.mark.heavy
def test_what_the_replay_does_not_explain_no_verb_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings, what-ifs and critical paths have one limit: here, how much of a step missing ranks set."""
    folder = SLOW.write(tmp_path / "run", missing=range(2, 8))
    assert dptrace.open(folder, cache=False).critical_path(2).can_tell

    monkeypatch.setattr("dptrace.replay.whatif._MAX_ABSENT", -1.0)
    run = dptrace.open(folder, cache=False)
    path = run.critical_path(2)

    assert (False, False) == (path.can_tell, run.whatif(compute=2).can_tell)
    assert {None} == {finding.gain.ns for finding in findings_of(run)}
    assert {path.doubts[0].text} == {finding.gain.reason for finding in findings_of(run)}
    assert "absent_ranks" == path.to_dict()["doubts"][0]["kind"]
    # No rank is accused that nobody recorded: the transfer may be what takes long.
    assert "transfer" in path.doubts[0].text

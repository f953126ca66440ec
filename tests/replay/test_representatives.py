"""A large run by the replay of some of its ranks, against the replay of all of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner

import dptrace
from dptrace.analysis.findings.evidence import SlowGpu, SmallMessages
from dptrace.analysis.findings.finding import Finding
from dptrace.commands.shared.main import cli
from dptrace.errors import DptraceError
from dptrace.replay import representatives
from dptrace.replay.advice import recorded_advice
from dptrace.replay.changes import changes_of
from dptrace.replay.counterfactual import GainContext, counterfactual
from dptrace.replay.findings import compute_findings_of, findings_of
from dptrace.replay.representatives import Representatives
from dptrace.replay.transforms.change import ShorterTransfers
from dptrace.replay.whatif import Replay, WhatIf, replay_of_some
from dptrace.run import kernels
from dptrace.run.run import Run
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.timeline.model import Timeline
from dptrace.viewers.gantt.page.document import step_document
from tests.support.mesh import Mesh
from tests.support.real_traces import needs_real_traces, real
from tests.support.replay_files import job_rank

FORWARD = [*[300] * 5, *[340] * 4, *[380] * 4, 5300, 300, 300]
"""µs of each rank, which all meet in an all-reduce; rank 13 is slow."""
SLOW, LATE = 13, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a job of many ranks."""
    place = tmp_path_factory.mktemp("many")
    everyone = {"Group size": len(FORWARD), "Process Group Ranks": str([*range(len(FORWARD))])}
    for rank, forward in enumerate(FORWARD):
        file = job_rank(rank, forward, max(FORWARD) + 223, world_size=len(FORWARD))
        for args in (event["args"] for event in file.events):
            args.update(everyone if "Group size" in args else {})
        file.write(place / f"rank{rank}.json")
    return place


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let four ranks be few enough to replay all."""
    monkeypatch.setattr(representatives, "MOST_REPLAYED", 4)


def comparable(answer: WhatIf) -> dict[str, Any]:
    """Return what an answer says of the steps, without what it says of the replay."""
    known = answer.to_dict()
    dropped = ("all_ranks", "replayed_ranks", "apart_ns", "doubts", "notes", "critical_path")
    return {name: value for name, value in known.items() if name not in dropped}


@pytest.mark.heavy
@pytest.mark.usefixtures("some")
def test_counterfactuals_are_about_the_collectives_of_all_ranks(folder: Path) -> None:
    """Messages are complete although ranks are not replayed; a rank that another stands for has no GPU to change."""
    run = dptrace.open(folder)
    small = SmallMessages(
        collective="all_reduce",
        group=run.cross_rank.matches.groups[0].name,
        count=8,
        bytes=1 << 22,
        crossover_bytes=1 << 40,
        alpha_ns=1000.0,
        step="",
        instance=0,
        part_of="exposed_comm",
    )
    slow = SlowGpu(rank=1, ratio=2.0, kernel="")
    some, every = GainContext(run, replay_of_some(run).model), GainContext(run, run.replay.model)

    fewer, of_all = (counterfactual(Finding("small_messages", "", "", 0, 0.0, small), one) for one in (some, every))

    assert isinstance(fewer, ShorterTransfers)
    assert isinstance(of_all, ShorterTransfers)
    assert fewer.less_ns.tolist() == of_all.less_ns.tolist()
    assert "another stands for it" in str(counterfactual(Finding("slow_gpu", "", "", 0, 0.0, slow), some))


@pytest.mark.heavy
@pytest.mark.usefixtures("some")
@pytest.mark.parametrize(
    "options",
    [{}, {"no_straggler": True}, {"compute": 2.0}, {"bandwidth": 2.0}, {"straggler": {LATE: 9_000_000}}],
    ids=lambda options: next(iter(options), "none"),
)
def test_ranks_that_are_alike_are_replayed_once(folder: Path, options: dict[str, Any]) -> None:
    """Four kinds of rank answer for all of them to the nanosecond; the slow and the changed one for themselves."""
    run = dptrace.open(folder)

    answer, of_all = run.whatif(**options), run.whatif(**options, all_ranks=True)

    assert comparable(of_all) == comparable(answer)
    assert SLOW in answer.replayed_ranks
    assert len(set(FORWARD)) + ("straggler" in options) == len(answer.replayed_ranks)
    assert (0, None, tuple(range(len(FORWARD)))) == (answer.apart_ns, of_all.apart_ns, of_all.replayed_ranks)
    assert ["represented"] == [doubt.kind for doubt in answer.doubts if doubt.kind == "represented"]
    assert answer.run.ranks == answer.replayed_ranks
    assert f"{len(answer.replayed_ranks)} ranks that were replayed, of {len(FORWARD)}" in answer.run.notes[0]


@pytest.mark.heavy
@pytest.mark.usefixtures("some")
def test_the_command_line_replays_all_on_demand(folder: Path) -> None:
    """``--all-ranks`` is honoured, and JSON says which ranks were replayed."""
    for more, count in (([], len(set(FORWARD))), (["--all-ranks"], len(FORWARD))):
        result = CliRunner().invoke(cli, ["whatif", str(folder), "--json", *more])
        answer = json.loads(result.stdout)

        assert (bool(more), count) == (answer["all_ranks"], len(answer["replayed_ranks"]))


@pytest.mark.heavy
def test_collectives_wait_for_ranks_that_are_not_replayed(folder: Path) -> None:
    """With ranks 0 and 5 for all, also for the slow one, an all-reduce still begins 5 ms later: when that arrives."""
    whole = dptrace.open(folder)
    of = np.array([forward != 300 for forward in FORWARD], np.int64)
    replay = Replay(whole, Representatives(whole, whole.select(ranks=[0, 5]), np.array([0, 5]), of, np.zeros_like(of)))

    cases: tuple[dict[str, Any], ...] = ({}, {"bandwidth": 2.0})
    for options in cases:
        answer, of_all = replay.whatif(changes_of(**options)), whole.whatif(**options, all_ranks=True)

        assert of_all.replayed_step_ns == answer.replayed_step_ns == answer.measured_step_ns
        assert of_all.predicted_step_ns == answer.predicted_step_ns


def test_stages_of_a_pipeline_are_replayed_together() -> None:
    """Ranks that send each other messages are one unit, the others are alone."""
    kind = np.array(["send_recv", "all_reduce", "send_recv", "send_recv"], object)
    matches = SimpleNamespace(kind=kind, first=np.array([0, 2, 8, 10, 12]))
    matches.device = np.array([0, 1, 0, 1, 2, 3, 4, 5, 1, 4, 2, 3])
    run = SimpleNamespace(timelines=[None] * 6, cross_rank=SimpleNamespace(matches=matches))

    assert [[0, 1, 4], [2, 3], [5]] == representatives._units(cast("dptrace.Run", run))


def test_a_run_without_known_all_reduces_is_refused_before_the_replay(tmp_path: Path) -> None:
    """``--schedule`` needs one with a size, which shows without building a graph."""
    for rank in (0, 1):
        file = job_rank(rank, 300, 523)
        for args in (event["args"] for event in file.events if "Collective name" in event["args"]):
            args.update({"Collective name": "reduce_scatter"})
        file.write(tmp_path / f"rank{rank}.json")
    run = dptrace.open(tmp_path, cache=False)

    with pytest.raises(DptraceError, match="no all-reduce, only reduce_scatter"):
        run.whatif(schedule="ddp")
    assert "replays" not in vars(run)


@pytest.mark.heavy
@needs_real_traces
def test_ranks_that_differ_answer_with_a_stated_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four real ranks that differ by 7 % of a step, two predict each step to 0.5 %, and within the range."""
    run = dptrace.open(real("dlrm_v100_4ranks"))
    spread = representatives._spread
    monkeypatch.setattr(representatives, "MOST_REPLAYED", 2)
    monkeypatch.setattr(representatives, "_spread", lambda figures, *_: spread(figures, [1, 2], [], 2, 0))

    cases: tuple[dict[str, Any], ...]
    cases = ({"no_straggler": True}, {"compute": 2.0}, {"bandwidth": 2.0}, {"no_host_delay": True})
    for options in cases:
        answer, of_all = run.whatif(**options), run.whatif(**options, all_ranks=True)

        assert 2 == len(answer.replayed_ranks)
        assert 0.02 < (answer.apart_ns or 0) / answer.measured_step_ns < 0.1
        assert of_all.predicted_step_ns == pytest.approx(answer.predicted_step_ns, rel=0.005)
        assert answer.low_ns <= of_all.predicted_step_ns <= answer.high_ns


@pytest.mark.heavy
@pytest.mark.usefixtures("some")
def test_findings_of_many_ranks_are_those_of_the_replay_of_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow rank is named alone, with what a step gains without it; what the replay leaves out is a doubt."""
    few = findings_of(dptrace.open(folder, cache=False))
    monkeypatch.setattr(representatives, "MOST_REPLAYED", 64)
    every = findings_of(dptrace.open(folder, cache=False))

    assert ("straggler", [SLOW]) == (few[0].kind, few[0].evidence.to_dict()["ranks"])
    assert few[0].text == every[0].text
    assert few[0].figure[0] == pytest.approx(every[0].figure[0], abs=10)
    assert "represented" in few[0].gain.doubts
    assert "represented" not in every[0].gain.doubts


@pytest.mark.slow
@pytest.mark.usefixtures("some")
def test_a_critical_path_of_some_ranks_is_that_of_all(folder: Path) -> None:
    """Length, kinds and names are equal, and the slow rank is on it; what was replayed is said in each answer."""
    run = dptrace.open(folder, cache=False)
    few, every = run.critical_path(1), run.critical_path(1, all_ranks=True)
    said, whole = few.to_dict(), every.to_dict()

    assert (few.length_ns, few.wall_ns, few.by_kind) == (every.length_ns, every.wall_ns, every.by_kind)
    assert few.items == every.items
    assert SLOW in few.by_rank
    assert (False, True) == (said["all_ranks"], whole["all_ranks"])
    assert {SLOW} < set(said["replayed_ranks"]) < set(whole["replayed_ranks"]) == set(run.ranks)
    assert set(said["replayed_ranks"]) == set(few.kernels()["rank"])
    assert f"{len(said['replayed_ranks'])} of {len(FORWARD)} ranks are replayed" in step_document(run, few)


@pytest.mark.heavy
@pytest.mark.usefixtures("some")
def test_findings_on_compute_read_the_ranks_that_are_replayed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators of ranks that others stand for are not read; of few ranks, those of all are."""
    read, calls_of = set[int](), kernels.operator_calls_of

    def noted(run: Run, timeline: Timeline) -> OperatorCalls:
        read.add(timeline.rank)
        return calls_of(run, timeline)

    monkeypatch.setattr(kernels, "operator_calls_of", noted)
    run = dptrace.open(folder, cache=False)
    compute_findings_of(run)
    few = set(read)
    monkeypatch.setattr(representatives, "MOST_REPLAYED", 64)
    compute_findings_of(dptrace.open(folder, cache=False))

    assert few == set(replay_of_some(run).model.run.ranks)
    assert {SLOW} < few < read == {*range(len(FORWARD))}


@pytest.mark.heavy
@pytest.mark.usefixtures("some")
def test_advice_on_many_ranks_says_how_many_are_replayed(folder: Path) -> None:
    """The gain of the slow rank is that of the what-if, and the premise is among the assumptions."""
    run = dptrace.open(folder, cache=False)
    advice = recorded_advice(run)
    late = advice["findings"][0]

    assert "straggler" == late["kind"]
    assert late["gain_ns"] == pytest.approx(run.whatif(no_straggler=True).step_gain_ns, rel=0.01)
    assert any("ranks are replayed" in text for text in advice["assumptions"])


@pytest.mark.slow
def test_those_whom_a_late_rank_makes_late_are_replayed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks 4 to 7 are one group, in which rank 5 is late: so are all four in their other groups."""
    monkeypatch.setattr(representatives, "MOST_REPLAYED", 4)
    run = dptrace.open(Mesh(tp=4, dp=8, slow={5: 1.3}).write(tmp_path / "run"), cache=False)

    chosen = representatives.representatives(run)

    assert chosen is not None
    assert {4, 5, 6, 7} <= set(chosen.run.ranks) < set(run.ranks)

"""Pipelines and their bubbles."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import dptrace
from dptrace import Run
from dptrace.analysis.cross_rank.pipeline_bubble import bubble_formula
from dptrace.timeline.model import NO_ACTIONS, Action, Actions, Collective, Phase, Timeline
from dptrace.viewers.terminal.screen import pipeline_sentences
from dptrace.viewers.views.timelines import schedule_table
from tests.support.builders import TimelineBuilder
from tests.support.forking import run_python
from tests.support.recordings import environment, scratch

Slot = tuple[str, int, int]
"""An action: its kind, stage and micro-batch."""


def gpipe(ranks: int, micro_batches: int) -> list[list[Slot]]:
    return [[(kind, stage, m) for kind in "FB" for m in range(micro_batches)] for stage in range(ranks)]


def one_forward_one_backward(ranks: int, micro_batches: int) -> list[list[Slot]]:
    order = []
    for stage in range(ranks):
        ahead = min(ranks - stage, micro_batches)
        own: list[Slot] = [("F", stage, m) for m in range(ahead)]
        for m in range(micro_batches):
            own.append(("B", stage, m))
            if ahead + m < micro_batches:
                own.append(("F", stage, ahead + m))
        order.append(own)
    return order


def naive(ranks: int, micro_batches: int) -> list[list[Slot]]:
    return [[(kind, stage, m) for m in range(micro_batches) for kind in "FB"] for stage in range(ranks)]


def run_of(order: list[list[Slot]], forward: int, backward: int, stages: int | None = None, named: bool = True) -> Run:
    """Simulate each rank's actions in order, each as soon as its inputs are ready; messages take no time."""
    stages = stages or len(order)
    end: dict[Slot, int] = {}
    starts: dict[Slot, int] = {}
    at, free = [0] * len(order), [0] * len(order)
    while any(at[rank] < len(own) for rank, own in enumerate(order)):
        for rank, own in enumerate(order):
            if at[rank] == len(own):
                continue
            kind, stage, m = slot = own[at[rank]]
            before = ("F", stage - 1, m) if kind == "F" else ("B", stage + 1, m)
            if kind == "B" and stage == stages - 1:
                before = ("F", stage, m)
            if 0 <= before[1] and before not in end:
                continue
            starts[slot] = max(free[rank], end.get(before, 0))
            free[rank] = end[slot] = starts[slot] + (forward if kind == "F" else backward)
            at[rank] += 1
    return Run("r", tuple(timeline(rank, own, starts, end, named) for rank, own in enumerate(order)))


def timeline(rank: int, own: list[Slot], starts: dict[Slot, int], end: dict[Slot, int], named: bool = True) -> Timeline:
    build = TimelineBuilder(rank, bounds=(0, max(end.values()) + 10))
    for slot in own:
        build.compute(starts[slot], end[slot])
    begin, stop = (np.array([times[slot] for slot in own], np.int64) for times in (starts, end))
    actions = Actions(
        stage=np.array([stage if named else -1 for _, stage, _ in own], np.int32),
        micro_batch=np.array([m for _, _, m in own], np.int32),
        kind=np.array([Action[kind] for kind, _, _ in own], np.uint8),
        step=np.zeros(len(own), np.int32),
        start_ns=begin,
        end_ns=stop,
        busy_ns=stop - begin,
        called_ns=begin,
        returned_ns=stop,
    )
    return replace(build.build(), actions=actions)


@pytest.mark.heavy
@given(st.integers(2, 6), st.integers(1, 12), st.integers(1, 50), st.integers(1, 99))
def test_gpipe_s_bubble_is_the_formula_s(ranks: int, micro_batches: int, forward: int, backward: int) -> None:
    """For any duration of forward and backward, if all stages take equally long."""
    (found,) = run_of(gpipe(ranks, micro_batches), forward, backward).pipelines

    assert pytest.approx(100 * (ranks - 1) / (micro_batches + ranks - 1)) == found.bubble_percent
    assert pytest.approx(found.bubble_percent) == found.formula_percent
    assert "naive" if micro_batches == 1 else found.schedule == "gpipe"


@pytest.mark.heavy
@given(st.integers(2, 6), st.integers(2, 12), st.integers(1, 50))
def test_1f1b_s_bubble_is_the_formula_s(ranks: int, micro_batches: int, forward: int) -> None:
    """With at least as many micro-batches as stages and a backward twice as long as forward."""
    (found,) = run_of(one_forward_one_backward(ranks, ranks + micro_batches), forward, 2 * forward).pipelines

    assert ("1f1b", ranks + micro_batches, ranks) == (found.schedule, found.micro_batches, found.ranks)
    assert pytest.approx(found.formula_percent) == found.bubble_percent


def test_one_micro_batch_in_flight_leaves_all_but_one_idle() -> None:
    """For any number of them in a step."""
    (found,) = run_of(naive(4, 5), 10, 20).pipelines

    assert ("naive", 75.0, 75.0) == (found.schedule, found.bubble_percent, found.formula_percent)


def test_formulas() -> None:
    """The formulas of the papers; a schedule without a formula returns None."""
    assert (3 / 4, 3 / 11, 3 / 11, 3 / 19, 3 / 27) == tuple(
        bubble_formula(schedule, 4, 8, 2 if schedule == "interleaved" else 1)
        for schedule in ("naive", "gpipe", "1f1b", "interleaved", "zero-bubble")
    )
    assert bubble_formula("v-shaped", 4, 8, 2) is None


def test_each_rank_s_share_and_its_own_span() -> None:
    """GPipe's last stage has no gap between its first and its last action, but waits as long as the others."""
    frame = run_of(gpipe(2, 4), 10, 20).pipeline()

    assert [150, 120] == frame["own_span_ns"].tolist()
    assert [150, 150] == frame["span_ns"].tolist()
    assert [120, 120] == frame["busy_ns"].tolist()
    assert [20.0, 20.0] == frame["bubble_percent"].tolist()
    assert [(0,), (1,)] == frame["stages"].tolist()


def test_stages_without_a_name_are_in_the_order_of_the_ranks() -> None:
    """GPipe's labels do not name a stage."""
    run = run_of(gpipe(3, 4), 10, 20, named=False)

    assert ((0,), (1,), (2,)) == run.pipelines[0].stages
    assert [0, 1, 2] == run.pipeline_actions().groupby("rank")["stage"].first().tolist()


def test_pipelines_beside_each_other_are_distinguished() -> None:
    """Ranks 0 and 2 exchange messages, and ranks 1 and 3: two pipelines."""
    timelines = []
    for rank, (mine, peer) in enumerate([(0, 2), (0, 3), (1, 0), (1, 1)]):
        one = run_of(gpipe(2, 4), 10, 20).timelines[mine]
        sends = Collective("send", 4, "float", "", 2, peer=peer)
        timelines.append(replace(one, rank=rank, collectives=(sends,)))
    run = Run("r", tuple(timelines))

    assert [(0, 2), (1, 3)] == [found.devices for found in run.pipelines]
    assert [0, 0, 1, 1] == sorted(run.pipeline()["pipeline"].tolist())

    unnamed = Collective("send", 4, "float", "", 2)
    half = [one if one.rank % 2 == 0 else replace(one, collectives=(unnamed,)) for one in timelines]
    assert [(0, 2)] == [found.devices for found in Run("r", tuple(half)).pipelines]


def test_interleaved_and_zero_bubble_are_known_by_their_actions() -> None:
    """Several stages on a rank, or a backward in two parts; first and last stage on one rank make a V."""
    one = run_of(gpipe(2, 2), 10, 20).timelines

    def on(*stages: list[int]) -> list[Timeline]:
        actions = [replace(t.actions, stage=np.array(2 * own, np.int32)) for t, own in zip(one, stages, strict=True)]
        return [replace(t, actions=own) for t, own in zip(one, actions, strict=True)]

    parted = replace(one[0], actions=replace(one[0].actions, kind=np.array([0, 0, 2, 3], np.uint8)))
    ahead = [replace(t, actions=t.actions.take(t.actions.kind == Action.F)) for t in one]
    jobs = ((parted, one[1]), on([0, 2], [1, 3]), on([0, 3], [1, 2]), ahead)

    schedules = [Run("r", tuple(timelines)).pipelines[0].schedule for timelines in jobs]
    assert ["zero-bubble", "interleaved", "v-shaped", "forward-only"] == schedules


# Pipelines without labels.


def without_labels(run: Run, ring: bool = False) -> Run:
    """Draw each action ten times as long, a message before and after it, and no label; *ring* joins the ends."""
    last, timelines = len(run.timelines) - 1, []
    for rank, one in enumerate(run.timelines):
        build = TimelineBuilder(rank, bounds=tuple(10 * bound for bound in one.windows.bounds.tolist()))
        columns = (one.actions.kind, 10 * one.actions.start_ns, 10 * one.actions.end_ns)
        for kind, start, end in zip(*(column.tolist() for column in columns), strict=True):
            ahead, phase = (1, Phase.FORWARD) if kind == Action.F else (-1, Phase.BACKWARD)
            source, target = ((rank + way) % (last + 1) if ring else rank + way for way in (-ahead, ahead))
            if 0 <= source <= last:
                build.collective(start + 1, start + 2, Collective("recv", 8, "float", peer=source))
            build.compute(start + 3, end - 3, phase)
            if 0 <= target <= last:
                build.collective(end - 2, end - 1, Collective("send", 8, "float", peer=target))
        timelines.append(build.build())
    return Run("r", tuple(timelines))


@pytest.mark.slow
@given(st.integers(2, 5), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9), st.sampled_from((gpipe, naive)))
def test_messages_tell_a_schedule_without_labels(
    ranks: int, micro_batches: int, forward: int, backward: int, schedule: Callable[[int, int], list[list[Slot]]]
) -> None:
    """Each action is the one that its label would name, in gpipe and naive; so is 1f1b below."""
    for order in (schedule(ranks, micro_batches), one_forward_one_backward(ranks, ranks + micro_batches)):
        labeled = run_of(order, forward, backward)
        (known,), (found,) = labeled.pipelines, without_labels(labeled).pipelines

        assert (True, False) == (known.is_labeled, found.is_labeled)
        assert (known.schedule, known.stages, known.micro_batches) == (
            found.schedule,
            found.stages,
            found.micro_batches,
        )
        for one, other in zip(known.actions, found.actions, strict=True):
            assert [one.kind.tolist(), one.micro_batch.tolist()] == [other.kind.tolist(), other.micro_batch.tolist()]
            assert (10 * one.start_ns + 3).tolist() == other.start_ns.tolist()
            assert (10 * one.end_ns - 3).tolist() == other.end_ns.tolist()


def test_messages_that_are_no_pipeline_s_tell_no_schedule() -> None:
    """Around a ring, as of attention; without the rank in the middle; where ranks have other numbers of them."""
    labeled = run_of(gpipe(3, 4), 5, 9)
    first, middle, last = without_labels(labeled).timelines
    fewer = without_labels(run_of(gpipe(3, 3), 5, 9)).timelines[2]

    assert without_labels(labeled).pipelines
    assert () == without_labels(labeled, ring=True).pipelines
    assert () == Run("r", (first, last)).pipelines
    assert () == Run("r", (first, middle, fewer)).pipelines


def test_a_schedule_without_labels_is_in_every_answer() -> None:
    """Rows, actions and JSON; replicas of one shape are one line of the screen."""
    run = without_labels(run_of(gpipe(2, 3), 5, 9))

    assert {False} == {pipeline["labeled"] for pipeline in run.to_dict()["pipelines"]}
    assert ["gpipe"] * 2 == run.pipeline()["schedule"].tolist()
    assert 2 * 2 * 3 == len(run.pipeline_actions())
    assert {"F0", "B2"} < {row[1] for row in schedule_table(run).rows}
    (said,) = pipeline_sentences(run.pipelines * 3)
    assert said.startswith("3 pipelines of 2, gpipe: bubble ")


def test_a_run_without_a_pipeline_has_none() -> None:
    """Neither rows nor a JSON key."""
    run = Run("r", (TimelineBuilder().compute(0, 50).build(),))

    assert () == run.pipelines
    assert run.pipeline().empty
    assert run.pipeline_actions().empty
    assert "pipelines" not in run.to_dict()


def test_the_json_has_each_step_and_rank() -> None:
    """The figures equal those of the frame."""
    (pipeline,) = run_of(one_forward_one_backward(2, 4), 10, 20).to_dict()["pipelines"]

    assert ("1f1b", 4, 1) == (pipeline["schedule"], pipeline["micro_batches"], pipeline["virtual_stages"])
    assert (20.0, 20.0) == (pipeline["bubble_percent"], pipeline["formula_percent"])
    assert [{"rank": 0, "device": 0, "stages": [0]}, {"rank": 1, "device": 1, "stages": [1]}] == pipeline["ranks"]
    assert [120, 120] == [rank["busy_ns"] for rank in pipeline["steps"][0]["ranks"]]


@cache
def napped(schedule: str, ranks: int) -> Path:
    """Record a pipeline of sleeping blocks."""
    folder = scratch() / f"napped{ranks}"
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    command = [*start, "tests.support.napping", str(folder), schedule]
    here = Path(__file__).resolve().parents[3]
    done = run_python(*command, cwd=here, env=environment())
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / schedule


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize(("schedule", "ranks"), [("gpipe", 2), ("1f1b", 4)])
def test_a_recorded_pipeline_s_bubble_is_the_formula_s(schedule: str, ranks: int) -> None:
    """Real processes whose stages sleep equally long: sends and a busy machine make steps longer, never shorter.

    So the bubble lies between the formula's and the share of the step in which a rank doesn't sleep as planted.
    """
    pytest.importorskip("torch")
    from tests.support.napping import FORWARD_S, MICRO_BATCHES

    (found,) = dptrace.open(napped(schedule, ranks)).pipelines

    assert (schedule, ranks, MICRO_BATCHES) == (found.schedule, found.ranks, found.micro_batches)
    assert 100 * (ranks - 1) / (MICRO_BATCHES + ranks - 1) == pytest.approx(found.formula_percent)
    shortest = min(found.steps, key=lambda pipeline_step: pipeline_step.span_ns)
    assert found.formula_percent is not None
    asleep = 100 * MICRO_BATCHES * 3 * FORWARD_S * 1e9 / shortest.span_ns
    assert 0.95 * found.formula_percent < shortest.bubble_percent < 100 - asleep

    run = dptrace.open(napped(schedule, ranks))
    (inferred,) = Run("r", tuple(replace(one, actions=NO_ACTIONS) for one in run.timelines)).pipelines
    assert (found.schedule, found.stages, found.micro_batches) == (
        inferred.schedule,
        inferred.stages,
        inferred.micro_batches,
    )
    for one, other in zip(found.actions, inferred.actions, strict=True):
        names, others = (a.take(a.step >= 0).take(np.argsort(a.called_ns[a.step >= 0])) for a in (one, other))
        assert [names.kind.tolist(), names.micro_batch.tolist()] == [others.kind.tolist(), others.micro_batch.tolist()]
    assert found.bubble_percent == pytest.approx(inferred.bubble_percent, abs=2)

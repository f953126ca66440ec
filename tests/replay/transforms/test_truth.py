"""Simulated programs with planted delays: what a step would take without them is known."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import dptrace
from dptrace.analysis.findings.finding import top_findings
from dptrace.replay.findings import findings_of
from dptrace.replay.simulation import shared_steps
from dptrace.replay.transforms.stragglers import Excess, excesses
from tests.support.programs import (
    STEPS,
    Do,
    Plant,
    Program,
    Rank,
    chain,
    data_parallel,
    experts,
    folded,
    fully_sharded,
    gpipe,
    hidden,
    interleaved,
    interleaved_zero_bubble,
    looped,
    mesh,
    of_several_stages,
    one_forward_one_backward,
    pipeline,
    run,
    truth_ms,
    v_shaped_zero_bubble,
    write,
    zero_bubble,
)

GPIPE = pipeline(gpipe, 3)
ONE_F_ONE_B = pipeline(one_forward_one_backward, 4)
ZERO_BUBBLE = pipeline(zero_bubble, 3)
REPLICAS = pipeline(one_forward_one_backward, 2, 2)
"""Two stages of two ranks."""
INTERLEAVED = of_several_stages(interleaved, 3, looped)
LOOPED_ZERO_BUBBLE = of_several_stages(interleaved_zero_bubble, 3, looped)
LESS_ON_FIRST = of_several_stages(interleaved_zero_bubble, 3, looped, gradient_of_input=False)
V_SHAPED = of_several_stages(v_shaped_zero_bubble, 3, folded)

BEFORE = {"forward": "aten::linear", "backward": "AddmmBackward0", "middle": "aten::relu", "optimizer": "aten::add_"}
BEFORE |= {"F": "aten::linear", "B": "AddmmBackward0", "I": "AddmmBackward0", "W": "AddmmBackward0"}
"""The operator that follows the pause at a place; with labels, the label has the place's letter."""

CASES: dict[str, tuple[Program, int, tuple[Plant, ...]]] = {
    "data parallel, forward": (data_parallel, 3, (Plant(1, "forward", 40),)),
    "data parallel, operator": (data_parallel, 2, (Plant(1, "mm", 40),)),
    "data parallel, loader": (data_parallel, 2, (Plant(0, "load", 30),)),
    "data parallel, one step": (data_parallel, 3, (Plant(2, "optimizer", 120, (3,)),)),
    "data parallel, moving": (data_parallel, 3, tuple(Plant(n % 3, "forward", 40, (n,)) for n in range(6))),
    "data parallel, two places": (data_parallel, 3, (Plant(1, "forward", 100), Plant(2, "optimizer", 50))),
    "data parallel, two at one place": (data_parallel, 3, (Plant(1, "forward", 100), Plant(2, "forward", 50))),
    "mesh, forward": (mesh, 4, (Plant(3, "forward", 40),)),
    "mesh, optimizer": (mesh, 4, (Plant(0, "optimizer", 40),)),
    "mesh of eight, loader": (mesh, 8, (Plant(5, "load", 30),)),
    "mesh, two": (mesh, 4, (Plant(0, "middle", 40), Plant(3, "middle", 20))),
    "chain, first": (chain, 3, (Plant(0, "forward", 40),)),
    "chain, middle": (chain, 3, (Plant(1, "forward", 40),)),
    "chain of four": (chain, 4, (Plant(2, "backward", 40),)),
    "chain, one step": (chain, 3, (Plant(1, "forward", 90, (2,)),)),
    "fully sharded, forward": (fully_sharded, 3, (Plant(1, "forward1", 40),)),
    "fully sharded, optimizer": (fully_sharded, 2, (Plant(0, "optimizer", 40),)),
    "experts": (experts, 4, (Plant(2, "mm expert", 20),)),
    "gpipe, first stage": (GPIPE, 3, (Plant(0, "F", 10),)),
    "gpipe, middle stage": (GPIPE, 3, (Plant(1, "F", 15),)),
    "gpipe, last stage": (GPIPE, 3, (Plant(2, "B", 15),)),
    "gpipe, one step": (GPIPE, 3, (Plant(1, "F", 30, (4,)),)),
    "1f1b, first stage": (ONE_F_ONE_B, 4, (Plant(0, "F", 15),)),
    "1f1b, middle stage": (ONE_F_ONE_B, 4, (Plant(2, "F", 20),)),
    "1f1b, last stage": (ONE_F_ONE_B, 4, (Plant(3, "B", 15),)),
    "1f1b, optimizer": (ONE_F_ONE_B, 4, (Plant(1, "optimizer", 50),)),
    "1f1b, loader": (ONE_F_ONE_B, 4, (Plant(0, "load", 40),)),
    "zero bubble, middle stage": (ZERO_BUBBLE, 3, (Plant(1, "I", 15),)),
    "zero bubble, weights": (ZERO_BUBBLE, 3, (Plant(2, "W", 15),)),
    "interleaved, first rank": (INTERLEAVED, 3, (Plant(0, "F", 8),)),
    "interleaved, last rank": (INTERLEAVED, 3, (Plant(2, "B", 8),)),
    "interleaved, a stage": (INTERLEAVED, 3, (Plant(1, "F4", 12),)),
    "interleaved, optimizer": (INTERLEAVED, 3, (Plant(1, "optimizer", 40),)),
    "interleaved, one step": (INTERLEAVED, 3, (Plant(1, "F", 25, (3,)),)),
    "interleaved zero bubble, a stage": (LOOPED_ZERO_BUBBLE, 3, (Plant(1, "I1", 12),)),
    "interleaved zero bubble, weights": (LOOPED_ZERO_BUBBLE, 3, (Plant(1, "W", 10),)),
    "zero bubble, first stage has less to do": (LESS_ON_FIRST, 3, (Plant(1, "F", 8),)),
    "zero bubble like a V, first rank": (V_SHAPED, 3, (Plant(0, "F", 8),)),
    "zero bubble like a V, last rank": (V_SHAPED, 3, (Plant(2, "I", 8),)),
    "zero bubble like a V, weights": (V_SHAPED, 3, (Plant(1, "W", 10),)),
    "replicas, one rank": (REPLICAS, 4, (Plant(1, "F", 20),)),
    "replicas, a stage": (REPLICAS, 4, (Plant(2, "B", 20), Plant(3, "B", 20))),
}
CLEAN: dict[str, tuple[Program, int]] = {
    "data parallel": (data_parallel, 3),
    "mesh": (mesh, 4),
    "chain": (chain, 3),
    "fully sharded": (fully_sharded, 3),
    "experts": (experts, 4),
    "hidden": (hidden, 3),
    "gpipe": (GPIPE, 3),
    "1f1b": (ONE_F_ONE_B, 4),
    "zero bubble": (ZERO_BUBBLE, 3),
    "interleaved": (INTERLEAVED, 3),
    "interleaved zero bubble": (LOOPED_ZERO_BUBBLE, 3),
    "zero bubble, first stage has less to do": (LESS_ON_FIRST, 3),
    "zero bubble like a V": (V_SHAPED, 3),
    "replicas": (REPLICAS, 4),
}


def opened(folder: Path, program: Program, size: int, plants: tuple[Plant, ...] = ()) -> dptrace.Run:
    return dptrace.open(write(folder, run(program, size, plants)), cache=False)


def is_at(excess: Excess, plant: Plant) -> bool:
    """Whether an excess is of a plant: of its rank, and at its place."""
    if plant.place == "load":
        named = excess.cause == "data_loading"
    elif plant.place.startswith("mm"):
        named = excess.what == "aten::mm"
    else:
        place = plant.place.rstrip("0123456789")
        named = excess.where == BEFORE[place] or f"PP:…{place}" in (excess.what, excess.where)
    return excess.process == plant.rank and named


def times_a_step(program: Program, place: str) -> int:
    """How many times a rank passes a place in a step: each of its stages has 4 or 6 micro-batches."""
    if place[0] not in "FBIW":
        return 2 if place == "mm expert" else 1
    if program in (INTERLEAVED, LOOPED_ZERO_BUBBLE, LESS_ON_FIRST, V_SHAPED):
        return 6 if place[1:] else 12
    return 4


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_planted_delay_comes_back(name: str, tmp_path: Path) -> None:
    """Without stragglers, a step takes what it does without the delays; each is found on its rank, at its place."""
    program, size, plants = CASES[name]
    recorded = opened(tmp_path, program, size, plants)

    answer = recorded.whatif(no_straggler=True)
    assert answer.can_tell
    truth = truth_ms(program, size, plants)
    assert answer.step_gain_ns / 1e6 == pytest.approx(truth, rel=0.1, abs=1)
    every = excesses(recorded.replay.model)
    for plant in plants:
        found = sum(one.ns for one in every if is_at(one, plant)) / 1e6
        own = [one for one in plants if (one.rank, one.place) == (plant.rank, plant.place)]
        assert found == pytest.approx(
            times_a_step(program, plant.place) * sum(one.ms * len(one.steps) for one in own), rel=0.1
        )
    by_rank = Counter[int]()
    for one in every:
        by_rank[one.process] += one.ns
    others = [ns for rank, ns in by_rank.items() if rank not in {plant.rank for plant in plants}]
    assert max(others, default=0) < 0.1 * max(by_rank.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", CLEAN)
def test_nobody_is_late_in_a_program_without_delays(name: str, tmp_path: Path) -> None:
    """Neither for the bubbles of a pipeline's schedule nor for noise: no rank gains more than 3 % of a step."""
    recorded = opened(tmp_path, *CLEAN[name])

    answer = recorded.whatif(no_straggler=True)
    assert answer.can_tell
    assert answer.step_gain_ns <= 0.03 * answer.measured_step_ns


def on_busy_cores(rank: Rank) -> Iterator[Do]:
    """A pipeline in which half of the work of all stages but the middle one takes 3 ms longer, by chance."""
    for do in GPIPE(rank):
        busy = do.what == "sleep" and rank.number != 1 and rank.noise.random() < 0.5
        yield do._replace(ms=do.ms + 3) if busy else do


@pytest.mark.heavy
def test_chance_on_the_other_stages_hides_nothing_of_a_slow_one(tmp_path: Path) -> None:
    """What all of them usually take is what they take where no core was busy."""
    plant = Plant(1, "F", 15)
    found = excesses(opened(tmp_path / "late", on_busy_cores, 3, (plant,)).replay.model)
    assert sum(one.ns for one in found if is_at(one, plant)) / 1e6 == pytest.approx(4 * 15 * STEPS, rel=0.1)

    clean = opened(tmp_path / "clean", on_busy_cores, 3).whatif(no_straggler=True)
    assert clean.step_gain_ns <= 0.03 * clean.measured_step_ns


@pytest.mark.heavy
@pytest.mark.parametrize(("number", "ahead_ms"), [(1, -20), (2, 1), (2, 5)])
def test_a_wrong_clock_hides_no_slow_stage(number: int, ahead_ms: int, tmp_path: Path) -> None:
    """Messages bound clocks from both sides. Gloo sends before it says that it does, by up to 400 µs on busy cores."""
    plant = Plant(1, "F", 15)
    for name, plants in (("late", (plant,)), ("clean", ())):
        ranks = run(GPIPE, 3, plants)
        for rank in ranks:
            sends = [event for event in rank.file.events if event["name"] == "gloo:send"]
            for event in sends:
                said = min(400, event["dur"] - 1)
                event.update(ts=event["ts"] + said, dur=event["dur"] - said)
        for event in ranks[number].file.events:
            event["ts"] += 1e3 * ahead_ms
        recorded = dptrace.open(write(tmp_path / name, ranks), cache=False)

        clocks = recorded.cross_rank.clocks
        assert clocks.reference.tolist() == [0, 0, 0]
        assert clocks.offset_ns[number] / 1e6 == pytest.approx(ahead_ms, abs=0.5)
        answer = recorded.whatif(no_straggler=True)
        truth = truth_ms(GPIPE, 3, plants)
        assert answer.step_gain_ns / 1e6 == pytest.approx(truth, rel=0.1, abs=0.03 * answer.measured_step_ns / 1e6)
        late = [one for one in findings_of(recorded) if one.kind == "straggler" and one.figure[0] > 0.03 * truth * 1e6]
        assert {rank for one in late for rank in one.evidence.to_dict()["ranks"]} == {one.rank for one in plants}


@pytest.mark.heavy
def test_clocks_that_nothing_bounds_are_no_basis_for_an_answer(tmp_path: Path) -> None:
    """A clock that is set anew during the recording has no offset that all messages agree on."""
    ranks = run(GPIPE, 3, (Plant(1, "F", 15),))
    halfway = max(event["ts"] for event in ranks[1].file.events) / 2
    for event in ranks[1].file.events:
        event["ts"] += 20_000 if event["ts"] > halfway else 0
    recorded = dptrace.open(write(tmp_path, ranks), cache=False)

    answer = recorded.whatif(no_straggler=True)
    assert not answer.can_tell
    (doubt,) = [one for one in answer.doubts if one.kind == "clocks"]
    assert doubt.refuses
    assert "ranks 0–2" in doubt.text
    assert {one.to_dict()["gain_ns"] for one in findings_of(recorded)} == {None}


def test_a_lost_event_hides_no_late_rank(tmp_path: Path) -> None:
    """Of two collectives, one has lost its event and one its request on the rank that waits: the others show it."""
    plant = Plant(1, "forward", 40)
    ranks = run(data_parallel, 2, (plant,))
    for name, number in (("gloo:all_reduce", 3), ("c10d::allreduce_", 1)):
        events = ranks[0].file.events
        events.remove([event for event in events if event["name"] == name][number])
    recorded = dptrace.open(write(tmp_path, ranks), cache=False)

    every = excesses(recorded.replay.model)
    late = sum(one.ns for one in every if is_at(one, plant)) / 1e6
    assert 40 * (STEPS - 3) <= late <= 41 * STEPS
    assert sum(one.ns for one in every) / 1e6 - late < 0.05 * late


@pytest.mark.heavy
def test_a_lost_event_of_the_late_rank_does_not_double_its_delay(tmp_path: Path) -> None:
    """Between the collectives around the one that it lacks, it is late in two steps: none has what both have."""
    ranks = run(data_parallel, 2, (Plant(1, "forward", 40),))
    events = ranks[1].file.events
    events.remove([event for event in events if event["name"] == "gloo:all_reduce"][3])
    found = findings_of(dptrace.open(write(tmp_path, ranks), cache=False))

    (late,) = [one.evidence.to_dict()["lost_by_step_ns"] for one in found if one.kind == "straggler"]
    assert len(late) == STEPS
    assert max(late.values()) < 50e6
    assert sum(late.values()) == pytest.approx(40e6 * STEPS, rel=0.02)


def test_a_call_that_lasts_as_long_as_its_collective_hides_no_late_rank(tmp_path: Path) -> None:
    """In one step, no pause shows that rank 0 waits, as where it gets a core late: two are late in turns there."""
    plants = [Plant(1 + step % 2, "forward", 40, (step,)) for step in range(STEPS)]
    ranks = run(data_parallel, 3, plants)
    asked, carried_out = (
        [event for event in ranks[0].file.events if event["name"] == name][3]
        for name in ("c10d::allreduce_", "gloo:all_reduce")
    )
    asked["dur"] = carried_out["ts"] + carried_out["dur"] + 10 - asked["ts"]
    every = excesses(dptrace.open(write(tmp_path, ranks), cache=False).replay.model)

    for rank in (1, 2):
        own = sum(one.ns for one in every if is_at(one, Plant(rank, "forward", 40))) / 1e6
        assert own == pytest.approx(40 * STEPS / 2, rel=0.1)


def cut(file: Path, kept: float) -> None:
    """Cut a file as where its job was killed: threads are written one after the other, the host's last."""
    head = json.loads(gzip.decompress(file.read_bytes()))
    every = sorted(head.pop("traceEvents"), key=lambda event: (event["tid"] == 1, event["ts"]))
    host = [number for number, event in enumerate(every) if event["tid"] == 1]
    events = every[: host[int(kept * len(host))]]
    file.write_bytes(gzip.compress((json.dumps(head)[:-1] + ', "traceEvents": ' + json.dumps(events)[:-1]).encode()))


@pytest.mark.parametrize("kept", [0.3, 0.6])
def test_what_a_cut_took_away_is_evidence_against_nobody(kept: float, tmp_path: Path) -> None:
    """Collectives without the host that requested them are none of its work; other ranks go on after its last step."""
    plant = Plant(1, "forward", 40)
    folder = write(tmp_path, run(chain, 3, (plant,)))
    cut(folder / "rank0.json.gz", kept)
    recorded = dptrace.open(folder, cache=False)

    every, steps = excesses(recorded.replay.model), len(shared_steps(recorded.timelines))
    assert 1 <= steps < STEPS
    late = sum(one.ns for one in every if is_at(one, plant)) / 1e6
    assert late == pytest.approx(40 * steps, rel=0.05)
    assert sum(one.ns for one in every) / 1e6 - late < 0.05 * late


@pytest.mark.heavy
@pytest.mark.parametrize("place", ["load", "forward"])
def test_what_all_ranks_do_is_no_ranks_delay(place: str, tmp_path: Path) -> None:
    """A slow DataLoader on all is one finding with all it costs; a sleep on all makes no rank late."""
    plants = tuple(Plant(rank, place, 30) for rank in range(3))
    found = top_findings(findings_of(opened(tmp_path, data_parallel, 3, plants)))

    loading = [one.figure[0] / 1e6 for one in found if one.kind == "data_loading"]
    assert loading == (pytest.approx([30], abs=1) if place == "load" else [])
    assert not [one.text for one in found if one.kind in ("straggler", "jitter")]


@pytest.mark.heavy
@pytest.mark.parametrize("others", [(), (Plant(1, "load", 100, (4,)),)])
def test_what_was_seen_once_may_not_come_again(others: tuple[Plant, ...], tmp_path: Path) -> None:
    """Also where another rank is as late there, which hides most of it."""
    plant = Plant(2, "optimizer", 120, (3,))
    found = findings_of(opened(tmp_path, data_parallel, 3, (plant, *others)))

    late = [one.to_dict() for one in found if one.kind == "straggler" and one.evidence.once]
    assert [2] in [one["evidence"]["ranks"] for one in late]
    assert {0} == {one["gain_low_ns"] for one in late}
    assert all("can't tell if it comes again" in one["gain_reason"] for one in late)


@pytest.mark.heavy
def test_what_ends_a_step_belongs_to_it(tmp_path: Path) -> None:
    """Not to the next one, whose first message follows."""
    recorded = opened(tmp_path, INTERLEAVED, 3, (Plant(1, "optimizer", 40),))

    by_step, step = Counter[str](), recorded.cross_rank.matches.step
    for one in excesses(recorded.replay.model):
        by_step[step[one.instance]] += one.ns if one.where == BEFORE["optimizer"] else 0
    assert [by_step[f"ProfilerStep#{number}"] / 1e6 for number in range(STEPS)] == pytest.approx([40] * STEPS, rel=0.1)


@pytest.mark.heavy
def test_a_delay_belongs_to_the_step_that_spends_it(tmp_path: Path) -> None:
    """Not to the next one, in which the others wait for it: the optimizer comes after a step's last collective."""
    recorded = opened(tmp_path, data_parallel, 3, (Plant(1, "optimizer", 40),))
    every = {f"ProfilerStep#{number}" for number in range(STEPS)}

    for steps in (None, (3, 4), 0, STEPS - 1):
        run = recorded if steps is None else recorded.select(steps=steps)
        (late,) = [one for one in findings_of(run) if one.kind == "straggler"]
        lost = late.evidence.to_dict()["lost_by_step_ns"]
        assert set(lost) == every & set(run.timelines[0].windows.names)
        assert [ns / 1e6 for ns in lost.values()] == pytest.approx([40] * len(lost), rel=0.05)


@pytest.mark.heavy
@pytest.mark.parametrize("step", [3, 4])
def test_a_step_that_waits_for_the_one_before_it_names_who_is_late(step: int, tmp_path: Path) -> None:
    """Rank 2 is late at the end of step 3, and the others wait for it in step 4."""
    recorded = opened(tmp_path, data_parallel, 3, (Plant(2, "optimizer", 120, (3,)),)).select(steps=step)

    (late,) = [one.evidence.to_dict() for one in findings_of(recorded) if one.kind == "straggler"]
    assert late["ranks"] == [2]
    assert late["lost_by_step_ns"] == {f"ProfilerStep#{step}": pytest.approx(120e6, rel=0.05)}


@pytest.mark.heavy
def test_of_three_stages_two_are_not_late(tmp_path: Path) -> None:
    """Two take 48 ms longer than the first, which has less to do, as where it computes no gradient of its input."""
    both = Plant(1, "W", 4), Plant(2, "W", 4)
    recorded = opened(tmp_path, LOOPED_ZERO_BUBBLE, 3, both)

    assert truth_ms(LOOPED_ZERO_BUBBLE, 3, both) > 35
    assert recorded.whatif(no_straggler=True).step_gain_ns <= 0.03 * recorded.whatif().measured_step_ns


@pytest.mark.heavy
@pytest.mark.parametrize("size", [2, 3])
def test_late_at_a_collective_that_runs_beside_work_costs_nothing(size: int, tmp_path: Path) -> None:
    """A rank that is late by 40 ms there, and has 40 ms less to do before the next one, delays nobody."""
    recorded = opened(tmp_path, hidden, size, (Plant(size - 1, "forward", 40),))

    answer = recorded.whatif(no_straggler=True)
    assert answer.can_tell
    assert answer.step_gain_ns <= 0.03 * answer.measured_step_ns


@pytest.mark.heavy
def test_an_annotation_on_one_rank_changes_no_delay(tmp_path: Path) -> None:
    """What a rank says of a step in which it is late is compared with nothing on the others."""
    ranks = run(mesh, 4, (Plant(0, "optimizer", 40),))
    plain = dptrace.open(write(tmp_path / "plain", ranks), cache=False)
    mark = next(event for event in ranks[0].file.events if event["name"] == "ProfilerStep#2")
    ranks[0].file.label("note", mark["ts"] + 1, mark["ts"] + mark["dur"] - 1)
    annotated = dptrace.open(write(tmp_path / "annotated", ranks), cache=False)

    found = [
        [(one.process, one.cause, one.what, one.where, one.ns) for one in excesses(recorded.replay.model)]
        for recorded in (plain, annotated)
    ]
    assert sum(ns for *_, ns in found[0]) == pytest.approx(1e6 * 40 * STEPS, rel=0.05)
    assert found[0] == found[1]


@pytest.mark.heavy
def test_an_annotation_changes_nothing_around_a_pause_in_an_autograd_node(tmp_path: Path) -> None:
    """All ranks pause there; what one is late elsewhere stays whole."""
    ranks = run(mesh, 4, (*(Plant(rank, "optimizer", 40) for rank in range(4)), Plant(0, "forward", 30)))
    for rank in ranks:
        calls = sorted((event for event in rank.file.events if event.get("cat") == "cpu_op"), key=lambda one: one["ts"])
        for before, after in pairwise(calls):
            end = before["ts"] + before["dur"]
            if after["ts"] - end > 39_000:
                rank.file.op("autograd::engine::evaluate_function: AddBackward0", end + 1, after["ts"] - 1)
    plain = dptrace.open(write(tmp_path / "plain", ranks), cache=False)
    for mark in [event for event in ranks[0].file.events if event["name"].startswith("ProfilerStep#")]:
        ranks[0].file.label("note", mark["ts"] + 1, mark["ts"] + mark["dur"] - 1)
    annotated = dptrace.open(write(tmp_path / "annotated", ranks), cache=False)

    late = [
        sum(one.ns for one in excesses(recorded.replay.model) if "AddBackward0" not in one.what)
        for recorded in (plain, annotated)
    ]
    assert late == [pytest.approx(1e6 * 30 * STEPS, rel=0.05)] * 2

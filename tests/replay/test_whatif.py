"""The answers of what-ifs, on a job whose times follow from its dependencies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import dptrace
from dptrace.replay.simulation import SteadyState
from dptrace.replay.transforms.change import Bandwidth, Change, Compute, NoHostDelay
from dptrace.replay.whatif import Question, Sweep, doubts
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real


def test_the_unchanged_run_is_replayed_exactly(run: dptrace.Run) -> None:
    """Measured, replayed and predicted steps are the same, and there is nothing to doubt."""
    answer = run.whatif()

    steps = answer.measured_step_ns, answer.replayed_step_ns, answer.predicted_step_ns, answer.low_ns, answer.high_ns
    assert (800_000,) * 5 == steps
    assert 0 == answer.run_gain_ns
    assert answer.can_tell
    assert not answer.doubts


# A step is 20 µs of host and launch, forward, 1, backward 200, 2, all-reduce 100, 2, optimizer 50, 5, and 20 µs of
# host; rank 1 sets it with a forward of 400 µs.
@pytest.mark.heavy
def test_the_predicted_step_is_that_of_the_changed_job(run: dptrace.Run) -> None:
    """A change has the effect that the job's dependencies give it, not the sum of what it changes."""
    for options, step_us in (
        ({"compute": 2}, 20 + 200 + 1 + 100 + 2 + 100 + 2 + 25 + 5 + 20),
        ({"bandwidth": 2}, 800 - 50),
        ({"kernels": {"forw.rd": 0.5}}, 800 - 200),
        ({"kernels": {"AllReduce": 0.1}}, 800 - 90),
        ({"straggler": {1: 30_000}}, 800 + 30),
        ({"straggler": {0: 30_000}}, 800),
        ({"straggler": {0: 130_000}}, 800 + 30),
        ({"compute": 2, "bandwidth": 2}, 475 - 50),
    ):
        answer = run.whatif(**options)
        assert 1000 * step_us == answer.predicted_step_ns
        assert answer.low_ns <= answer.predicted_step_ns <= answer.high_ns


def test_a_change_by_nothing_changes_nothing(run: dptrace.Run) -> None:
    """A factor of 1 and a delay of 0 are the unchanged run."""
    for options in ({"compute": 1}, {"bandwidth": 1}, {"kernels": {".": 1}}, {"straggler": {0: 0}}):
        answer = run.whatif(**options)
        assert run.whatif().predicted_step_ns == answer.predicted_step_ns
        assert 0 == answer.run_gain_ns


def test_perfect_overlap_hides_the_collective(run: dptrace.Run) -> None:
    """Without a wait for the all-reduce, it is no longer on the path of the step."""
    assert run.whatif(perfect_overlap=True).run_gain_ns > 3 * 100_000


def test_no_host_delay_leaves_the_device(run: dptrace.Run) -> None:
    """Without the host's 20 µs between steps and 10 before the first launch, a step is 30 µs shorter."""
    assert 800_000 - 30_000 == run.whatif(no_host_delay=True).predicted_step_ns


def test_parts_and_ranks_have_the_predicted_times(run: dptrace.Run) -> None:
    """With half the transfer, exposed communication falls by as much on each rank, and nothing else does."""
    answer = run.whatif(bandwidth=2)

    for rank in answer.ranks:
        changes = {name: rank.predicted_ns[name] - ns for name, ns in rank.measured_ns.items()}
        assert {"exposed_comm_ns": -50_000, "wall_ns": -50_000} == {k: ns for k, ns in changes.items() if ns}


@pytest.mark.heavy
def test_the_predicted_run_is_a_run(run: dptrace.Run) -> None:
    """Its timelines have the predicted steps, its collectives match, and it compares with the recorded run."""
    predicted = run.whatif(bandwidth=2).run

    assert 750_000 == int(predicted.splits[0].figures["wall_ns"][1])
    assert predicted.cross_rank.matches.complete.all()
    assert "Predicted" in predicted.notes[0]
    assert run.compare(predicted).to_dict()


def test_selected_ranks_and_steps_are_shown_alone(run: dptrace.Run) -> None:
    """The whole run is replayed, and the answer is about what was selected."""
    answer = run.select(ranks={1}, steps=(1, 2)).whatif(compute=2)

    assert ("ProfilerStep#1", "ProfilerStep#2") == answer.steps
    assert [1] == [rank.rank for rank in answer.ranks]
    assert 2 * (800_000 - 475_000) == answer.run_gain_ns == 2 * answer.step_gain_ns
    assert 475_000 == answer.predicted_step_ns
    assert (1,) == answer.run.ranks


def test_the_answer_is_plain_data(run: dptrace.Run) -> None:
    """It survives JSON, with the figures of each rank below."""
    data = json.loads(json.dumps(run.whatif(compute=2).to_dict()))

    assert 475_000 == data["predicted_step_ns"]
    assert [0, 1] == [rank["rank"] for rank in data["ranks"]]
    assert ["compute 2×"] == data["changes"]


def test_what_the_run_does_not_have_is_wrong_use(run: dptrace.Run) -> None:
    """A kernel, a rank, a schedule and a pattern that are not there, and one kernel to fuse."""
    rows: list[dict[str, Any]] = [
        *({"kernels": {"no such": 2}}, {"straggler": {7: 1}}, {"schedule": "magic"}),
        *({"fuse": pattern} for pattern in ("optimizer", "no such", "(")),
    ]
    for options in rows:
        with pytest.raises(dptrace.UsageError):
            run.whatif(**options)


def test_what_the_run_does_not_show_is_refused(run: dptrace.Run) -> None:
    """A kind of collective, a latency that messages of one size do not show, recomputation."""
    for options, said in (
        ({"compress": "all_to_all=fp16"}, "all_reduce"),
        ({"latency": "0.5x"}, "5us"),
        ({"no_recompute": True}, "repeated"),
    ):
        with pytest.raises(dptrace.DptraceError, match=said):
            run.whatif(**options)


@pytest.mark.parametrize(
    "options",
    [{"world_size": 2}, {"bandwidth": 2.0}, {"bandwidth": "25GBps"}, {"perfect_overlap": True}, {"cuda_graphs": True}],
)
def test_one_rank_on_a_cpu_has_no_links_and_no_launches(options: dict[str, Any]) -> None:
    """Whatever is said about them."""
    with pytest.raises(dptrace.DptraceError):
        dptrace.open(ROOT / "traces" / "single_cpu").whatif(**options)


@pytest.mark.heavy
@pytest.mark.parametrize("option", ["compute", "bandwidth"])
@pytest.mark.parametrize(
    "name",
    [
        "naive_cpu_2ranks",
        "ddp_4mb_cpu_2ranks",
        pytest.param("dlrm_v100_4ranks", marks=needs_real_traces),
        pytest.param("ddp_mi300_rank0of8", marks=needs_real_traces),
    ],
)
def test_faster_parts_never_end_the_run_later(name: str, option: str) -> None:
    """The gain rises with the speed of compute and of links, on CPUs and on GPUs, up to what the hosts need."""
    opened = dptrace.open(ROOT / "traces" / name if "cpu" in name else real(name))
    gains = [opened.whatif(**{option: factor}).run_gain_ns for factor in (1, 1.5, 4)]  # type: ignore[arg-type]

    assert 0 == gains[0] < gains[1] <= gains[2]


def test_a_step_is_no_longer_where_what_came_before_it_is_faster(tmp_path: Path) -> None:
    """A collective from before the recording ends in the first of two steps, which begins no earlier without it."""
    file = KinetoFile().kernel("ncclDevKernel_AllReduce_Sum_f32", 5, 60, None, stream=20)
    for step in range(2):
        training_step(file, step, 100 * step)
    opened = dptrace.open(file.write(tmp_path / "rank0.json"))
    measured = opened.whatif().predicted_step_ns

    assert measured >= opened.whatif(bandwidth=2).predicted_step_ns
    assert measured >= opened.whatif(bandwidth=100).predicted_step_ns


@pytest.mark.heavy
@needs_real_traces
def test_a_bound_by_the_host_is_doubted() -> None:
    """With links twice as fast, the device would be done sooner than the host launches: the answer is a bound."""
    answer = dptrace.open(real("ddp_mi300_rank0of8")).whatif(bandwidth=2)

    assert not answer.can_tell
    assert {"steady_state", "unsized"} <= {doubt.kind for doubt in answer.doubts}


@pytest.mark.heavy
@needs_real_traces
def test_short_collectives_of_unknown_size_refuse_nothing() -> None:
    """One rank of two: its all-reduces have sizes, and the broadcasts that have none take 0.04 ms of 222 a step."""
    answer = dptrace.open(real("ddp_a100_rank0of2")).whatif(bandwidth=0.1)

    assert answer.can_tell
    assert answer.step_gain_ns < 0


# When an answer is doubted.


LEVEL = {"measured_ns": 1e8, "replayed_ns": 1e8, "predicted_ns": 8e7, "bound_ns": 6e7, "absent_share": 0.0}


def test_a_doubt_has_its_limit(run: dptrace.Run) -> None:
    """Each figure beyond its limit is a doubt; some refuse the answer, and some concern only other changes."""
    rows: list[tuple[Change, Mapping[str, Any], dict[str, bool]]] = [
        (Compute(2), {}, {}),
        (Compute(2), {"replayed_ns": 9.4e7}, {"replay_misses": True}),
        (Compute(2), {"absent_share": 0.6}, {"absent_ranks": True}),
        (Compute(2), {"bound_ns": 8.6e7}, {"steady_state": True}),
        (Compute(2), {"predicted_ns": 5e7, "bound_ns": 5.6e7}, {"steady_state": False}),
        (Compute(2), {"host_share": 0.96}, {"host_sets": False}),
        (NoHostDelay(), {"host_share": 0.96}, {}),
        (Bandwidth(2), {}, {}),
    ]
    for change, different, expected in rows:
        about = {"host_share": 0.1, "steps": 4, "steady": SteadyState(60_000_000, 50_000_000), **LEVEL, **different}
        found = doubts(Question(model=run.replay.model, changes=(change,), **about))
        assert expected == {doubt.kind: doubt.refuses for doubt in found}


def test_waiting_without_a_reason_refuses_an_answer(tmp_path: Path) -> None:
    """A kernel that starts long after its launch, with nothing to wait for, is unexplained."""
    file = KinetoFile().label("ProfilerStep#0", 0, 1000)
    for i in range(9):
        file.kernel("known", 20 + 20 * i, 30 + 20 * i, 10 + 20 * i)
    file.kernel("late", 700, 800, 300)
    opened = dptrace.open(file.write(tmp_path / "rank0.json"), cache=False)

    answer = opened.whatif(compute=2)

    assert not answer.can_tell
    assert "unexplained" in {doubt.kind for doubt in answer.doubts}


@pytest.mark.parametrize(("late_in", "refuses"), [((2,), False), ((1, 2, 3), True)])
def test_what_has_no_reason_in_one_step_refuses_nothing(late_in: Sequence[int], refuses: bool, tmp_path: Path) -> None:
    """A kernel that starts late once is chance; one that does in most steps waits for what is not known."""
    file = KinetoFile()
    for step in range(5):
        start = 1000 * step
        file.label(f"ProfilerStep#{step}", start, start + 1000)
        for i in range(9):
            file.kernel("known", start + 20 + 20 * i, start + 30 + 20 * i, start + 10 + 20 * i)
        late = 390 if step in late_in else 0
        file.kernel("last", start + 310 + late, start + 410 + late, start + 300)

    answer = dptrace.open(file.write(tmp_path / "rank0.json"), cache=False).whatif(compute=2)

    assert refuses == ("unexplained" in {doubt.kind for doubt in answer.doubts})


# What-ifs for several values.


def sweep(option: str, *pairs: tuple[float, int]) -> Sweep:
    answers = [SimpleNamespace(predicted_step_ns=step, to_dict=dict) for _, step in pairs]
    return Sweep.of(option, [value for value, _ in pairs], cast(Any, answers))


def test_the_best_value_has_the_shortest_step() -> None:
    """Of two that are equally good, it is the one with fewer messages."""
    found = sweep("bucket-cap-mb", (25, 90), (1, 80), (4, 80), (100, 95))

    assert [1, 4, 25, 100] == [point.value for point in found.points]
    assert found.best is not None
    assert 4 == found.best.value
    assert 4 == found.to_dict()["best"]


def test_no_number_of_ranks_is_best() -> None:
    """With more ranks, a step has more samples."""
    assert sweep("world-size", (2, 80), (8, 90)).best is None

"""From one recorded rank to many: inserted all-reduces, on a recording of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dptrace
from dptrace.errors import DptraceError
from dptrace.replay.changes import changes_of
from dptrace.replay.graph.schedule import simulate
from dptrace.replay.transforms.replicate import with_replication
from dptrace.replay.transforms.schedule import sized_gradients
from dptrace.timeline.model import Kind
from tests.support.kineto_files import KinetoFile
from tests.support.paths import ROOT

_LINK = "50us:1GB/s"
_BYTES = 33_728_552


@pytest.fixture(scope="module")
def single() -> dptrace.Run:
    return dptrace.open(ROOT / "traces" / "single_cpu")


def test_a_free_link_costs_nothing(single: dptrace.Run) -> None:
    """With messages of no time, a step of many ranks is as long as that of one."""
    answer = single.whatif(world_size=8, link="0us:1000000000GB/s", schedule="interleaved")

    assert answer.predicted_step_ns == pytest.approx(answer.measured_step_ns, rel=1e-3)


# A ring among P ranks pays the latency 2(P − 1) times, and moves the bytes over each link 2(P − 1)/P times.
def test_all_reduces_after_backward_take_the_time_of_the_formula(single: dptrace.Run) -> None:
    """Ten gradients one by one after backward: ten latencies and all bytes are exposed."""
    for ranks, hops, share in ((2, 2, 1.0), (4, 4, 1.5)):
        answer = single.whatif(world_size=ranks, link=_LINK, schedule="naive")
        expected = 10 * hops * 50_000 + share * _BYTES
        # The optimizer waits for them in a pause that the host had anyway.
        assert answer.predicted["exposed_comm_ns"] == pytest.approx(expected, rel=0.01)
        assert answer.predicted_step_ns - answer.measured_step_ns == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("cap_mb", [0.001, 4, 100])
def test_buckets_follow_one_another(single: dptrace.Run, cap_mb: float) -> None:
    """The last ends by the recursion end = max(ready, end before) + time, in every step."""
    model = single.replay.model
    (change,) = with_replication(model, changes_of(world_size=2, link=_LINK, bucket_cap_mb=cap_mb))
    after = change.apply(model)
    times = simulate(after.graph)
    transfers = after.transfers

    ends, begin = times.end_ns[transfers.task], 0
    for step in sized_gradients(model):
        end = filled = 0
        for index, size in enumerate(step.bytes.tolist()):
            filled += size
            if filled >= cap_mb * (1 << 20) or index == len(step.bytes) - 1:
                end = max(end, int(times.end_ns[step.ready[0, index]])) + 2 * 50_000 + filled
                assert abs(ends[begin] - end) <= 2 * (begin + 1)
                begin, filled = begin + 1, 0
    assert begin == len(ends)


def test_the_predicted_run_has_the_collectives(single: dptrace.Run) -> None:
    """They are intervals of the timeline, in the split, with bytes, label and group; the rest is as recorded."""
    run = single.whatif(world_size=8, link=_LINK, bucket_cap_mb=4).run

    assert 8 == run.world_size
    frame = run.collectives()
    assert {"all_reduce"} == set(frame["kind"])
    assert [_BYTES] * 4 == frame.groupby("step")["bytes"].sum().tolist()
    assert frame["label"].str.startswith("bucket ").all()
    assert (run.steps()["exposed_comm_ns"] > 0).all()
    assert (single.timelines[0].kind == Kind.COMPUTE).sum() == (run.timelines[0].kind == Kind.COMPUTE).sum()


@pytest.mark.heavy
def test_an_optimizer_in_hooks_waits_less(single: dptrace.Run) -> None:
    """It takes each bucket as it comes; and messages under backward cost less than after it."""
    gains = [
        single.whatif(world_size=2, link=_LINK, schedule=schedule).run_gain_ns
        for schedule in ("naive", "ddp", "interleaved", "overlap-optimizer")
    ]

    assert gains[1] < gains[3]
    assert gains[0] < gains[2]


def test_buckets_cost_copies(single: dptrace.Run) -> None:
    """One bucket of all gradients after backward: a message of all bytes, and two copies that read and write them."""
    answer = single.whatif(world_size=2, link=_LINK, schedule="ddp", bucket_cap_mb=1000)

    copies = 2 * 2 * _BYTES / 10
    expected = 2 * 50_000 + _BYTES + copies
    assert answer.predicted_step_ns - answer.measured_step_ns == pytest.approx(expected, rel=0.02)


def test_micro_steps_are_not_reduced(single: dptrace.Run) -> None:
    """Of four micro-steps only the last has all-reduces."""
    answer = single.whatif(world_size=2, link=_LINK, schedule="naive", accumulate=4)

    assert answer.predicted["exposed_comm_ns"] == pytest.approx(10 * 2 * 50_000 + _BYTES, rel=0.01)


@pytest.mark.parametrize("options", [{}, {"latency": "5us"}, {"compress": "fp16"}])
def test_without_a_link_the_message_is_how_to_add_one(single: dptrace.Run, options: dict[str, Any]) -> None:
    """One rank shows nothing of a link."""
    with pytest.raises(DptraceError, match="link=LATENCY"):
        single.whatif(world_size=2, **options)


def test_gradients_without_shapes_share_the_parameters(single: dptrace.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """run.json has their number; without it the answer is refused."""
    from dptrace.replay.transforms import schedule as transforms_schedule

    ready = transforms_schedule.ready_gradients(single.replay.model)
    bare = tuple(transforms_schedule.GradientStep(step.ready, np.zeros_like(step.bytes)) for step in ready)
    monkeypatch.setattr(transforms_schedule, "ready_gradients", lambda model: bare)

    answer = single.whatif(world_size=2, link=_LINK, schedule="naive")
    assert answer.predicted["exposed_comm_ns"] == pytest.approx(10 * 2 * 50_000 + _BYTES, rel=0.01)
    assert any("4 bytes per parameter" in doubt.text for doubt in answer.doubts)

    monkeypatch.delitem(single.metadata, "parameters")
    with pytest.raises(DptraceError, match="shapes"):
        single.whatif(world_size=2, link=_LINK)


def _gpu_job(folder: Path, steps: int = 4) -> dptrace.Run:
    """Write a rank whose step is forward 100 µs, two gradients of 1 MB after 1,000 µs each, and the optimizer's 50."""
    file = KinetoFile(0, 1)
    for step in range(steps):
        at = 10_000 * step
        file.label(f"ProfilerStep#{step}", at, at + 10_000)
        kernels = [("forward", 50, 150), ("first", 151, 1151), ("second", 1152, 2152), ("optimizer", 2153, 2203)]
        for number, (name, start, end) in enumerate(kernels):
            call, id_ = at + 10 + 10 * number, 10 * step + number + 1
            file.event("cuda_runtime", "cudaLaunchKernel", call, call + 2, correlation=id_)
            file.event("kernel", name, at + start, at + end, tid=7, device=0, stream=7, correlation=id_)
            if name in ("first", "second"):
                shape: dict[str, Any] = {"Input Dims": [[250_000]], "Input type": ["float"]}
                file.op("torch::autograd::AccumulateGrad", call + 4, call + 6, **shape)
        file.event("cuda_runtime", "cudaDeviceSynchronize", at + 60, at + 2208)
    file.write(folder / "rank0.json")
    return dptrace.open(folder / "rank0.json", cache=False)


# 1 MB at 1 GB/s and two latencies of 10 µs are 1,020 µs. Two of them after backward, less a gap of 1 µs; or the first
# under the second gradient's kernel, w = 1,000 µs, which it makes longer: 1.13 w for all of the time that it covers.
# Out of buckets, gradients are copied twice: 4 MB at 0.9 TB/s each way.
@pytest.mark.parametrize(
    ("schedule", "longer_us"), [("naive", 2039), ("interleaved", 1020 + 118), ("ddp", 2019 + 2 * 2 * 2 / 0.9)]
)
def test_on_a_gpu_messages_follow_the_kernels_of_their_gradients(
    tmp_path: Path, schedule: str, longer_us: float
) -> None:
    """The range contains the step without interference."""
    run = _gpu_job(tmp_path)
    answer = run.whatif(world_size=2, link="10us:1GB/s", schedule=schedule)

    assert answer.predicted_step_ns - answer.measured_step_ns == pytest.approx(1000 * longer_us, abs=2_000)
    if schedule == "interleaved":
        assert answer.low_ns <= answer.measured_step_ns + 1_019_000


def test_the_host_requests_each_all_reduce(tmp_path: Path) -> None:
    """Where the host sets the step, each all-reduce costs it 100 µs."""
    model = _gpu_job(tmp_path).replay.model
    changes = [
        with_replication(model, changes_of(world_size=2, link=_LINK, schedule=schedule))[0]
        for schedule in ("interleaved", "naive")
    ]
    before = model.graph.duration_ns.sum()

    for change in changes:
        after = change.apply(model)
        added = after.graph.duration_ns[: len(model.graph)].sum() - before
        assert 4 * 2 * 100_000 == added

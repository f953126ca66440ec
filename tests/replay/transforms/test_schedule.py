"""Other schedules of all-reduces, held against runs that were really recorded so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dptrace
from dptrace.errors import DptraceError
from dptrace.replay.graph.schedule import simulate
from dptrace.replay.transforms.links import all_reduce_line
from dptrace.replay.transforms.schedule import MIB, Reschedule, gradient_steps
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real


@pytest.fixture(scope="module")
def runs() -> dict[str, dptrace.Run]:
    names = ("naive_cpu_2ranks", "interleaved_cpu_2ranks", "ddp_4mb_cpu_2ranks")
    return {name.split("_cpu")[0]: dptrace.open(ROOT / "traces" / name) for name in names}


# The recordings were made one after the other on a machine of two cores, whose speed differs by more than 5 %.
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("recorded", "options", "target"),
    [
        ("naive", {"schedule": "naive"}, "naive"),
        ("naive", {"schedule": "interleaved"}, "interleaved"),
        ("naive", {"bucket_cap_mb": 4}, "ddp_4mb"),
        ("interleaved", {"schedule": "naive"}, "naive"),
        ("interleaved", {"schedule": "interleaved"}, "interleaved"),
        ("interleaved", {"bucket_cap_mb": 4}, "ddp_4mb"),
        ("ddp_4mb", {"bucket_cap_mb": 4}, "ddp_4mb"),
        ("ddp_4mb", {"schedule": "interleaved"}, "interleaved"),
        ("ddp_4mb", {"schedule": "naive"}, "naive"),
    ],
)
def test_another_schedule_is_predicted(
    runs: dict[str, dptrace.Run], recorded: str, options: dict[str, Any], target: str
) -> None:
    """The prediction is within a tenth of the run that was recorded so, and its range covers it."""
    answer = runs[recorded].whatif(**options)
    measured = runs[target].whatif().measured_step_ns

    assert answer.predicted_step_ns == pytest.approx(measured, rel=0.1)
    assert answer.low_ns <= measured <= answer.high_ns


@pytest.mark.heavy
def test_carriers_end_as_the_buckets_would(runs: dict[str, dptrace.Run]) -> None:
    """Whatever the number of buckets, the last ends by the recursion end = max(ready, end before) + time."""
    for cap_mb in (0.001, 1, 8, 100):
        model = runs["ddp_4mb"].replay.model
        cap = round(cap_mb * MIB)
        change = Reschedule(cap_bytes=cap)
        times = simulate(change.apply(model).graph)
        step, line = gradient_steps(model)[1], all_reduce_line(model)
        sizes, end, begin, filled = step.bytes.tolist(), 0.0, 0, 0
        for index, size in enumerate(sizes):
            filled += size
            if filled >= cap or index == len(sizes) - 1:
                end = max(end, times.end_ns[step.ready[:, index]].max()) + round(1e9 * line.seconds(filled))
                begin, filled = index + 1, 0
        assert begin == len(sizes)
        last = np.flatnonzero(np.isin(model.transfers.task, model.over[model.transfers.arrival]))
        ends = times.end_ns[model.transfers.task[last]]
        assert np.abs(ends - end).min() <= len(sizes)


@pytest.mark.heavy
def test_larger_buckets_expose_more(runs: dict[str, dptrace.Run]) -> None:
    """A bucket of everything is sent after backward, as without overlap."""
    caps = [runs["naive"].whatif(bucket_cap_mb=cap).predicted["exposed_comm_ns"] for cap in (1, 25, 100)]

    assert sorted(caps) == caps
    assert caps[0] < caps[2] / 2


@pytest.mark.heavy
@needs_real_traces
def test_a_host_that_sets_the_step_sets_it_with_any_schedule() -> None:
    """161 messages of an A100's gradients are hidden by, or shorter than, what its host takes; copies take no host."""
    answer = dptrace.open(real("ddp_a100_rank0of2")).whatif(schedule="naive")

    assert answer.predicted_step_ns == pytest.approx(answer.measured_step_ns, rel=0.01)


# Gradients of recorded runs: when they are ready, and their bytes.


_LAYERS = [(784, 2048), (2048, 2048), (2048, 1024), (1024, 512), (512, 10)]
_BYTES = [4 * size for inputs, outputs in reversed(_LAYERS) for size in (outputs, inputs * outputs)]


@pytest.mark.parametrize("name", ["naive_cpu_2ranks", "interleaved_cpu_2ranks", "ddp_4mb_cpu_2ranks"])
def test_gradients_come_from_the_last_layer_to_the_first(name: str) -> None:
    """Biases before weights, with the bytes of their shapes, each later than the one before, on both ranks."""
    model = dptrace.open(ROOT / "traces" / name).replay.model
    steps = gradient_steps(model)

    assert 4 == len(steps)
    for step in steps:
        assert _BYTES == step.bytes.tolist()
        ends = model.graph.end_ns[step.ready]
        assert (2, 10) == ends.shape
        assert (ends[:, 1:] >= ends[:, :-1]).all()


def test_a_trace_without_operators_is_refused(run: dptrace.Run) -> None:
    """Kernels alone do not tell when a gradient is ready."""
    with pytest.raises(DptraceError, match="AccumulateGrad"):
        gradient_steps(run.replay.model)

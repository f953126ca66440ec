"""Gradients of recorded runs: when they are ready, and their bytes."""

from __future__ import annotations

import pytest

import dptrace
from dptrace.errors import DptraceError
from dptrace.replay.transforms.gradients import gradient_steps
from tests.support.paths import ROOT

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

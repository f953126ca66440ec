"""What the transfers of a run cost."""

from __future__ import annotations

import pytest

import dptrace
from dptrace.replay.transforms.pricing import all_reduce_line, priced, with_transfers
from tests.support.paths import ROOT


def test_costs_as_they_are_change_nothing(run: dptrace.Run) -> None:
    """Latency and the rest add up to the recorded duration."""
    model = run.replay.model

    same = with_transfers(model, priced(model))

    assert model.graph.duration_ns.tolist() == same.graph.duration_ns.tolist()


def test_one_size_is_all_bandwidth(run: dptrace.Run) -> None:
    """4 KiB in 100 µs, without a latency that would be a guess."""
    line = all_reduce_line(run.replay.model)

    assert 0 == line.alpha_s
    assert line.seconds(4096) == pytest.approx(100e-6)


def test_the_line_of_several_sizes_is_that_of_the_run() -> None:
    """Between the smallest message and the largest, the line is near the recorded times."""
    replay = dptrace.open(ROOT / "traces" / "naive_cpu_2ranks").replay
    line, of = all_reduce_line(replay.model), priced(replay.model)

    largest = of.bytes.max()
    recorded = (of.latency_ns + of.moving_ns)[of.bytes == largest]
    assert recorded.min() / 2e9 < line.seconds(largest) < recorded.max() / 0.5e9

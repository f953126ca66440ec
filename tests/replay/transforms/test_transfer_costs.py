"""What the transfers of a run cost."""

from __future__ import annotations

import pytest

import dptrace
from dptrace.replay.transforms.transfer_costs import all_reduce_line, transfer_costs, with_transfers
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real


def test_costs_as_they_are_change_nothing(run: dptrace.Run) -> None:
    """Latency and the rest add up to the recorded duration."""
    model = run.replay.model

    same = with_transfers(model, transfer_costs(model))

    assert model.graph.duration_ns.tolist() == same.graph.duration_ns.tolist()


def test_one_size_is_all_bandwidth(run: dptrace.Run) -> None:
    """4 KiB in 100 µs, without a latency that would be a guess."""
    line = all_reduce_line(run.replay.model)

    assert 0 == line.alpha_s
    assert line.seconds(4096) == pytest.approx(100e-6)


def test_the_line_of_several_sizes_is_that_of_the_run() -> None:
    """Between the smallest message and the largest, the line is near the recorded times."""
    replay = dptrace.open(ROOT / "traces" / "naive_cpu_2ranks").replay
    line, of = all_reduce_line(replay.model), transfer_costs(replay.model)

    largest = of.bytes.max()
    recorded = (of.latency_ns + of.moving_ns)[of.bytes == largest]
    assert recorded.min() / 2e9 < line.seconds(largest) < recorded.max() / 0.5e9


@needs_real_traces
def test_waits_for_absent_ranks_are_no_latency() -> None:
    """A message of 424 bytes takes 8 µs: what large ones take longer is bandwidth, and waits for the other rank."""
    line = all_reduce_line(dptrace.open(real("ddp_a100_rank0of2")).replay.model)

    assert 10e-6 < line.alpha_s < 50e-6
    assert 1e9 * line.seconds(26_000_000) == pytest.approx(2_300_000, rel=0.1)

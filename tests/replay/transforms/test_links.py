"""Other links and launches, on a job whose all-reduce of 4 KiB on two ranks takes 100 µs of a step of 800."""

from __future__ import annotations

import numpy as np
import pytest

import dptrace
from dptrace.replay.transforms.links import (
    all_reduce_line,
    copy_ns,
    copy_tasks,
    transfer_costs,
    uses_ddp,
    with_transfers,
)
from dptrace.replay.transforms.schedule import Reschedule
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real


# A ring among two ranks pays the latency twice and moves the 4,096 bytes once; among eight, 14 times and 1.75 times.
@pytest.mark.heavy
def test_the_transfer_has_the_cost_of_the_formula(run: dptrace.Run) -> None:
    """Latency by the hops, bytes by the share of the algorithm; casts at the memory's bandwidth."""
    for options, transfer_ns in (
        ({"bandwidth": "1GBps"}, 4_096),
        ({"bandwidth": "0.1 GB/s"}, 40_960),
        ({"latency": "5us"}, 100_000 + 10_000),
        ({"link": "5us:1GB/s"}, 10_000 + 4_096),
        ({"world_size": 8}, 175_000),
        ({"world_size": 8, "link": "5us:1GB/s"}, 6 * 5_000 + 7_168),
        ({"compress": "fp16"}, 50_000 + 2 * 1.5 * 4_096 / 10),
        ({"compress": "int8"}, 25_000 + 2 * 1.25 * 4_096 / 10),
        ({"compress": "fp16", "link": "5us:1GB/s"}, 10_000 + 2_048 + 2 * 1.5 * 4_096 / 10),
    ):
        answer = run.whatif(**options)
        assert answer.predicted_step_ns == pytest.approx(800_000 - 100_000 + transfer_ns, abs=2)


@needs_real_traces
@pytest.mark.heavy
def test_one_kind_of_collective_is_compressed_alone() -> None:
    """The exchange of embeddings in half of its bits gains; the all-reduces of the same job keep theirs."""
    job = dptrace.open(real("dlrm_v100_4ranks"))

    both, exchange, reduces = (
        job.whatif(compress=text).step_gain_ns for text in ("fp16", "all_to_all=fp16", "all-reduce=fp16")
    )

    assert 0 < exchange < both
    assert reduces < both


def test_a_nominal_link_says_that_it_is_one(run: dptrace.Run) -> None:
    """Collectives reach a share of the data sheet's bandwidth, and more ranks are taken to be like those recorded."""
    answer = run.whatif(link="nvlink4", world_size=64)

    assert ["64 ranks, link NVLink 4 (H100)"] == list(answer.changes)
    assert 2 == sum(doubt.kind == "assumed" for doubt in answer.doubts)


def test_latency_counts_where_sizes_show_it() -> None:
    """With messages of nine sizes, twice the latency makes a step longer; with none, a share of it is not known."""
    naive = dptrace.open(ROOT / "traces" / "naive_cpu_2ranks")

    assert naive.whatif(latency="2x").run_gain_ns < 0 < naive.whatif(latency="0x").run_gain_ns


# DDP's copies into its buckets and back.


_MIB = 1 << 20


def test_ddp_copies_each_gradient_twice() -> None:
    """Two ranks, four steps, ten gradients: one operator into the bucket, one out of it."""
    model = dptrace.open(ROOT / "traces" / "ddp_cpu_2ranks").replay.model

    assert 2 * 4 * 10 * 2 == int(copy_tasks(model).sum())
    assert [0] == copy_ns(model, np.array([_MIB])).tolist()


def test_others_copy_nothing_and_would_at_the_memory_bandwidth() -> None:
    """A mebibyte read and written at 10 GB/s."""
    model = dptrace.open(ROOT / "traces" / "naive_cpu_2ranks").replay.model

    assert not uses_ddp(model)
    assert not copy_tasks(model).any()
    assert copy_ns(model, np.array([_MIB])).tolist() == [round(2 * _MIB / 10)]


@pytest.mark.heavy
def test_without_buckets_the_copies_go() -> None:
    """DDP's gradients one by one take no copies, and larger buckets keep them."""
    model = dptrace.open(ROOT / "traces" / "ddp_cpu_2ranks").replay.model
    copies = copy_tasks(model)

    assert (model.graph.duration_ns[copies] > 0).any()
    assert not Reschedule("interleaved").apply(model).graph.duration_ns[copies].any()
    kept = Reschedule("ddp", 50 * _MIB).apply(model).graph.duration_ns[copies]
    assert model.graph.duration_ns[copies].tolist() == kept.tolist()


@needs_real_traces
@pytest.mark.heavy
def test_on_a_gpu_copies_are_kernels_of_ddps_hooks() -> None:
    """161 gradients and three steps: one kernel from each hook, and one back."""
    model = dptrace.open(real("ddp_a100_rank0of2")).replay.model

    chosen = copy_tasks(model)
    assert 2 * 3 * 161 == int(chosen.sum())
    assert 2_823_829 == int(model.graph.duration_ns[chosen].sum())


# What the transfers of a run cost.


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


@pytest.mark.heavy
@needs_real_traces
def test_waits_for_absent_ranks_are_no_latency() -> None:
    """A message of 424 bytes takes 8 µs: what large ones take longer is bandwidth, and waits for the other rank."""
    line = all_reduce_line(dptrace.open(real("ddp_a100_rank0of2")).replay.model)

    assert 10e-6 < line.alpha_s < 50e-6
    assert 1e9 * line.seconds(26_000_000) == pytest.approx(2_300_000, rel=0.1)


# Kernels that become one, launches at once, and work that is not repeated.


def test_fused_kernels_take_as_long_as_the_longest(run: dptrace.Run) -> None:
    """Forward and backward, 400 and 200 µs and 1 µs apart, become one kernel of 400 on the slower rank."""
    answer = run.whatif(fuse="forward|backward")

    assert 800_000 - 200_000 - 1_000 == answer.predicted_step_ns
    assert "16 kernels become 8" in next(doubt.text for doubt in answer.doubts if doubt.kind == "assumed")


def test_graphs_save_the_host_and_not_the_device(run: dptrace.Run) -> None:
    """The host alone needs less; the device, which sets the step, what it needed."""
    before, after = run.whatif(), run.whatif(cuda_graphs=True)

    assert after.steady.host_ns < before.steady.host_ns
    assert before.steady.device_ns == after.steady.device_ns
    assert before.predicted_step_ns == after.predicted_step_ns


# Micro-steps, on a job whose step of 800 µs has an all-reduce of 100 and an optimizer of 50.


def test_micro_steps_leave_out_all_reduce_and_optimizer() -> None:
    """Four are shorter than four steps, by about three times what exposed all-reduces and the optimizer take."""
    run = dptrace.open(ROOT / "traces" / "naive_cpu_2ranks")
    one, four = run.whatif(accumulate=1), run.whatif(accumulate=4)

    assert one.measured_step_ns == one.predicted_step_ns
    saved = 4 * one.predicted_step_ns - four.predicted_step_ns
    exposed = one.measured["exposed_comm_ns"] + one.measured["optimizer_ns"]
    assert saved == pytest.approx(3 * exposed, rel=0.3)
    assert four.predicted_ns_per_micro_step == pytest.approx(four.predicted_step_ns / 4, abs=1)

"""Which change takes a finding away."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dptrace
from dptrace.analysis.findings.evidence import ExposedComm, LowBandwidth, SmallMessages
from dptrace.analysis.findings.finding import Finding
from dptrace.core.intervals import IntervalSet
from dptrace.errors import DptraceError
from dptrace.replay.counterfactual import GainContext, counterfactual
from dptrace.replay.gains import Measurer
from dptrace.replay.graph.model import EdgeKind
from dptrace.replay.transforms.change import (
    NoStreamGaps,
    NoStreamWaits,
    ShorterTasks,
    host_time,
)
from dptrace.timeline.model import Timeline
from tests.support.compute_files import ComputeFile, inputs
from tests.support.replay_files import job_rank

EXPOSED = ExposedComm(
    collective="all_reduce", step=None, rank=0, exposed_ns=0, after_backward_share=0.0, count=1.0, bytes=None
)
KINDS = ("exposed_comm", "host_bound", "synchronizing", "launch_latency", "waiting", "copies", "short_kernels")


def test_these_kinds_have_a_change_that_only_shortens(run: dptrace.Run) -> None:
    """A change takes time away and adds none, so that no gain is negative."""
    for kind in KINDS:
        model = run.replay.model
        change = counterfactual(Finding(kind, "", "", 1, 0.1, EXPOSED), GainContext(run, model))
        assert not isinstance(change, str)
        after = change.apply(model)
        assert change.describe()
        assert (after.graph.duration_ns <= model.graph.duration_ns).all()
        assert (after.graph.edge.lag_ns <= model.graph.edge.lag_ns).all()


def test_what_a_run_does_not_have_has_a_reason(run: dptrace.Run) -> None:
    """A job without such calls, and schedules that a replay keeps, have no counterfactual."""
    for kind in ("bubble", "allocator", "data_loading", "launching", "unused_parameters", "recompute"):
        found = counterfactual(Finding(kind, "", "", 1, 0.1), GainContext(run, run.replay.model))
        assert isinstance(found, str)
        assert found.endswith(".")


def test_a_smaller_first_bucket_needs_gradients(run: dptrace.Run) -> None:
    """Without recorded gradients no other buckets can be predicted, which is an error with its reason."""
    with pytest.raises(DptraceError):
        counterfactual(Finding("first_bucket", "", "", 1, 0.1), GainContext(run, run.replay.model))


# Device time that is taken out of a run.


def test_shorter_kernels_take_less(run: dptrace.Run) -> None:
    """Rank 1's forward sets the step: 30 µs less of it are 30 µs of the step, of rank 0's they are nothing."""
    graph = run.replay.model.graph
    forward = np.flatnonzero(np.array([name == "forward" for name in graph.names])[graph.name] & (graph.kind == 3))
    gains = [
        Measurer(run.replay).measure(ShorterTasks("x", own, np.full(len(own), 30_000))).gain.ns
        for own in (forward[graph.process[forward] == rank] for rank in (0, 1))
    ]

    assert [0, 30_000] == gains


def test_gaps_and_waits_of_streams_go(run: dptrace.Run) -> None:
    """Kernels of a stream follow each other at once; the optimizer still waits for the all-reduce."""
    model = run.replay.model
    edge = NoStreamGaps().apply(model).graph.edge

    assert 0 == edge.lag_ns[edge.of(EdgeKind.STREAM)].max()
    assert 0 == Measurer(run.replay).measure(NoStreamWaits()).gain.ns


# Host time that is taken out of a run.


def gain_of(run: dptrace.Run, change: object) -> int | None:
    return Measurer(run.replay).measure(change).gain.ns  # type: ignore[arg-type]


def test_time_of_one_cause_goes(hidden: dptrace.Run) -> None:
    """Without the DataLoader's 5 ms rank 0 is early, which is no gain; with rank 1 5 ms faster, both are."""
    model = hidden.replay.model
    loading = host_time(model, "no loading", lambda timeline: timeline.data_loading)
    assert loading is not None
    lags = loading.apply(model).graph.edge.lag_ns - model.graph.edge.lag_ns

    assert 4 * -5_000_000 == int(lags.sum())
    assert 0 == gain_of(hidden, loading)


def test_what_hosts_do_before_the_first_step_is_kept(run: dptrace.Run) -> None:
    """It is no part of a step, so a step gains nothing without it."""

    def since(before_ns: int, timeline: Timeline) -> IntervalSet:
        first = timeline.host.step_ns[:1]
        return first - before_ns, first + 1_000_000

    model = run.replay.model
    long, short = (host_time(model, "nothing", partial(since, before_ns)) for before_ns in (10**9, 0))
    assert long is not None
    assert short is not None
    assert long.index.tolist() == short.index.tolist()
    assert long.inside_ns.tolist() == short.inside_ns.tolist()
    assert (
        host_time(model, "nothing", lambda timeline: (timeline.host.step_ns[:1] - 9, timeline.host.step_ns[:1])) is None
    )


# What findings on compute would gain, on steps that the device sets.


SAME = inputs([1024, 1024], [1024, 1024])
PRODUCT = inputs([4096, 4096], [4096, 4096])
STEPS = 4


def repeated(step: Callable[[ComputeFile], object], step_us: float = 1000) -> ComputeFile:
    """Repeat a step, and let the host wait for the device, so that shorter kernels make shorter steps."""
    file = ComputeFile(step_us=step_us)
    for _ in range(STEPS):
        step(file.step())
        synchronize(file)
    return file


def synchronize(file: ComputeFile) -> None:
    file.file.event("cuda_runtime", "cudaDeviceSynchronize", file.host + 1, file.now + 5)


def chain(file: ComputeFile) -> None:
    file.kernel("aten::mm", "gemm", 50)
    for length in (10, 20, 30):
        file.kernel("aten::add", "vectorized_add", length, **SAME)
    file.kernel("aten::mm", "gemm", 50)


def product(file: ComputeFile) -> None:
    file.kernel("aten::mm", "nvjet", 600, **PRODUCT)


def attention(file: ComputeFile) -> None:
    scores = [16, 512, 512]
    file.kernel("aten::mm", "gemm", 50).kernel("aten::bmm", "gemm", 100, **inputs([16, 512, 64], [16, 64, 512]))
    file.kernel("aten::_softmax", "softmax", 300, **inputs(scores))
    file.kernel("aten::bmm", "gemm", 100, **inputs(scores, [16, 512, 64]))


def interference(file: ComputeFile) -> None:
    file.kernel("aten::mm", "gemm", 50).kernel("aten::mm", "gemm", 50).kernel("aten::mm", "gemm", 80)
    file.communication(file.now - 81, file.now - 1)


def copy(file: ComputeFile) -> None:
    file.kernel("aten::mm", "gemm", 50).copy("Memcpy HtoD (Pageable -> Device)", 40)


def opened(folder: Path, *files: ComputeFile) -> dptrace.Run:
    for rank, file in enumerate(files):
        file.file.write(folder / f"rank{rank}.json")
    return dptrace.open(folder, cache=False)


@pytest.mark.heavy
def test_what_the_device_sets_gains_what_it_costs(tmp_path: Path) -> None:
    """Where nothing else runs, a step is shorter by what the finding counts."""
    for kind, file in (
        ("elementwise_chains", repeated(chain)),
        ("slow_products", repeated(product, 2000)),
        ("unfused_attention", repeated(attention, 2000)),
        ("pageable_copies", repeated(copy)),
    ):
        found = opened(tmp_path, file).compute_findings().set_index("kind").loc[kind]
        assert found["counted_ns"] > 10_000
        assert found["counted_ns"] == pytest.approx(found["gain_ns"], abs=3_000)


def test_kernels_under_communication_take_what_they_take_without(tmp_path: Path) -> None:
    """In each step, one of three kernels of the same work takes 80 µs under communication and 50 without."""
    run = opened(tmp_path, repeated(interference))
    model = run.replay.model
    change = counterfactual(Finding("interference", "", "", 1, 0.1), GainContext(run, model))
    assert not isinstance(change, str)

    assert STEPS * 30_000 == int((model.graph.duration_ns - change.apply(model).graph.duration_ns).sum())


def test_what_refuses_a_what_if_refuses_a_gain(tmp_path: Path) -> None:
    """The trace does not say why the communication starts when it does: there is no number, but that reason."""
    found = opened(tmp_path, repeated(interference)).compute_findings().set_index("kind").loc["interference"]

    assert found["gain_ns"] is pd.NA
    assert ["unexplained"] == found["gain_doubts"]
    assert "no recorded reason" in found["gain_reason"]


def test_a_slow_gpu_gains_what_it_takes_longer(tmp_path: Path) -> None:
    """The GPU of rank 1 takes 20 % longer: its steps would be 20 µs shorter, those of the others remain."""
    files = [ComputeFile(rank, 3) for rank in range(3)]
    for rank, file in enumerate(files):
        for _ in range(STEPS):
            synchronize(file.step().kernel("aten::mm", "gemm", 120 if rank == 1 else 100))
    found = opened(tmp_path, *files).compute_findings().set_index("kind").loc["slow_gpu"]

    assert 20_000 / 3 == pytest.approx(found["gain_ns"], rel=0.01)


# Counterfactuals of findings on messages.


ARRIVAL = 20 + 400 + 1 + 200 + 2


MESSAGES: dict[str, Any] = {"collective": "all_reduce", "group": "0", "step": "", "instance": 0}


def message_gain_of(run: dptrace.Run, finding: Finding) -> int | None:
    change = counterfactual(finding, GainContext(run, run.replay.model))
    assert not isinstance(change, str), change
    return Measurer(run.replay).measure(change).gain.ns


def test_links_as_fast_as_others_halve_large_messages(tmp_path: Path) -> None:
    """Of 40 MB in 100 µs at 400 GB/s, 800 GB/s would save 50 µs a step."""
    for rank, forward in enumerate((300, 400)):
        file = job_rank(rank, forward, ARRIVAL)
        for event in file.events:
            args = event.get("args", {})
            args.update(dict.fromkeys(set(args) & {"In msg nelems", "Out msg nelems"}, 10_000_000))
        file.write(tmp_path / f"rank{rank}.json")
    run = dptrace.open(tmp_path, cache=False)
    evidence = LowBandwidth(**MESSAGES, busbw_gbps=400.0, reference_gbps=800.0, count=1, bytes=40_000_000)
    finding = Finding("low_bandwidth", "", "", 1, 0.1, evidence)

    assert 50_000 == pytest.approx(message_gain_of(run, finding), abs=10)


def test_combined_messages_pay_the_latency_once(run: dptrace.Run) -> None:
    """Two messages of 4 KB a step, of which one of 8 KB would do, save half of a latency of 60 µs."""
    evidence = SmallMessages(
        **MESSAGES, bytes=8192, crossover_bytes=10_000, count=2, alpha_ns=60_000.0, part_of="exposed_comm"
    )
    finding = Finding("small_messages", "", "", 1, 0.1, evidence)

    assert 30_000 == message_gain_of(run, finding)


def test_a_collective_that_took_far_longer_takes_the_median(tmp_path: Path) -> None:
    """One of six all-reduces takes 400 µs longer than the others: that is what the run gains, over six steps."""
    for rank, forward in enumerate((300, 400)):
        file, number, since = job_rank(rank, forward, ARRIVAL, steps=6), 0, float("inf")
        for event in file.events:
            if event.get("ts", 0) > since:
                event["ts"] += 400
            if "AllReduce" in event.get("name", ""):
                if number == 2:
                    since, event["dur"] = event["ts"], event["dur"] + 400
                number += 1
            if event.get("name") == "cudaDeviceSynchronize" and number == 3 and event["ts"] < since:
                event["dur"] += 400
        file.write(tmp_path / f"rank{rank}.json")
    run = dptrace.open(tmp_path, cache=False)

    assert any(latency.slow.any() for latency in run.cross_rank.latencies)
    finding = Finding("slow_collectives", "", "", 1, 1)
    assert 400_000 / 6 == pytest.approx(message_gain_of(run, finding), rel=0.02)

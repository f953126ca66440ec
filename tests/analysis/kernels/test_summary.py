"""Tables of device time add up to the time of the devices, however it is grouped; layers are a model's blocks."""

from __future__ import annotations

import csv
from ast import literal_eval
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dptrace.analysis.kernels.grouping import GROUPINGS, NOT_LAUNCHED, layer_names
from dptrace.analysis.kernels.summary import (
    KernelSummary,
    Pieces,
    Roof,
    Statistics,
    counted_flops,
    roof_of,
    summarize,
    with_roofline,
)
from dptrace.core.gpu import GpuProperties
from dptrace.model.gpu_peaks import gpu_peak
from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.host_calls import OperatorCalls, operator_calls
from dptrace.timeline.model import Kind, Timeline
from tests.support.builders import two_rank_timelines
from tests.support.kineto_files import KinetoFile
from tests.support.layered_files import layered_file
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real


@cache
def read_operators(path: Path) -> tuple[tuple[Timeline, ...], OperatorCalls]:
    """Return a file's timelines, and its operators."""
    trace = read_trace(path, operators=True)
    return tuple(build_timelines(trace, trace.rank or 0)), operator_calls(trace)


def summary_of(paths: list[Path], by: str, **options: Any) -> KernelSummary:
    read = [read_operators(path) for path in paths]
    recorded = {id(timeline): calls for timelines, calls in read for timeline in timelines}
    every = [timeline for timelines, _ in read for timeline in timelines]
    return summarize(every, lambda timeline: recorded[id(timeline)], by, **options)


def adds_up(summary: KernelSummary) -> bool:
    return all(
        totals["total_ns"] == sum(row[f"{kind}_ns"] for row in summary.rows) for kind, totals in summary.totals.items()
    ) and sum(totals["total_ns"] for totals in summary.totals.values()) == sum(row["total_ns"] for row in summary.rows)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("two")
    return [layered_file(rank, 2).write(folder / f"rank{rank}.json") for rank in (0, 1)]


def test_every_grouping_adds_up(two_ranks: list[Path]) -> None:
    """Over ranks, for each rank, and for one kind alone."""
    for by in GROUPINGS:
        if by != "source":
            compute = summary_of(two_ranks, by, kinds=(Kind.COMPUTE,))
            assert adds_up(summary_of(two_ranks, by)), by
            assert adds_up(summary_of(two_ranks, by, per_rank=True)), by
            assert adds_up(compute), by
            assert 4 * 46_000 == sum(row["total_ns"] for row in compute.rows), by


def row_of(summary: KernelSummary, **key: Any) -> dict[str, Any]:
    (row,) = (row for row in summary.rows if key.items() <= row.items())
    return row


def test_a_linear_layer_on_the_cpu_counts_once() -> None:
    """Its time outside of its product has no FLOPs; a step has three products for each layer, two for the first."""
    traces = sorted((ROOT / "traces" / "interleaved_cpu_2ranks").glob("rank*.gz"))
    widths, samples, steps = (784, 2048, 2048, 1024, 512, 10), 1024, 4
    layers = [first * second for first, second in pairwise(widths)]

    rows = summary_of(traces, "operator-shape", kinds=(Kind.COMPUTE,)).rows

    linear = [row for row in rows if row["operator"] == "aten::linear"]
    assert linear
    assert {None} == {row["flops"] for row in linear}
    flops = sum(row["flops"] * row["count"] for row in rows if row["flops"])
    assert pytest.approx(steps * samples * 2 * (3 * sum(layers) - layers[0]), rel=0.001) == flops


def test_a_shape_has_its_flops(two_ranks: list[Path]) -> None:
    """The memset inside the call is part of its time: 2 × 12 + 2 × 20 µs a rank."""
    row = row_of(summary_of(two_ranks, "operator-shape"), operator="aten::mm")

    assert ([[64, 32], [32, 16]], "bf16", 65_536, 7_168) == (
        row["input_dims"],
        row["dtype"],
        row["flops"],
        row["bytes"],
    )
    assert (8, 128_000, 12) == (row["count"], row["kernel_ns"], row["kernels"])
    assert round(65_536 * 8 / 128_000 / 1e3, 6) == row["tflops"]


def test_modules_have_forward_and_backward(two_ranks: list[Path]) -> None:
    """Backward's time goes to the module of the forward operator."""
    row = row_of(summary_of(two_ranks[:1], "module"), module="Block_0/Linear_0")

    assert (2, 20_000, 40_000, 4_000) == (row["count"], row["forward_ns"], row["backward_ns"], row["memory_ns"])


def test_figures_of_a_kernel(two_ranks: list[Path]) -> None:
    """Count, quantiles, shares and launch delay of gemm_kernel: 10, 20, 10, 20 µs in two steps of 190 µs."""
    summary = summary_of(two_ranks[:1], "kernel")
    row = row_of(summary, kernel="gemm_kernel")

    assert (4, 60_000, 15_000, 15_000, 20_000) == tuple(
        row[c] for c in ("count", "total_ns", "mean_ns", "p50_ns", "p95_ns")
    )
    assert round(60_000 / summary.wall_ns, 6) == row["share_of_step"]
    assert round(60 / 92, 6) == row["share_of_compute"]
    assert ("backward", round(40 / 46, 6)) == (row["main_phase"], row["share_of_phase"])
    assert 16_000 == row["launch_delay_ns"]


def test_the_slowest_rank_stands_out(tmp_path: Path) -> None:
    """Its time is compared with the median of all."""
    files = [layered_file(rank, 3, steps=1 + 2 * (rank == 1)) for rank in range(3)]
    row = row_of(
        summary_of([file.write(tmp_path / f"rank{i}.json") for i, file in enumerate(files)], "kernel"),
        kernel="relu_kernel",
    )

    assert (3.0, 1) == (row["max_over_median"], row["slowest_rank"])


pieces = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 1), st.integers(0, 50), st.integers(0, 20)),
    max_size=30,
)


@pytest.mark.heavy
@settings(max_examples=60)
@given(pieces)
def test_statistics_equal_a_count_by_hand(rows: list[tuple[int, int, int, int, int]]) -> None:
    """Sums, calls, their union of intervals, quantiles, and known delays, over overlapping pieces of any calls."""
    group, call, rank, start, length = (
        (np.array(column, np.int64) for column in zip(*rows, strict=True)) if rows else (np.empty(0, np.int64),) * 5
    )
    none, end, delay = np.zeros(len(group), np.uint8), start + length, length - 1
    found = Statistics()
    columns = group, call, length, start, end, none, none, none == 0, delay, length, none > 0, none > 0
    # Groups that the first rank does not have are new with the second one.
    for number, groups in enumerate((group[rank == 0].max(initial=-1) + 1, 4)):
        found.add(Pieces(*(column[rank == number] for column in columns)), groups)
    figures, by_rank = found.columns()
    for number in range(4):
        own = [row for row in rows if row[0] == number]
        instants: dict[tuple[int, int], set[int]] = {}
        for _, of_call, of_rank, begin, ns in own:
            instants.setdefault((of_call, of_rank), set()).update(range(begin, begin + ns))
        busy = [len(covered) for covered in instants.values()]

        assert sum(row[4] for row in own) == figures["total_ns"][number]
        assert [sum(row[4] for row in own if row[2] == of_rank) for of_rank in (0, 1)] == by_rank[number].tolist()
        assert (len(busy), sum(busy), len(own)) == (
            figures["count"][number],
            figures["kernel_ns"][number],
            figures["kernels"][number],
        )
        if busy:
            assert np.allclose(np.quantile(busy, [0.5, 0.95]), [figures["p50_ns"][number], figures["p95_ns"][number]])
            delays = [row[4] - 1 for row in own if row[4]] or np.nan
            assert np.array_equal(np.median(delays), figures["launch_delay_ns"][number], equal_nan=True)


def _lists(value: Any) -> Any:
    return [_lists(item) for item in value] if isinstance(value, tuple) else value


@pytest.mark.heavy
def test_calls_and_times_equal_tracelens() -> None:
    """Every matrix product and attention: number of calls, and time of the kernels below them within 0.1 %."""
    for model in ("h100_qwen_0.5b", "mi300_qwen_0.5b", "h100_bert_small"):
        folder = Path(real(f"compute/{model}"))
        summary = summary_of([folder / "trace.json.gz"], "operator-shape")
        csv.field_size_limit(1 << 30)
        wanted: dict[tuple[str, str], list[float]] = {}
        for table in ("GEMM", "SDPA_fwd"):
            for line in csv.DictReader((folder / f"{table}.csv").read_text().splitlines()):
                key = line["name"], str(_lists(literal_eval(line["Input Dims_first"])))
                sums = wanted.setdefault(key, [0, 0.0])
                sums[0] += int(line["name_count"])
                sums[1] += float(line["Kernel Time (µs)_sum"])
        found: dict[tuple[str, str], list[float]] = {}
        for row in summary.rows:
            sums = found.setdefault((row["operator"], str(row["input_dims"])), [0, 0.0])
            sums[0] += row["count"]
            sums[1] += row["kernel_ns"] / 1e3
        assert len(wanted) >= 5
        assert {key: count for key, (count, _) in wanted.items()} == {key: found[key][0] for key in wanted}
        assert all(abs(found[key][1] - time) <= 1e-3 * time for key, (_, time) in wanted.items())


@needs_real_traces
def test_work_launched_before_the_recording_has_a_row() -> None:
    """30 % of this trace's kernel time."""
    rows = summary_of([Path(real("compute/h100_qwen_0.5b/trace.json.gz"))], "operator").rows
    (row,) = (row for row in rows if row["operator"] == NOT_LAUNCHED)

    assert 0.301 == round(row["share_of_compute"], 3)


# Rows by operator and shape against their GPU's roofline.


H100 = GpuProperties("NVIDIA H100 80GB HBM3", 132)
ROOF = Roof(gpu_peak(H100))


def row(**more: Any) -> dict[str, Any]:
    """Return a row of 4 calls of 1 GFLOP and 10 MB in 40 µs, at half the time recomputed and all within steps."""
    figures = {"flops": 10**9, "counted_flops": 2 * 10**9, "model_flops": 10**9, "bytes": 10**7, "dtype": "bf16"}
    rates = {"tflops": 100.0, "gbps": 1000.0}
    times = {"total_ns": 40_000, "step_ns": 40_000, "compute_ns": 40_000, "count": 4, "recompute_count": 2}
    return figures | rates | times | more


def test_the_nearer_limit_bounds_a_row() -> None:
    """Shares of arithmetic, of memory and of the roofline; a bound only where both are known."""
    for more, roof, bound, peak, bandwidth, roofline in (
        # 100 FLOP/byte lie left of the ridge of 295: 1,000 of 3,350 GB/s.
        ({}, ROOF, "memory", 100 / 989.4, 1 / 3.35, 1 / 3.35),
        ({"bytes": 10**6, "gbps": 100.0}, ROOF, "compute", 100 / 989.4, 0.1 / 3.35, 100 / 989.4),
        ({"flops": None, "tflops": None}, ROOF, "memory", None, 1 / 3.35, 1 / 3.35),
        ({}, Roof(), None, None, None, None),
        ({}, Roof(None, 200e12), None, 0.5, None, 0.5),
    ):
        found = with_roofline(row(**more), roof)
        shares = found["share_of_peak"], found["share_of_bandwidth"], found["share_of_roofline"]
        assert bound == found["bound"]
        assert pytest.approx((peak, bandwidth, roofline), abs=1e-6) == shares


def test_the_roof_is_that_of_all_gpus_or_none() -> None:
    """Two kinds of GPU have no common roof."""
    one, other = (replace(timeline, gpu=H100) for timeline in two_rank_timelines())
    slower = replace(other, gpu=GpuProperties("NVIDIA L4", 58))

    assert ROOF == roof_of([one, other])
    assert Roof() == roof_of([one, slower])
    assert Roof() == roof_of([])
    assert Roof(None, 7e12) == roof_of([one, slower], 7)


def test_flops_add_up_to_mfu_and_hfu() -> None:
    """4 calls of 2 counted GFLOP; the model needs 1 of each of the 2 that are not recomputed. Half lie in the steps."""
    rest = row(flops=None, counted_flops=None, model_flops=None, total_ns=20_000, step_ns=20_000, compute_ns=20_000)

    found = counted_flops([row(step_ns=20_000), rest], 100_000, ROOF)

    assert found is not None
    assert (1e9, 4e9, 0.5, "bf16") == (found.model, found.hardware, found.covered, found.dtype)
    assert pytest.approx((10.0, 10 / 989.4, 40 / 989.4)) == (found.tflops, found.mfu, found.hfu)


# Layers are the repeated blocks of a model, whatever the trace tells about its modules.


def test_attribute_paths_end_at_their_first_number() -> None:
    """Which is that of the block; without a number, at the first attribute."""
    for path, layer in (
        ("transformer.h.3.attn.c_attn", "transformer.h.3"),
        ("lm_head", "lm_head"),
        ("wte.weight", "wte"),
        ("0", "0"),
        ("0.weight", "0"),
    ):
        assert [layer] == layer_names([path])


def test_blocks_of_module_events_are_those_that_repeat() -> None:
    """Not the modules around them, nor repeated parts of a block or of another module."""
    embeddings = [f"Bert_0/Embeddings_0/Embedding_{i}" for i in range(3)]
    blocks = [f"Bert_0/Encoder_0/Layer_{i}/{part}_{i}" for i in range(2) for part in ("Attention", "Linear")]

    assert ["Embeddings_0"] * 3 + ["Layer_0"] * 2 + ["Layer_1"] * 2 == layer_names(embeddings + blocks)


def labeled(folder: Path) -> dict[str, dict[str, int]]:
    """Two marked layers, and collectives of three kinds: labelled, in a module's forward, and of gradients."""
    file = KinetoFile().label("ProfilerStep#0", 0, 200)
    sums: dict[str, Any] = {"Collective name": "allreduce", "dtype": "Float"}
    for layer, at in ((0, 10), (1, 30)):
        file.op(f"dptrace::module layers.{layer}", at, at + 15)
        file.op("aten::mm", at + 1, at + 5, **{"Sequence number": layer, "Fwd thread id": 0})
        file.kernel("gemm", at + 20, at + 30, at + 2)
    file.kernel("ncclDevKernel_AllReduce", 70, 72, 40, stream=20, **sums)
    file.label("FSDP::all_gather (layers.0)", 50, 55).kernel("ncclDevKernel_AllGather", 80, 84, 52, stream=20)
    for layer, at in ((1, 100), (0, 120)):
        node = {"Sequence number": layer, "Fwd thread id": 1}
        file.op("autograd::engine::evaluate_function: MmBackward0", at, at + 10, tid=2, **node)
        file.kernel("gemm_backward", at + 20, at + 40, at + 5, tid=2)
        file.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 11, at + 15, tid=2)
    file.kernel("ncclDevKernel_AllReduce", 170, 178, 134, tid=2, stream=20, **sums)
    trace = read_trace(file.write(folder / "rank0.json"), operators=True)
    timelines = build_timelines(trace, 0)
    exposed = [timeline.end_ns - timeline.start_ns for timeline in timelines]
    summary = summarize(timelines, lambda timeline: operator_calls(trace), "layer", exposed=exposed)
    return {row["layer"]: row for row in summary.rows}


def test_collectives_belong_to_the_layers_that_they_serve(tmp_path: Path) -> None:
    """By label, by the module around, and in backward to the layer whose gradients completed them."""
    rows = labeled(tmp_path)

    assert {"layers.0": 12_000, "layers.1": 2_000} == {name: row["communication_ns"] for name, row in rows.items()}
    assert {"layers.0": (10_000, 20_000), "layers.1": (10_000, 20_000)} == {
        name: (row["forward_ns"], row["backward_ns"]) for name, row in rows.items()
    }


def test_marks_of_modules_are_no_operators(tmp_path: Path) -> None:
    """The recorder writes them as operators, which is cheap; a trace on a CPU has the same compute with them."""
    compute = []
    for marked in (False, True):
        file = KinetoFile().label("ProfilerStep#0", 0, 100)
        file = file.op("dptrace::module layers.0", 5, 50) if marked else file
        file.op("aten::mm", 10, 20).op("aten::relu", 30, 32)
        (timeline,) = build_timelines(read_trace(file.write(tmp_path / "rank0.json")), 0)
        compute.append([timeline.names[name] for name in timeline.name])

    assert compute[0] == compute[1] == ["aten::mm", "aten::relu"]

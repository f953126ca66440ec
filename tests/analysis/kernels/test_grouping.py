"""Layers are the repeated blocks of a model, whatever the trace tells about its modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.analysis.kernels.grouping import layer_names
from dptrace.analysis.kernels.summary import summarize
from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.host_calls import operator_calls
from tests.support.kineto_files import KinetoFile


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("transformer.h.3.attn.c_attn", "transformer.h.3"),
        ("lm_head", "lm_head"),
        ("wte.weight", "wte"),
        ("0", "0"),
        ("0.weight", "0"),
    ],
)
def test_attribute_paths_end_at_their_first_number(path: str, layer: str) -> None:
    """Which is that of the block; without a number, at the first attribute."""
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

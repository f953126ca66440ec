"""Forward work repeated in backward."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dptrace
from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.model import Timeline
from tests.support.kineto_files import KinetoFile
from tests.support.real_traces import needs_real_traces, real

NODE = "autograd::engine::evaluate_function: "


def build(file: KinetoFile, folder: Path) -> Timeline:
    (timeline,) = build_timelines(read_trace(file.write(folder / "t.json")), 0)
    return timeline


def again(timeline: Timeline) -> list[str]:
    return [timeline.names[i] for i in timeline.name[timeline.recompute]]


def backward(node: str, *inside: tuple[str, float, float]) -> KinetoFile:
    """A backward node from 100 to 200 µs on the autograd thread, with kernels at its start, middle and end."""
    file = KinetoFile().label("ProfilerStep#1", 0, 300).op("aten::conv2d", 10, 20).kernel("forward", 30, 40, 12)
    file.op(f"{NODE}{node}", 100, 200, 2).op(node, 101, 199, 2)
    for name, start, end in inside:
        file.op(name, start, end, 2)
    return file.kernel("first", 130, 140, 112, 2).kernel("middle", 150, 160, 142, 2).kernel("own", 230, 240, 190, 2)


def test_a_block_repeated_at_the_head_of_a_node_is_recompute(tmp_path: Path) -> None:
    """A node's launches up to its last forward-only operator are recompute; its own work is not."""
    file = backward("ReluBackward0", ("aten::conv2d", 110, 120), ("aten::batch_norm", 140, 150))

    assert ["first", "middle"] == again(build(file, tmp_path))


def test_reentrant_checkpointing_is_recompute_without_its_backward(tmp_path: Path) -> None:
    """The function's own launches are recompute, those of nested nodes are not."""
    file = backward("CheckpointFunctionBackward", ("aten::mm", 110, 120)).op(f"{NODE}MmBackward0", 185, 195, 2)

    assert ["first", "middle"] == again(build(file, tmp_path))


@pytest.mark.parametrize(
    ("node", "operator"),
    [
        ("ConvolutionBackward0", "aten::convolution_backward"),
        ("SomebodysFunctionBackward", "aten::linear"),
        ("CompiledFunctionBackward", "Torch-Compiled Region: 2/2"),
    ],
)
def test_ordinary_backward_is_not(node: str, operator: str, tmp_path: Path) -> None:
    """Derivatives, linear() in a user's function and a compiled region do not count."""
    assert [] == again(build(backward(node, (operator, 110, 150)), tmp_path))


def test_a_compiled_block_repeated_in_any_node_is_recompute(tmp_path: Path) -> None:
    """A compiled module's forward graph in backward is recompute, in a compiled backward too."""
    file = backward("CompiledFunctionBackward", ("CompiledFunction", 110, 120))

    assert ["first"] == again(build(file, tmp_path))


@needs_real_traces
def test_the_checkpointed_resnet_does_its_blocks_again() -> None:
    """All 57 forward-only kernels of batch norm that backward launches are recompute."""
    timeline = dptrace.open(real("ddp_mi300_rank0of8")).timelines[0]
    statistics = np.array(["batch_norm_collect_statistics" in name for name in timeline.names])[timeline.name]

    assert 591 == timeline.recompute.sum()
    assert 57 == (statistics & timeline.recompute).sum()


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize(
    "name", ["ddp_a100_rank0of2", "perparam_v100_rank1of2", "dlrm_v100_4ranks", "sharded_h100_8ranks", "ns_v100_1gpu"]
)
def test_jobs_without_checkpointing_do_nothing_again(name: str) -> None:
    """None of their kernels counts as recompute."""
    assert not any(timeline.recompute.any() for timeline in dptrace.open(real(name)).timelines)

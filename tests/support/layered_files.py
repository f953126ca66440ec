"""A small model's step with modules, shapes and autograd's numbers, as Kineto writes them."""

from __future__ import annotations

from typing import Any

from tests.support.kineto_files import KinetoFile

MM: dict[str, Any] = {
    "Input Dims": [[64, 32], [32, 16]],
    "Input type": ["c10::BFloat16", "c10::BFloat16"],
    "Concrete Inputs": ["", ""],
    "Input Strides": [[32, 1], [16, 1]],
}
"""Inputs of a matrix product of 2·64·16·32 = 65,536 FLOPs."""
_ENGINE = "autograd::engine::evaluate_function: "


def layered_step(file: KinetoFile, step: int, at: float, number: int = 7) -> KinetoFile:
    """Add a step of 200 µs.

    GPU time: forward 10 (``Block_0/Linear_0``) and 5 (``Block_0``), backward 20 (of the linear), 3 (gradient added up),
    a copy of 2 inside the linear's matrix product, an all-reduce of 30, optimizer 8.
    """
    file.label(f"ProfilerStep#{step}", at, at + 190)
    for module, start, end in (("Block_0", 1, 30), ("Linear_0", 2, 12)):
        file.event("python_function", f"nn.Module: {module}", at + start, at + end)
    file.op("aten::linear", at + 3, at + 11, **{"Sequence number": number, "Fwd thread id": 0})
    file.op("aten::mm", at + 4, at + 10, **{"Sequence number": number, "Fwd thread id": 0}, **MM)
    file.kernel("gemm_kernel", at + 20, at + 30, at + 5)
    file.kernel("Memset (Device)", at + 30, at + 32, at + 7, category="gpu_memset")
    file.op("aten::relu", at + 15, at + 20, **{"Sequence number": number + 1, "Fwd thread id": 0})
    file.kernel("relu_kernel", at + 33, at + 38, at + 16)
    node: dict[str, Any] = {"Sequence number": number, "Fwd thread id": 1}
    file.op(f"{_ENGINE}MmBackward0", at + 40, at + 60, tid=2, **node).op("MmBackward0", at + 41, at + 59, tid=2, **node)
    file.op("aten::mm", at + 42, at + 50, tid=2, **MM).kernel("gemm_kernel", at + 60, at + 80, at + 43, tid=2)
    file.op(f"{_ENGINE}torch::autograd::AccumulateGrad", at + 61, at + 70, tid=2)
    file.op("aten::add_", at + 62, at + 64, tid=2).kernel("add_kernel", at + 80, at + 83, at + 63, tid=2)
    file.kernel("ncclDevKernel_AllReduce_Sum_f32", at + 85, at + 115, at + 66, tid=2, stream=20)
    file.label("Optimizer.step#SGD.step", at + 90, at + 120)
    return file.kernel("sgd_kernel", at + 120, at + 128, at + 100)


def layered_file(rank: int = 0, world_size: int = 1, steps: int = 2) -> KinetoFile:
    """Make a file of several steps."""
    file = KinetoFile(rank, world_size)
    for step in range(steps):
        layered_step(file, step, 200 * step, 10 * step + 7)
    return file

"""Counterfactuals of the findings on compute: kernels that are faster, fused, or launched together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.compute_findings.detect import slowdown_ns
from dptrace.analysis.compute_findings.roofline import attention_savings_ns, product_savings_ns, removed_by_fusion
from dptrace.analysis.findings.finding import Finding
from dptrace.core.intervals import Int64
from dptrace.replay.gains.context import GainContext
from dptrace.replay.gains.device_time import ShorterTasks
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import TaskKind
from dptrace.replay.simulation.changes import Change
from dptrace.replay.transforms.launches import CudaGraphs, without_tasks

__all__ = ["kernel_change"]


def kernel_change(finding: Finding, context: GainContext) -> Change | str:
    """Return the change that takes a finding on compute away, or why there is none.

    Raises:
        DptraceError: a file can't be read again.
    """
    make = _CHANGES.get(finding.kind)
    return make(finding, context) if make else "No change that a replay can make removes this."


class _Fused(msgspec.Struct, frozen=True, eq=False):
    """Some kernels are part of their neighbors: they and their launches take no time."""

    what: str
    gone: NDArray[np.bool_]
    """Of each task."""
    collectives: bool = False
    host: bool = True

    def describe(self) -> str:
        return self.what

    def apply(self, model: Model) -> Model:
        return without_tasks(model, self.gone)


def _graphs(finding: Finding, context: GainContext) -> Change | str:
    return CudaGraphs()


def _faster_products(finding: Finding, context: GainContext) -> Change | str:
    return _shorter(
        "these products at 60 % of the roofline", product_savings_ns(context.compute, finding.kind), context
    )


def _fused_attention(finding: Finding, context: GainContext) -> Change | str:
    return _shorter("attention in one kernel", attention_savings_ns(context.compute), context)


def _alone(finding: Finding, context: GainContext) -> Change | str:
    return _shorter("compute as fast as without communication", slowdown_ns(context.compute), context)


def _shorter(what: str, less: NDArray[np.float64] | Int64, context: GainContext) -> Change:
    known = context.tasks >= 0
    return ShorterTasks(what, context.tasks[known], np.rint(less[known]).astype(np.int64))


def _fused(in_optimizer: bool, finding: Finding, context: GainContext) -> Change | str:
    tasks = context.tasks[removed_by_fusion(context.compute, in_optimizer)]
    gone = np.zeros(len(context.model.graph), np.bool_)
    gone[tasks[tasks >= 0]] = True
    return _Fused("each chain one kernel", gone)


def _as_fast_as_others(finding: Finding, context: GainContext) -> Change | str:
    """Return the change by which the GPU of one rank computes as fast as those of the others."""
    rank, slower = finding.evidence["rank"], 1 - 1 / finding.evidence["ratio"]
    placed = zip(context.model.run.timelines, context.model.place, strict=True)
    own = [tasks for timeline, (_, tasks) in placed if timeline.rank == rank]
    task = np.concatenate(own)
    task = task[task >= 0]
    task = task[context.model.graph.of(TaskKind.COMPUTE)[task]]
    less = np.rint(context.model.graph.duration_ns[task] * slower).astype(np.int64)
    return ShorterTasks(f"the GPU of rank {rank} as fast as the others", task, less)


def _no_pageable_copies(finding: Finding, context: GainContext) -> Change | str:
    graph = context.model.graph
    named = np.array([name in finding.evidence["copies"] for name in graph.names], np.bool_)
    task = np.flatnonzero(graph.of(TaskKind.MEMORY) & named[graph.name])
    return ShorterTasks("no time in these copies", task, graph.duration_ns[task])


_PRODUCTS = (
    *("fp32_products", "misaligned_products", "small_products"),
    *("slow_attention", "slow_convolutions", "slow_products"),
)
_CHANGES: dict[str, Callable[[Finding, GainContext], Change | str]] = {
    **dict.fromkeys(_PRODUCTS, _faster_products),
    "unfused_attention": _fused_attention,
    "elementwise_chains": partial(_fused, False),
    "unfused_optimizer": partial(_fused, True),
    "short_kernels": _graphs,
    "slow_gpu": _as_fast_as_others,
    "interference": _alone,
    "pageable_copies": _no_pageable_copies,
}

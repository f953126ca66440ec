"""Several micro-steps for each step of the optimizer: forward and backward again, without all-reduce and optimizer."""

from __future__ import annotations

import msgspec
import numpy as np

from dptrace.errors import DptraceError
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import TaskKind
from dptrace.replay.transforms.launches import without_tasks
from dptrace.timeline.model import Phase

__all__ = ["Accumulate"]


class Accumulate(msgspec.Struct, frozen=True):
    """Gradients of so many micro-steps are summed before they are reduced; each is as large as a recorded step.

    Applied to a model, it makes all of its steps micro-steps that are not the last.
    """

    micro_steps: int
    collectives: bool = True
    host: bool = True

    def describe(self) -> str:
        return f"{self.micro_steps} micro-steps for each step of the optimizer"

    def apply(self, model: Model) -> Model:
        graph, transfers = model.graph, model.transfers
        removed = np.zeros(len(graph), np.bool_)
        for timeline, (_, tasks) in zip(model.run.timelines, model.place, strict=True):
            removed[tasks[(timeline.phase == Phase.OPTIMIZER) & (tasks >= 0)]] = True
        if not removed.any():
            raise DptraceError(
                f"{model.run.path}: no work of the optimizer is known, which micro-steps leave out. Record with "
                "dptrace record, or give the optimizer's step its label (torch does)."
            )
        reduced = transfers.kind == "all_reduce"
        durations = graph.duration_ns.copy()
        durations[transfers.task[reduced]] = 0
        removed[transfers.arrival[reduced[transfers.instance]]] = True
        removed &= graph.of(TaskKind.COMPUTE, TaskKind.MEMORY, TaskKind.ARRIVAL)
        return without_tasks(model, removed, durations)

    def doubts(self, model: Model) -> tuple[str, ...]:
        """Return what the answer takes for granted."""
        return ("A micro-step still waits for the slowest rank where an all-reduce was; with no_sync() it does not.",)

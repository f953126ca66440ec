"""What counterfactuals are made of: the run that findings are about, its model, and its kernels with their work."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from dptrace.analysis.compute_findings.context import ComputeContext
from dptrace.core.intervals import Int64
from dptrace.replay.graph.build import Model
from dptrace.run.kernels import operator_calls_of
from dptrace.run.run import Run
from dptrace.timeline.model import Kind

__all__ = ["GainContext"]


class GainContext:
    """A run and its model; findings on compute are about the kernels of the whole run."""

    def __init__(self, run: Run, model: Model) -> None:
        self.run = run
        """The run that the findings are about."""
        self.model = model
        """That of the whole run."""

    @cached_property
    def compute(self) -> ComputeContext:
        """The kernels of the whole run, as the findings on compute see them.

        Raises:
            DptraceError: a file can't be read again.
        """
        run = self.model.run
        own = [run.timelines[number] for number in self._devices]
        return ComputeContext(tuple(own), tuple(operator_calls_of(run, timeline) for timeline in own))

    @cached_property
    def tasks(self) -> Int64:
        """Task of each of these kernels, or -1."""
        parts = [np.empty(0, np.int64)]
        for number in self._devices:
            timeline = self.model.run.timelines[number]
            chosen = (timeline.kind == Kind.COMPUTE) & (timeline.step >= 0)
            parts.append(self.model.place[number][1][chosen])
        return np.concatenate(parts)

    @property
    def _devices(self) -> list[int]:
        """Number of each GPU with steps."""
        timelines = self.model.run.timelines
        return [number for number, one in enumerate(timelines) if len(one.windows) and not one.on_cpu]

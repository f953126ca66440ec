"""The mean step of a run: the one basis of headlines and tables, in which parts and shares add up."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from dptrace.analysis.cross_rank.transfers import exposed_parts, sum_of_waits
from dptrace.analysis.per_gpu.device import step_grid
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.core.intervals import median
from dptrace.run.cross_rank import CrossRankAnalysis

_APART = 0.2
"""A step stands out if its length differs from the median by more than this share."""


class MeanStep(msgspec.Struct, frozen=True):
    """The mean over all steps and GPUs of a run, and the steps whose length is far from the usual one."""

    steps: int
    figures_ns: dict[str, float]
    """By the names in FIGURES."""
    waits_ns: dict[str, float | None]
    """By the names in WAIT_FIGURES; an unknown wait is None."""
    waits_for: tuple[int, ...]
    """The ranks that most of the waiting is for, as :meth:`CrossRankAnalysis.waits_for` returns them."""
    median_ns: float
    """Length of the median step; the length of a step is the mean of its GPUs."""
    longest: str
    shortest: str
    """Names of the longest and the shortest step."""
    apart_ns: dict[str, float]
    """Length of each step that stands out."""

    @property
    def wall_ns(self) -> float:
        """Its length, which its parts add up to."""
        return self.figures_ns["wall_ns"]

    @property
    def exposed_ns(self) -> dict[str, float]:
        """The parts of exposed communication, by the names in ``exposed_wait.exposed_parts``."""
        return exposed_parts(self.figures_ns["exposed_comm_ns"], self.waits_ns)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, in whole ns."""
        return {
            "steps": self.steps,
            **{name: round(ns) for name, ns in self.figures_ns.items()},
            **{name: None if ns is None else round(ns) for name, ns in self.waits_ns.items()},
            "waits_for": list(self.waits_for),
            "median_wall_ns": round(self.median_ns),
            "steps_apart": [{"step": name, "wall_ns": round(ns)} for name, ns in self.apart_ns.items()],
        }


def mean_step(across: CrossRankAnalysis) -> MeanStep | None:
    """Return the mean step of a run from the analysis of its ranks; None for a run without steps."""
    splits = [device.split for device in across.devices]
    count = sum(len(split.names) for split in splits)
    if not count:
        return None
    totals = [split.total() for split in splits]
    figures = {name: sum(total[name] for total in totals) / count for name in FIGURES}
    grid = step_grid(across.devices)
    walls = grid.figures["wall_ns"].sum(axis=0) / grid.present.sum(axis=0)
    usual = float(median(walls))
    apart = np.flatnonzero(np.abs(walls - usual) > _APART * usual).tolist()
    waits = sum_of_waits(across.exposed_waits)
    return MeanStep(
        steps=len(grid.steps),
        figures_ns=figures,
        waits_ns={name: ns if ns is None else ns / count for name, ns in waits.items()},
        waits_for=across.waits_for(),
        median_ns=usual,
        longest=grid.steps[int(walls.argmax())],
        shortest=grid.steps[int(walls.argmin())],
        apart_ns={grid.steps[k]: float(walls[k]) for k in apart},
    )

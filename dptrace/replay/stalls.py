"""Stalls that all ranks of a run on CPUs share: long pauses of all hosts at one place of the program.

No GPU is idle there, and no rank is late; yet a step is as much longer. What one rank pauses beyond the others there is
its delay, and no part of the stall.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dptrace.analysis.findings.evidence import Idle
from dptrace.analysis.findings.finding import Finding
from dptrace.analysis.findings.host import PAUSE_NS, PAUSE_SHARE
from dptrace.analysis.findings.stragglers import steps_text
from dptrace.analysis.per_gpu.causes import PYTHON_ADVICE, UNRECORDED_ADVICE
from dptrace.core.intervals import Int64
from dptrace.core.units import duration
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.process import END
from dptrace.replay.graph.tasks import KEPT_NS, cut_longest
from dptrace.replay.simulation import shared_steps
from dptrace.replay.transforms.pieces import Label, Pieces, pieces_of_host
from dptrace.replay.transforms.roles import step_starts
from dptrace.replay.transforms.stragglers import Excess, WithoutExcesses
from dptrace.run.run import Run

_LEAST = 0.02
"""Share of a step from which a stall is a finding."""
_CAUSES = ("nothing_recorded", "python")
_NOTABLE = 0.2
"""Share of the longest stall from which another step has one."""


class Stall(NamedTuple):
    """A finding on a stall, and the run without it."""

    finding: Finding
    change: WithoutExcesses


def shared_stalls(run: Run, model: Model, step_ns: float) -> list[Stall]:
    """Return a finding for each place at which all hosts pause, the longest first.

    Args:
        run: what the findings are about; the model is of the whole run.
        step_ns: mean length of a step.
    """
    if not (run.on_cpu and len(model.graph.edge.src)):
        return []
    starts, labels = step_starts(model), dict[Label, int]()
    every = [_pauses(model, rank, times, labels, step_ns) for rank, times in enumerate(starts)]
    steps = np.array(model.processes[0].step_names[: starts.shape[1] - 1], object)
    names = {*run.timelines[0].windows.names} & {*shared_steps(model.run.timelines)}
    chosen = np.isin(steps, [*names])
    found = []
    for number in set.intersection(*map(set, every)):
        own = [pauses[number] for pauses in every]
        spent = [np.bincount(one.segment - 1, one.length_ns, len(chosen)).astype(np.int64) for one in own]
        shared: Int64 = np.min(spent, axis=0)
        ns = shared[chosen]
        if not len(ns) or ns.mean() < _LEAST * step_ns:
            continue
        longest = int(own[0].length_ns.argmax())
        label, edge = [*labels][own[0].named[longest]], -1 - int(own[0].index[longest])
        before = model.graph.names[model.graph.name[model.graph.edge.dst[edge]]]
        cuts = (
            _shared(rank, label, pauses, total - shared)
            for rank, (pauses, total) in enumerate(zip(own, spent, strict=True))
        )
        change = WithoutExcesses("no rank pauses there", tuple(cuts))
        found.append(Stall(_finding(run, label, before, steps[chosen].tolist(), ns, step_ns), change))
    return sorted(found, key=lambda stall: -stall.finding.counted_ns)


def _pauses(model: Model, rank: int, starts: Int64, labels: dict[Label, int], step_ns: float) -> dict[int, Pieces]:
    """Return the long pauses of a process in its steps, by the number of their label."""
    own = pieces_of_host(model, rank, starts, labels)
    causes = np.array([cause in _CAUSES for cause, _, _ in labels], np.bool_)
    long = (own.index < 0) & (own.length_ns >= max(PAUSE_NS, PAUSE_SHARE * step_ns)) & causes[own.label]
    own = own.take(np.flatnonzero(long & (own.segment > 0) & (own.segment < len(starts))))
    return {number: own.take(own.label == number) for number in np.unique(own.label).tolist()}


def _shared(rank: int, label: Label, own: Pieces, more: Int64) -> Excess:
    """Return what a rank pauses, but for what it pauses more than others in each step: that is of its longest."""
    kept = cut_longest(own.length_ns, own.segment - 1, more)
    cut = np.maximum(own.length_ns - np.maximum(kept, KEPT_NS), 0)
    return Excess(rank, -1, "", *label, own.index, own.twin, cut)


def place_text(before: str) -> str:
    """Return where a pause is, by the name of what follows it."""
    return f"at the {before}" if before == END else f"before “{before}”"


def _finding(run: Run, label: Label, before: str, names: Sequence[str], ns: Int64, step_ns: float) -> Finding:
    """Describe a stall.

    Args:
        names, ns: the steps, and how long all ranks pause in each.
    """
    cause, what, _ = label
    worst, counted = int(ns.argmax()), int(ns.mean())
    steps = [names[step] for step in np.flatnonzero(ns >= _NOTABLE * ns.max()).tolist()]
    there = f"Python code in “{what}”" if cause == "python" and what else "nothing is recorded there"
    who = "All ranks pause" if len(run.ranks) > 1 else "The host pauses"
    longest = f"{'up to ' * (len(steps) > 1)}{duration(int(ns[worst]))} {steps_text(steps)}"
    text = f"{who} {place_text(before)}, {longest}: {there}."
    once, own = len(steps) == 1 < len(names), [*run.ranks]
    evidence = Idle(
        rank=own[0], step=names[worst], ns=int(ns[worst]), once=once, what=what or None, where=before, ranks=own
    )
    advice = PYTHON_ADVICE if cause == "python" else UNRECORDED_ADVICE
    return Finding("unrecorded", text, advice, counted, min(1.0, counted / max(1.0, step_ns)), evidence)

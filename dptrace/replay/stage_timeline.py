"""What-ifs on a timeline of pipeline stages: the ideal step, and which worker, stage or sequences explain the rest.

The method is that of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025): the order
of operations of each worker is kept, and an operation begins when what it waits for has ended. A transfer takes what
passed after its last participant had begun. Ideal: compute takes the mean of its kind over all workers, micro-batches
and steps, a transfer the median. What a part explains is the share of (replayed − ideal) that ideal durations of its
operations alone gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dptrace.core.files import note_inputs
from dptrace.core.units import share
from dptrace.errors import TraceError
from dptrace.readers.source import Source
from dptrace.readers.stage_timeline import (
    ALONE,
    COMPUTE,
    MESSAGES,
    OF_ALL,
    OF_REPLICAS,
    OF_STAGES,
    StageTimeline,
    read_stage_timeline,
)

_MOST_WORKERS = 8
"""Workers that are mended one by one: those whose compute is furthest above the ideal."""
_EVEN = 1.05
"""Ratio of the replayed to the ideal step below which nothing is a straggler."""
_MOST = 0.5
"""Share of the slowdown from which on a part explains it."""
_CORRELATED = 0.5
"""Least correlation, between phases and between stages, with which lengths are the micro-batches' own."""

_Times = npt.NDArray[np.float64]


class _Replay:
    """The dependencies of a timeline, and what they make of durations."""

    def __init__(self, timeline: StageTimeline, address: str) -> None:
        self.timeline, self.address = timeline, address
        self.kind = np.array([kind for kind, _, _ in timeline.operations])
        self.stage = np.array([stage for _, _, stage in timeline.operations])
        self.computes = np.isin(self.kind, COMPUTE)
        self.transfers = ~np.isin(self.kind, (*COMPUTE, *ALONE))
        self.waits: list[list[int]] = [[] for _ in timeline.operations]
        for stage in range(timeline.stages):
            self._order(stage)
        self.groups = self._groups()
        group_of = {row: number for number, rows in enumerate(self.groups) for row in rows}
        graph = {
            number: {group_of[before] for row in rows for before in self.waits[row]}
            for number, rows in enumerate(self.groups)
        }
        try:
            self.sequence = list(TopologicalSorter(graph).static_order())
        except CycleError:
            raise TraceError(f"{address}: its messages wait for one another in a circle; was it cut?") from None
        self.recorded = self._durations()

    def _order(self, stage: int) -> None:
        """Say what each operation of a stage waits for, by the mean order of its replicas."""
        operations, starts = self.timeline.operations, self.timeline.starts_ns.mean(axis=(1, 2))
        rows = sorted((row for row, place in enumerate(operations) if place[2] == stage), key=lambda row: starts[row])
        computed = [place for place, row in enumerate(rows) if operations[row][0] in COMPUTE]
        if not computed:
            raise TraceError(f"{self.address}: stage {stage} computes nothing.")
        last: list[int] = []
        since: list[int] = []
        for place, row in enumerate(rows):
            kind = operations[row][0]
            if kind in MESSAGES:
                # Messages between two computations wait for the first, and the second for all of them.
                self.waits[row] = last
                since.append(row)
                continue
            if kind not in COMPUTE and computed[0] < place < computed[-1]:
                raise TraceError(
                    f"{self.address}: {kind} of stage {stage} overlaps compute, which is not replayed yet."
                )
            self.waits[row] = [*last, *since]
            last, since = [row], []

    def _groups(self) -> list[list[int]]:
        """List operations that begin to transfer together: the ends of a message, members of a collective, or one."""
        groups: dict[tuple[str, int, int], list[int]] = {}
        for row, (kind, number, stage) in enumerate(self.timeline.operations):
            way, _, end = kind.partition("-")
            if kind in MESSAGES:
                sender = stage if end == "send" else stage - 1 if way == "forward" else stage + 1
                groups.setdefault((way, number, sender), []).append(row)
            else:
                groups.setdefault((kind, number, -1 if kind in (OF_STAGES, OF_ALL) else stage), []).append(row)
        for (way, number, sender), rows in groups.items():
            if way in ("forward", "backward") and len(rows) != 2:
                raise TraceError(f"{self.address}: message {number} {way} from stage {sender} has only one end.")
        return list(groups.values())

    def _begin(self, rows: Sequence[int], starts: _Times) -> _Times:
        """Return when the last participant of a group begins, as [steps, replicas]."""
        begin: _Times = starts[rows].max(axis=0)
        joined = self.kind[rows[0]] in (*OF_REPLICAS, OF_ALL)
        return np.broadcast_to(begin.max(axis=1, keepdims=True), begin.shape) if joined else begin

    def _durations(self) -> _Times:
        starts, durations = self.timeline.starts_ns, np.empty_like(self.timeline.starts_ns)
        for rows in self.groups:
            durations[rows] = self.timeline.ends_ns[rows] - self._begin(rows, starts)
        return durations.clip(min=0)

    def ideal(self) -> _Times:
        """Return durations without stragglers: of compute the mean of its kind, of a transfer the median."""
        durations = np.empty_like(self.recorded)
        for kind in np.unique(self.kind):
            of_kind = self.kind == kind
            own = self.recorded[of_kind]
            durations[of_kind] = np.median(own) if self.transfers[of_kind][0] else own.mean()
        return durations

    def even_stages(self) -> _Times:
        """Return durations in which compute of all stages takes the same time on average, and varies as recorded."""
        durations = self.recorded.copy()
        for kind in COMPUTE:
            mean = self.recorded[self.kind == kind].mean()
            for stage in range(self.timeline.stages):
                own = (self.kind == kind) & (self.stage == stage)
                durations[own] *= mean / max(1.0, self.recorded[own].mean())
        return durations

    def even_micro_batches(self) -> _Times:
        """Return durations in which all micro-batches take each worker its mean, which differs as recorded."""
        durations = self.recorded.copy()
        for kind in COMPUTE:
            for stage in range(self.timeline.stages):
                own = (self.kind == kind) & (self.stage == stage)
                durations[own] = self.recorded[own].mean(axis=(0, 1))
        return durations

    def slowest(self, ideal: _Times) -> list[tuple[int, int]]:
        """List stage and replica of the workers whose compute is furthest above the ideal."""
        above = (self.recorded - ideal).sum(axis=1)
        table = np.stack(
            [above[self.computes & (self.stage == stage)].sum(axis=0) for stage in range(self.timeline.stages)]
        )
        order = np.argsort(-table, axis=None, kind="stable")[:_MOST_WORKERS]
        return [
            (int(stage), int(replica)) for stage, replica in zip(*np.unravel_index(order, table.shape), strict=True)
        ]

    def correlations(self) -> dict[str, float | None]:
        """Return how alike micro-batches are between forward and backward, and between stages; None where unknown."""

        # Times of [stages, micro-batches, steps, replicas], as deviations from the mean of their worker.
        def deviations(kind: str) -> list[_Times]:
            own = [self.recorded[(self.kind == kind) & (self.stage == stage)] for stage in range(self.timeline.stages)]
            return [times - times.mean(axis=(0, 1)) for times in own]

        forward, backward = deviations(COMPUTE[0]), deviations(COMPUTE[1])
        phases = [_correlation(*pair) for pair in zip(forward, backward, strict=True)]
        total = [one + other if one.shape == other.shape else one for one, other in zip(forward, backward, strict=True)]
        stages = [_correlation(one, other) for one, other in pairwise(total)]
        return {"forward_backward_correlation": _least(phases), "stage_correlation": _least(stages)}

    def step_ns(self, durations: _Times) -> float:
        """Return the mean step in which each operation takes such a time after its last participant has begun."""
        starts, ends = np.zeros_like(durations), np.zeros_like(durations)
        for number in self.sequence:
            rows = self.groups[number]
            for row in rows:
                if self.waits[row]:
                    starts[row] = ends[self.waits[row]].max(axis=0)
            ends[rows] = self._begin(rows, starts) + durations[rows]
        return float(ends.max(axis=(0, 2)).mean())


def _correlation(one: _Times, other: _Times) -> float | None:
    if one.shape != other.shape or not one.any() or not other.any():
        return None
    return round(float(np.corrcoef(one.ravel(), other.ravel())[0, 1]), 4)


def _least(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return min(known) if len(known) == len(values) and known else None


def stage_whatif(path: str | Path) -> dict[str, Any]:
    """Answer :func:`dptrace.stage_whatif`."""
    source = Source.of(path)
    note_inputs([path])
    timeline = read_stage_timeline(source)
    replay = _Replay(timeline, source.address)
    recorded, ideal = replay.recorded, replay.ideal()
    step_ns, ideal_ns = replay.step_ns(recorded), replay.step_ns(ideal)
    excess = step_ns - ideal_ns

    def explains(mended: _Times) -> float | None:
        return round((step_ns - replay.step_ns(mended)) / excess, 4) if excess > 0 else None

    stages = []
    for stage in range(timeline.stages):
        own = replay.stage == stage
        compute_ns = recorded[own & replay.computes].sum(axis=0).mean()
        explained = explains(np.where(own[:, None, None], ideal, recorded))
        stages.append({"stage": stage, "compute_ns": round(compute_ns), "explains": explained})
    workers = []
    for stage, replica in replay.slowest(ideal):
        mended = recorded.copy()
        mended[replay.stage == stage, :, replica] = ideal[replay.stage == stage, :, replica]
        workers.append({"stage": stage, "dp_rank": timeline.replicas[replica], "explains": explains(mended)})
    workers.sort(key=lambda worker: -(worker["explains"] or 0))
    causes = {
        "worker": workers[0]["explains"],
        "stages": explains(replay.even_stages()),
        "sequences": explains(replay.even_micro_batches()),
        "transfers": explains(np.where(replay.transfers[:, None, None], ideal, recorded)),
    }
    answer = {
        "schema": 1,
        "kind": "stages",
        "file": source.address,
        "steps": recorded.shape[1],
        "dp_ranks": len(timeline.replicas),
        "recorded_step_ns": round(float(timeline.ends_ns.max(axis=(0, 2)).mean())),
        "replayed_step_ns": round(step_ns),
        "ideal_step_ns": round(ideal_ns),
        "slowdown": round(step_ns / ideal_ns, 4) if ideal_ns else 1.0,
        "explains": causes,
        "stages": stages,
        "workers": workers,
        **replay.correlations(),
        "notes": list(timeline.notes),
    }
    verdict, text = _verdict(answer)
    return {**answer, "verdict": verdict, "text": text}


def _verdict(answer: dict[str, Any]) -> tuple[str, str]:
    """Return the cause that explains most, if it explains half, and a sentence."""
    if answer["slowdown"] < _EVEN:
        return "even", "No straggler: the step takes less than 5 % longer than with even workers and micro-batches."
    causes = {name: value for name, value in answer["explains"].items() if name != "worker" or answer["dp_ranks"] > 1}
    cause = max(causes, key=causes.__getitem__)
    told = f"explains {share(causes[cause])} of the slowdown"
    if causes[cause] < _MOST:
        return "mixed", f"No single cause: the largest, {cause}, {told}."
    if cause == "worker":
        worker = answer["workers"][0]
        return cause, f"One slow worker: stage {worker['stage']} of data-parallel rank {worker['dp_rank']} {told}."
    if cause == "stages":
        stage = max(answer["stages"], key=lambda stage: stage["compute_ns"])["stage"]
        last = ", the last," if stage == len(answer["stages"]) - 1 else ""
        one = " With one replica, a slow worker looks the same." if answer["dp_ranks"] == 1 else ""
        return cause, f"Uneven stages: stage {stage}{last} computes longest; that stages differ {told}.{one}"
    if cause == "transfers":
        return cause, f"Slow transfers: what they take beyond the median of their kind {told}."
    known = [answer[name] for name in ("forward_backward_correlation", "stage_correlation") if answer[name] is not None]
    if min(known, default=0.0) < _CORRELATED:
        return "unknown", (
            f"Compute varies between micro-batches, which {told}; the cause is unknown, because a micro-batch that is "
            "long in one phase or stage is not long in the others."
        )
    both = "forward and in backward" if len(known) == 1 else "forward, in backward and on every stage"
    return cause, f"Uneven sequences: micro-batches differ, alike in {both} (as lengths of sequences do), which {told}."

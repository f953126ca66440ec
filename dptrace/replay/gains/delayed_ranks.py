"""The counterfactual of a straggler: the ranks that it names lose no time where they did."""

from __future__ import annotations

from typing import Any

import numpy as np

from dptrace.analysis.cross_rank.delays.delay import Delay
from dptrace.analysis.findings.finding import Finding
from dptrace.analysis.findings.stragglers import group_delays
from dptrace.replay.gains.host_time import LevelRanks, Segment
from dptrace.replay.graph.build import Model
from dptrace.replay.simulation.changes import Change
from dptrace.run.run import Run

__all__ = ["level_ranks"]

_WITHOUT = {
    "unlevel_start": "The recordings begin at different points of the program: no step would be shorter.",
    "uneven_end": "A replay gives all ranks of a collective the same transfer, so none leaves it later.",
    "unknown": "The trace does not show what the rank did, so a replay cannot remove it.",
}
_ON_DEVICE = ("compute", "memory_copies")


def level_ranks(finding: Finding, run: Run, model: Model) -> Change | str:
    """Return the change, or why there is none.

    Args:
        run: the run that the finding is about.
        model: that of the whole run.
    """
    evidence = finding.evidence
    cause = str(evidence["cause"])
    if cause in _WITHOUT:
        return _WITHOUT[cause]
    source = run if run.has_selected_steps else model.run
    ids = source.cross_rank.matches.device_ids
    segments = [
        segment
        for delay in _delays_of(evidence, source)
        if (segment := _segment(delay, ids[delay.device], model)) is not None
    ]
    if not segments:
        return "The delay began before the recording."
    ranks = evidence["ranks"]
    late = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
    return LevelRanks(f"{late} level with the others", tuple(segments), waits=cause == "synchronizing")


def _delays_of(evidence: dict[str, Any], source: Run) -> list[Delay]:
    """Return the delays behind a finding: those of the group that it was made of."""
    across = source.cross_rank
    for group in group_delays(across.stragglers.delays):
        largest = group.largest
        same = (group.cause, largest.what, largest.where, largest.late_ns) == tuple(
            evidence[name] for name in ("cause", "what", "where", "late_ns")
        )
        if same and across.matches.device_ids[largest.device][0] == evidence["rank"]:
            return [delay for delay in group.delays if delay.cost_ns > 0]
    return []


def _segment(delay: Delay, place: tuple[int, int], model: Model) -> Segment | None:
    """Return where a delay of a rank and device is in the model; None for one before the first program point."""
    known = [(timeline.rank, timeline.device) for timeline in model.run.timelines]
    if not delay.end_ns or place not in known:
        return None
    number = known.index(place)
    start, end = model.run.cross_rank.clocks.align(number, np.array([delay.start_ns, delay.end_ns], np.int64)).tolist()
    return Segment(model.place[number][0], start, end, delay.late_ns, delay.cause in _ON_DEVICE)

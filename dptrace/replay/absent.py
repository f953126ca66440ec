"""Ranks that were not recorded and that others wait for: what a step gains if they come no later than the others."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import numpy as np

from dptrace.analysis.findings.evidence import Straggler
from dptrace.analysis.findings.finding import MIN_SHARE, Finding
from dptrace.analysis.findings.stragglers import steps_text, straggler_advice, waiting_text
from dptrace.core.intervals import Int64
from dptrace.core.units import duration
from dptrace.replay.gains import LateRanks, Measurer
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import NEVER, EdgeKind
from dptrace.replay.simulation import with_times
from dptrace.replay.transforms.change import Change
from dptrace.run.run import Run

_MIN_NS = 50_000
"""Shortest wait that counts, as for a late arrival."""


class LevelAbsent(Change, frozen=True):
    """Ranks that were not recorded come to their collectives no later than the last of the recorded ones."""

    at_most: bool = False
    """Whether their collectives then take no time, where none with all of its ranks shows how long they transfer."""
    collectives: ClassVar[bool] = True
    keeps_tasks: ClassVar[bool] = True

    def describe(self) -> str:
        return "ranks that were not recorded level with the others"

    def apply(self, model: Model) -> Model:
        edge, transfers, duration_ns = model.graph.edge, model.transfers, model.graph.duration_ns.copy()
        if self.at_most:
            duration_ns[transfers.task[transfers.absent & ~transfers.shown]] = 0
        return with_times(model, duration_ns, np.where(edge.of(EdgeKind.PEER), NEVER, edge.lag_ns))


def absent_ranks(run: Run, measurer: Measurer) -> list[LateRanks]:
    """Return a finding on ranks that were not recorded and that others wait for; none where that is little."""
    model = measurer.replay.model
    late_ns = _late_ns(model)
    matches = model.whole.cross_rank.matches
    number = model.transfers.match if model.of is None else _in_whole(model)
    steps = {name for timeline in run.timelines for name in timeline.windows.names}
    late_ns[~np.isin(matches.step.astype(str)[number], [*steps])] = 0
    found = np.flatnonzero(late_ns > _MIN_NS)
    recorded, by_rank, waiting = set(model.whole.ranks), Counter[int](), set[int]()
    for transfer in found.tolist():
        instance = int(number[transfer])
        # Where several are absent, any of them may be late.
        for rank in set(matches.groups[matches.group[instance]].ranks) - recorded:
            by_rank[rank] += int(late_ns[transfer])
        members = matches.device[matches.first[instance] : matches.first[instance + 1]]
        waiting |= {matches.device_ids[device][0] for device in members.tolist()}
    if not by_rank:
        return []
    latest, members = int(found[late_ns[found].argmax()]), np.diff(matches.first)[number[found]]
    if max(by_rank.values()) < MIN_SHARE * measurer.step_ns * measurer.steps:
        return []
    ranks = sorted(rank for rank, ns in by_rank.items() if 2 * ns >= max(by_rank.values()))
    in_steps = list(dict.fromkeys(matches.step[number[found]].tolist()))
    was = "which was not recorded" if len(ranks) == 1 else "which were not recorded"
    text = (
        f"{waiting_text(sorted(waiting), ranks)}, {was}: up to {duration(int(late_ns[latest]))} late, "
        f"{steps_text(in_steps)}."
    )
    instance = int(number[latest])
    member = int(matches.device[matches.first[instance]])
    evidence = Straggler(
        rank=matches.device_ids[member][0],
        step=str(matches.step[instance]),
        collective=str(matches.kind[instance]),
        cause="not_recorded",
        what="",
        where="",
        instance=instance,
        late_ns=int(late_ns[latest]),
        count=len(found),
        ranks=ranks,
        waiting_ranks=sorted(waiting),
    )
    counted = int((late_ns[found] * members).sum()) // max(1, measurer.steps * len(model.whole.timelines))
    share = min(1.0, counted / max(1.0, measurer.mean_step_ns))
    finding = Finding("straggler", text, straggler_advice("not_recorded", run.metadata), counted, share, evidence)
    return [LateRanks(finding, LevelAbsent(), 0.0)]


def _late_ns(model: Model) -> Int64:
    """Return for each transfer how much later than the last recorded rank those that were not recorded came."""
    graph, edge = model.graph, model.graph.edge
    late = np.zeros(len(graph), np.int64)
    peers = np.flatnonzero(edge.of(EdgeKind.PEER) & (edge.lag_ns > NEVER))
    came = graph.end_ns[edge.src[peers]] + edge.lag_ns[peers]
    np.maximum.at(late, edge.dst[peers], came - graph.start_ns[edge.dst[peers]])
    return late[model.transfers.task]


def _in_whole(model: Model) -> Int64:
    """Return the number of each transfer's collective in the whole run."""
    from dptrace.replay.representatives import numbers_in_part

    assert model.of is not None
    number = numbers_in_part(model.of)
    whole = np.full(int(number.max(initial=-1)) + 1, -1, np.int64)
    known = np.flatnonzero(number >= 0)
    whole[number[known]] = known
    return whole[model.transfers.match]

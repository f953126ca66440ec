"""Findings on stragglers with their gains: each is a group of excesses with one root cause, taken out of the run.

A group's gain is what a step gains without it alone. After the groups above it, it may gain less, since another rank is
as late at the same collectives. Those gains and a rest, which is of delays too small for a finding, add up to what
``--no-straggler`` gains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dptrace.analysis.findings.finding import MIN_SHARE, Finding, Gain
from dptrace.analysis.findings.stragglers import (
    MERGED,
    SMALL,
    ranks_text,
    steps_text,
    straggler_advice,
    straggler_reason,
    waiting_text,
)
from dptrace.core.units import duration
from dptrace.replay.gains.measure import Measurer
from dptrace.replay.graph.build import Model
from dptrace.replay.simulation.changes import Change
from dptrace.replay.transforms.stragglers import Excess, WithoutExcesses, excesses
from dptrace.run.run import Run

__all__ = ["straggler_findings"]

_MAX_FINDINGS = 12
_NOTABLE = 0.2
"""Share of what the latest rank loses from which another is named beside it."""
_HIDDEN = 0.5
"""A delay that gains nothing, since another rank is as late, is a finding from this share of the largest one."""
_OF_RANK = ("slower_host", "compute", "memory_copies")
"""Causes that are of one rank, whatever other ranks have."""


class _Delay(msgspec.Struct, frozen=True, eq=False):
    """An excess, and where the run that findings are about has it."""

    excess: Excess
    rank: int
    step: str
    """Empty where the collective that ends it is not known."""


class _Group(msgspec.Struct, frozen=True, eq=False):
    """The delays with one root cause."""

    cause: str
    delays: tuple[_Delay, ...]

    @property
    def ns(self) -> int:
        return sum(delay.excess.ns for delay in self.delays)

    @property
    def ranks(self) -> list[int]:
        """The ranks that have most of it; what others have of the same cause is jitter."""
        by_rank = Counter[int]()
        for delay in self.delays:
            by_rank[delay.rank] += delay.excess.ns
        return sorted(rank for rank, ns in by_rank.items() if ns >= _NOTABLE * max(by_rank.values()))

    @property
    def largest(self) -> _Delay:
        return max(self.delays, key=lambda delay: delay.excess.ns)

    def is_once(self, run: Run) -> bool:
        """Whether it is in one of several steps."""
        several = max(len(timeline.windows) for timeline in run.timelines) > 1
        return several and len({delay.step for delay in self.delays}) == 1 and bool(self.delays[0].step)

    @property
    def change(self) -> WithoutExcesses:
        """The run without it."""
        late = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"{len(self.ranks)} ranks"
        return WithoutExcesses(f"{late} level with the others", tuple(delay.excess for delay in self.delays))


def straggler_findings(
    run: Run, measurer: Measurer, progress: Callable[[float], None]
) -> Iterator[tuple[Finding, Change | None]]:
    """Yield a finding for each root cause of delays, with its gain, and the run without it; the greatest gain first.

    What is left of the gain of no straggler is jitter: no rank and no cause stands out.

    Args:
        run: what the findings are about; the replay is of the whole run.
        measurer: the replay.
        progress: called with the fraction that is done.
    """
    model = measurer.replay.model
    if len(model.processes) < 2:
        return
    every = excesses(model)
    delays = list(_delays(every, run, model))
    step_ns = measurer.step_ns
    steps = measurer.steps
    groups = [group for group in _grouped(delays) if group.ns / steps >= MIN_SHARE * step_ns][:_MAX_FINDINGS]
    alone = []
    for number, group in enumerate(groups, 1):
        alone.append((group, measurer.measure(group.change).gain))
        progress(number / (2 * len(groups)))
    alone.sort(key=lambda pair: (pair[0].is_once(run), -(pair[1].ns or 0)))
    # Without the first, without the first two …, and without all.
    gained, taken = [0], list[Excess]()
    for number, (group, _) in enumerate(alone, 1):
        taken += group.change.excesses
        gained.append(measurer.gain_ns(WithoutExcesses("", tuple(taken))))
        progress(0.5 + number / (2 * len(groups)))
    kept = [
        (group, gain, own - above)
        for (group, gain), above, own in zip(alone, gained, gained[1:], strict=False)
        if max(gain.ns or 0, own - above) >= MIN_SHARE * step_ns or group.ns >= _HIDDEN * groups[0].ns
    ]
    rest = measurer.gain_ns(WithoutExcesses("", every)) - sum(after for *_, after in kept) if every else 0
    waits = _Waits(run)
    for number, (group, gain, after) in enumerate(kept):
        hides = any(_hides(group.ns / steps, *below[1:]) for below in kept[number + 1 :])
        known = replace(gain, reason=gain.reason or _hidden(gain.ns, after, group.ns / steps))
        if known.ns is not None:
            known = replace(known, next_ns=after, rest_ns=rest)
        found = waits.finding(group, delays, step_ns)
        yield replace(found, gain=known, evidence=found.evidence | {"hides_others": hides}), group.change
    can_tell = not alone or any(gain.ns is not None for _, gain in alone)
    if can_tell and rest >= MIN_SHARE * step_ns and not run.has_selected_steps:
        taken_out = {id(excess) for group, *_ in kept for excess in group.change.excesses}
        yield _jitter([delay for delay in delays if id(delay.excess) not in taken_out], rest, step_ns), None


def _jitter(delays: Sequence[_Delay], gain_ns: int, step_ns: float) -> Finding:
    """Describe the delays that belong to no other finding."""
    by_rank = Counter[int]()
    for delay in delays:
        by_rank[delay.rank] += delay.excess.ns
    ranks = sorted(by_rank)
    text = f"{ranks_text(ranks, capital=True)} are late in turns, each time a little and for another reason: jitter."
    advice = "Pin processes to cores, and look for other load on the hosts; with more ranks than cores, expect it."
    worst = max(delays, key=lambda delay: delay.excess.ns)
    evidence = {"rank": worst.rank, "step": worst.step or None, "ranks": ranks}
    gain = Gain("no rank late now and then", gain_ns, next_ns=gain_ns)
    return Finding("jitter", text, advice, gain_ns, gain_ns / step_ns, evidence, gain)


def _hides(own_ns: float, gain: Gain, next_ns: int) -> bool:
    """Return whether what ranks lose hides another delay, which gains only together with it."""
    return next_ns > 2 * (gain.ns or 0) and own_ns > next_ns / 2


def _hidden(alone_ns: int | None, next_ns: int, own_ns: float) -> str:
    """Explain a gain far below what the ranks lose: the others are as late at the same collectives."""
    if alone_ns is None or max(alone_ns, next_ns) > own_ns / 2:
        return ""
    return f"Of {duration(round(own_ns))} a step that it loses, the rest is hidden: other ranks or work are as late."


def _delays(every: Sequence[Excess], run: Run, model: Model) -> Iterator[_Delay]:
    """Yield the excesses within the ranks and steps of a run."""
    whole = model.run.cross_rank.matches
    ranks = {index: model.run.timelines[number].rank for number, (index, _) in enumerate(model.place)}
    known = {step for timeline in run.timelines for step in timeline.windows.names}
    for excess in every:
        step = str(whole.step[excess.instance]) if excess.instance >= 0 else ""
        if ranks[excess.process] in run.ranks and (step in known or (not step and not run.has_selected_steps)):
            yield _Delay(excess, ranks[excess.process], step)


def _grouped(delays: Sequence[_Delay]) -> list[_Group]:
    """Group delays by root cause, the largest first: the same call in the same place, or a host that is slower."""
    by_rank, by_label = Counter[int](), Counter[tuple[object, ...]]()
    for delay in delays:
        by_rank[delay.rank] += delay.excess.ns
        by_label[_label(delay)] += delay.excess.ns
    groups: dict[tuple[object, ...], list[_Delay]] = {}
    for delay in delays:
        excess = delay.excess
        small = by_label[_label(delay)] < SMALL * by_rank[delay.rank]
        key: tuple[object, ...] = excess.cause, excess.what, excess.where
        if excess.cause == "slower_host" or (excess.cause in MERGED and small):
            key = "slower_host", delay.rank
        elif excess.cause in _OF_RANK:
            key = excess.cause, delay.rank
        elif excess.cause == "allocator":
            key = (excess.cause,)
        groups.setdefault(key, []).append(delay)
    found = [_Group(str(key[0]), tuple(own)) for key, own in groups.items()]
    return sorted(found, key=lambda group: -group.ns)


def _label(delay: _Delay) -> tuple[object, ...]:
    return delay.rank, delay.excess.cause, delay.excess.what, delay.excess.where


class _Waits:
    """What ranks waited for late ones, as measured."""

    def __init__(self, run: Run) -> None:
        self.run, self.matches = run, run.cross_rank.matches
        late = run.cross_rank.stragglers
        self._arrivals: dict[tuple[int, str], list[tuple[int, int, int]]] = {}
        """By rank and step: instance, lateness, cost."""
        for instance, device, late_ns, cost_ns in zip(
            late.instance.tolist(), late.device.tolist(), late.late_ns.tolist(), late.cost_ns.tolist(), strict=True
        ):
            place = self.matches.device_ids[device][0], str(self.matches.step[instance])
            self._arrivals.setdefault(place, []).append((instance, late_ns, cost_ns))
        self._late = set(zip(late.instance.tolist(), late.device.tolist(), strict=True))

    def finding(self, group: _Group, delays: Sequence[_Delay], step_ns: float) -> Finding:
        """Describe a group; its cost is the waiting that it caused, shared with the rank's other delays of a step."""
        total, own = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
        for delay in delays:
            total[delay.rank, delay.step] += delay.excess.ns
        for delay in group.delays:
            own[delay.rank, delay.step] += delay.excess.ns
        by_step, reached = Counter[str](), list[tuple[int, int, int]]()
        for (rank, step), ns in own.items():
            arrivals = self._arrivals.get((rank, step), [])
            reached += [(late_ns, instance, rank) for instance, late_ns, _ in arrivals]
            by_step[step] += round(sum(cost for *_, cost in arrivals) * ns / total[rank, step])
        cost = {step: ns for step, ns in sorted(by_step.items()) if ns > 0 and step}
        excess_by_step = Counter[str]()
        for (_, step), ns in own.items():
            excess_by_step[step] += ns
        worst = max(excess_by_step, key=lambda step: excess_by_step[step])
        late_ns, instance, rank = max(reached, default=(0, None, group.largest.rank))
        waiting = [early for early in self._early(instance) if early not in group.ranks]
        evidence: dict[str, Any] = {"rank": rank, "step": self._step(instance) or worst or None}
        largest = group.largest.excess
        evidence |= {"collective": "" if instance is None else self.matches.kind[instance], "cause": group.cause}
        evidence |= {"what": largest.what, "where": largest.where, "instance": instance, "late_ns": late_ns}
        evidence |= {"once": group.is_once(self.run)}
        evidence |= {"count": len(reached), "ranks": group.ranks, "waiting_ranks": waiting, "cost_by_step_ns": cost}
        steps = [step for step in excess_by_step if step]
        reason = straggler_reason(group.cause, largest.what, largest.where, group.ranks, self.run.on_cpu)
        most = duration(max(excess_by_step.values()))
        longer = f"{'up to ' if len(steps) > 1 else ''}{most} longer" + (f" {steps_text(steps)}" if steps else "")
        devices = max(1, len({name for timeline in self.run.timelines for name in timeline.windows.names}))
        cost_ns = round(sum(cost.values()) / devices)
        advice = straggler_advice(group.cause, self.run.metadata)
        text = f"{waiting_text(waiting, group.ranks)}: {reason}, {longer}."
        return Finding("straggler", text, advice, cost_ns, cost_ns / max(1.0, step_ns), evidence)

    def _step(self, instance: int | None) -> str:
        return "" if instance is None else str(self.matches.step[instance])

    def _early(self, instance: int | None) -> list[int]:
        """Return the ranks that were not late at a collective."""
        if instance is None:
            return []
        members = slice(int(self.matches.first[instance]), int(self.matches.first[instance + 1]))
        devices = self.matches.device[members].tolist()
        return sorted({self.matches.device_ids[d][0] for d in devices if (instance, d) not in self._late})

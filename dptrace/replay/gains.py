"""Findings with what a step would gain without each: one replay for each counterfactual, on one graph."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.findings.cores import NO_CORE, CoreWaits, Loss, core_waits, lacks_core, may_lack_core
from dptrace.analysis.findings.finding import MIN_SHARE, Finding, Gain, by_gain
from dptrace.analysis.findings.stragglers import (
    Lost,
    root_causes,
    steps_text,
    straggler_advice,
    straggler_reason,
    waiting_text,
)
from dptrace.core.intervals import median
from dptrace.core.units import duration, ranks_text, share
from dptrace.errors import DptraceError
from dptrace.replay.counterfactual import GainContext, counterfactual
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import INFERRED
from dptrace.replay.graph.schedule import Times
from dptrace.replay.paths import path_of_run
from dptrace.replay.reach import reach_text
from dptrace.replay.simulation import WALL, SteadyState, StepLengths, mean_range, steady_state, step_lengths
from dptrace.replay.transforms.change import Change, HiddenCollectives
from dptrace.replay.transforms.stragglers import Excess, WithoutExcesses, excesses
from dptrace.replay.whatif import Replay, replay_of
from dptrace.run.run import Run

# What one change gains: how much earlier the run ends per step, with its range, and why it is unknown.


_NOTABLE = 0.01
"""Share of a step from which a shorter one is compared with its steady state."""


_BEYOND = "The run would end earlier by more than a step for each step, since time before the first one counts."


class GainEstimate(msgspec.Struct, frozen=True):
    """What a change gains, and what then sets the length of a step."""

    gain: Gain
    pace: str
    """In words; empty where that is not known."""


class Measurer:
    """Measures changes of one run, each in one replay where nothing of the graph was inferred from times."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    @cached_property
    def _base(self) -> tuple[StepLengths, ...]:
        """The run as it was, and without the waits that only times suggest, if it has any."""
        return (self.replay.base, self.replay.strict) if self._inferred else (self.replay.base,)

    @property
    def _inferred(self) -> bool:
        """Whether waits are in the graph that only times suggest: the range is then that with and without them."""
        return bool(self.replay.model.graph.edge.of(*INFERRED).any())

    @property
    def steps(self) -> int:
        """Number of steps from the start of the recording to the last that findings are about."""
        return max(int(places[-1]) for places in self.replay.chosen.places) + 1

    @property
    def step_ns(self) -> float:
        """Median length of a step of the mean rank, as recorded."""
        return float(median(self.replay.measured[:, :, WALL].mean(axis=0)))

    @property
    def mean_step_ns(self) -> float:
        """Mean length of a step of the mean rank, as recorded."""
        return float(self.replay.measured[:, :, WALL].mean())

    def gain_ns(self, *changes: Change) -> int:
        """Return how much earlier the run ends per step with some changes, as ``dptrace whatif`` says it.

        Those that cut certain pieces come first, as they would otherwise find them cut.
        """
        model = self.replay.model
        for change in sorted(changes, key=lambda one: not isinstance(one, WithoutExcesses)):
            model = change.apply(model)
        return self._at_the_end(self._base[0], step_lengths(model, self.replay.chosen))

    def measure(self, change: Change) -> GainEstimate:
        """Replay a change.

        Raises:
            DptraceError: the run does not have what would change.
        """
        replay = self.replay
        models = [change.apply(replay.model)]
        after = [step_lengths(models[0], replay.chosen)]
        # The range of what is not worth a finding needs no second replay.
        if self._inferred and self._at_the_end(self._base[0], after[0]) >= _NOTABLE * self.step_ns:
            after.append(step_lengths(change.apply(replay.strict.model), replay.chosen))
        gained = [self._per_step(old, new) for old, new in zip(self._base, after, strict=False)]
        return self._answer(change, models[0], after[0], gained)

    def _answer(
        self, change: Change, model: Model, after: StepLengths, gained: Sequence[NDArray[np.float64]]
    ) -> GainEstimate:
        """Bind a gain by what hosts, devices and links need, and by the doubts about it.

        Args:
            model: the changed model, with all waits.
            gained: how much shorter each step is, with all waits, and without those that only times suggest.
        """
        replay, measured = self.replay, self.replay.measured[:, :, WALL].mean(axis=0)
        step, predicted = (round(float(median(table))) for table in (measured, measured - gained[0]))
        # A step that stays about as long is above what hosts and devices need, as it was.
        steady = replay.steady if predicted > (1 - _NOTABLE) * step else steady_state(model)
        least = replay.bound(steady), change.least_step_ns(replay.model)
        doubts = replay.doubts_about((change,), predicted, least[0], steady)
        gain = Gain(change.describe(), doubts=tuple(dict.fromkeys(doubt.kind for doubt in doubts)))
        if refused := [doubt.text for doubt in doubts if doubt.refuses]:
            return GainEstimate(replace(gain, reason=refused[0]), "")
        beyond, ended = max(0, round(max(least) - predicted)), self._at_the_end(self._base[0], after)
        low, high = self._range(gained, ended, beyond, predicted)
        ns, shorter = _less(ended, beyond), _less(step - predicted, beyond)
        if ns > self.step_ns:
            return GainEstimate(replace(gain, reason=_BEYOND), "")
        gain = replace(gain, ns=ns, low_ns=min(low, ns), high_ns=max(high, ns), median_step_ns=shorter)
        return GainEstimate(gain, _pace(model, after.times, steady, least if beyond else None))

    def _per_step(self, before: StepLengths, after: StepLengths) -> NDArray[np.float64]:
        """Return how much shorter each step is, of the mean timeline."""
        less: NDArray[np.float64] = (before.length_ns - after.length_ns).mean(axis=0)
        return less

    def _at_the_end(self, before: StepLengths, after: StepLengths) -> int:
        """Return how much earlier the last step ends, per step from the start of the recording."""
        return round(round(float((before.ended_ns - after.ended_ns).mean())) / self.steps)

    def _range(self, gained: Sequence[NDArray[np.float64]], ns: int, beyond: int, predicted_ns: int) -> tuple[int, int]:
        """Return the range of the gain at the end: of the mean over resampled steps, and by the replay's error."""
        ranges = [mean_range(one - gained[0].mean()) for one in gained]
        error = self.replay.error_ns(max(0, predicted_ns))
        low = ns + min(low for low, _ in ranges) - error
        high = ns + max(high for _, high in ranges) + error
        return _less(round(low), beyond) if ns < 0 else max(0, round(low) - beyond), _less(round(high), beyond)


def _less(ns: int, beyond: int) -> int:
    """Return a gain without what the steady state does not allow."""
    return ns if ns <= 0 else max(0, ns - beyond)


def _pace(model: Model, times: Times, steady: SteadyState, least: tuple[float, float] | None) -> str:
    """Describe what sets the length of a step once the change is made.

    Args:
        least: the shortest step of hosts and devices alone, and that of the links; None where neither decides.
    """
    if least is not None and least[1] > least[0]:
        return f"the links alone need {duration(least[1])} a step"
    if least is not None:
        side, needs = max((steady.device_ns, "devices"), (steady.host_ns, "hosts"))[::-1]
        return f"the {side} alone need {duration(needs)} a step"
    by_kind = path_of_run(model, times).by_kind()
    kind = max(by_kind, key=lambda kind: by_kind[kind])
    return f"{_PACES.get(kind, kind)} {share(by_kind[kind] / max(1, sum(by_kind.values())))} of the critical path"


_PACES = {
    "compute": "compute is",
    "memory": "copies are",
    "transfer": "transfers are",
    "host": "the host is",
    "launch": "launch latency is",
    "stream": "gaps between kernels are",
    "wait": "returns of waits are",
    "absent_ranks": "ranks that were not recorded are",
    "unexplained": "waits without a recorded reason are",
}


# Findings on stragglers with their gains: each is a group of excesses with one root cause, taken out of the run.
#
# A group's gain is what a step gains without it alone. After the groups above it, it may gain less, since another rank
# is as late at the same collectives. Those gains and a rest, which is of delays too small for a finding, add up to what
# ``--no-straggler`` gains.

_MAX_FINDINGS = 12
_NOTABLE_STRAGGLER = 0.2
"""Share of what the latest rank loses from which another is named beside it."""
_HIDDEN = 0.5
"""A delay that gains nothing, since another rank is as late, is a finding from this share of the largest one."""


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
    def ns_by_rank(self) -> Counter[int]:
        """What each rank has of it."""
        by_rank = Counter[int]()
        for delay in self.delays:
            by_rank[delay.rank] += delay.excess.ns
        return by_rank

    @property
    def ranks(self) -> list[int]:
        """The ranks that have most of it; what others have of the same cause is jitter."""
        by_rank = self.ns_by_rank
        return sorted(rank for rank, ns in by_rank.items() if ns >= _NOTABLE_STRAGGLER * max(by_rank.values()))

    def lost_ns(self, model: Model) -> float:
        """What its ranks lose, of the mean rank that can wait for them: that of the latest rank, in its collectives."""
        instance, matches = self.largest.excess.instance, model.run.cross_rank.matches
        members = int(np.diff(matches.first)[instance]) if instance >= 0 else len(model.processes)
        return max(self.ns_by_rank.values()) * min(1.0, members / len(model.processes))

    @property
    def largest(self) -> _Delay:
        return max(self.delays, key=lambda delay: delay.excess.ns)

    def is_once(self, run: Run) -> bool:
        """Whether it is in one of several steps."""
        several = max(len(timeline.windows) for timeline in run.timelines) > 1
        return several and len(self.steps) == 1

    @property
    def steps(self) -> list[str]:
        """The steps that have most of it; what others have of the same cause is jitter."""
        by_step = Counter[str]()
        for delay in self.delays:
            by_step[delay.step] += delay.excess.ns
        return [step for step, ns in by_step.items() if step and ns >= _NOTABLE_STRAGGLER * max(by_step.values())]

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
    without_core = core_waits(run.metadata, run.timelines)
    delays = _without_core(list(_delays(every, run, model)), without_core, run.on_cpu)
    step_ns = measurer.step_ns
    steps = measurer.steps
    groups = [group for group in _grouped(delays) if group.ns / steps >= MIN_SHARE * step_ns][:_MAX_FINDINGS]
    alone = []
    for number, group in enumerate(groups, 1):
        alone.append((group, measurer.measure(group.change).gain))
        progress(number / (2 * len(groups)))
    alone.sort(key=lambda pair: (pair[0].is_once(run), -(pair[1].ns or 0)))
    least = MIN_SHARE * step_ns
    after = _one_after_the_other(alone, measurer)
    progress(0.75)
    needed = _needed(alone, after, measurer, least)
    if needed:
        # Those that others gain with come before these, and those that nothing needs after all.
        order = sorted(range(len(alone)), key=lambda i: max(after[i], alone[i][1].ns or 0) < least and i not in needed)
        alone, needed = [alone[i] for i in order], {order.index(i) for i in needed}
        after = _one_after_the_other(alone, measurer)
    kept = [
        (number, group, gain, after[number])
        for number, (group, gain) in enumerate(alone)
        if max(gain.ns or 0, after[number]) >= least or group.ns >= _HIDDEN * groups[0].ns
    ]
    rest = measurer.gain_ns(WithoutExcesses("", every)) - sum(own for *_, own in kept) if every else 0
    waits = _Waits(run)
    for number, group, gain, own in kept:
        known = replace(gain, reason=gain.reason or _hidden(gain.ns, own, group.lost_ns(model) / steps))
        if known.ns is not None:
            known = replace(known, next_ns=own, rest_ns=rest)
        found = waits.finding(group, delays, measurer.mean_step_ns, _what_follows(model, group.largest.excess))
        reach = reach_text(model, group.ranks[0], group.largest.excess.instance) if len(group.ranks) == 1 else ""
        found = replace(found, text=f"{found.text} {reach}".rstrip())
        yield replace(found, gain=known, evidence=found.evidence | {"hides_others": number in needed}), group.change
    can_tell = not alone or any(gain.ns is not None for _, gain in alone)
    if can_tell and rest >= MIN_SHARE * step_ns and not run.has_selected_steps:
        taken_out = {id(excess) for _, group, *_ in kept for excess in group.change.excesses}
        left = [delay for delay in delays if id(delay.excess) not in taken_out]
        yield _jitter(left, rest, measurer.mean_step_ns), None


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


def _one_after_the_other(groups: Sequence[tuple[_Group, Gain]], measurer: Measurer) -> list[int]:
    """Return what each group gains after those before it."""
    gained, taken = [0], list[Excess]()
    for group, _ in groups:
        taken += group.change.excesses
        gained.append(measurer.gain_ns(WithoutExcesses("", tuple(taken))))
    return [own - above for above, own in pairwise(gained)]


def _needed(groups: Sequence[tuple[_Group, Gain]], after: Sequence[int], measurer: Measurer, least: float) -> set[int]:
    """Return which groups gain nothing themselves, but others gain with them only: these are as late elsewhere."""
    if not any(own >= least and own > 2 * (gain.ns or 0) for own, (_, gain) in zip(after, groups, strict=True)):
        return set()
    found = set()
    for number, (group, gain) in enumerate(groups):
        if max(after[number], gain.ns or 0) < least:
            others = [excess for other, _ in groups if other is not group for excess in other.change.excesses]
            if sum(after) - measurer.gain_ns(WithoutExcesses("", tuple(others))) >= least:
                found.add(number)
    return found


def _what_follows(model: Model, excess: Excess) -> str:
    """Return the name of the call that comes after the longest pause of an excess; empty for one of calls."""
    longest = int(excess.index[int(excess.cut_ns.argmax())])
    return "" if longest >= 0 else model.graph.names[model.graph.name[model.graph.edge.dst[-1 - longest]]]


def _hidden(alone_ns: int | None, next_ns: int, own_ns: float) -> str:
    """Explain a gain far below what the ranks lose: the others are as late at the same collectives."""
    if alone_ns is None or max(alone_ns, next_ns) > own_ns / 2:
        return ""
    return f"Of {duration(round(own_ns))} a step that is lost, the rest is hidden: other ranks or work are as late."


def _delays(every: Sequence[Excess], run: Run, model: Model) -> Iterator[_Delay]:
    """Yield the excesses within the ranks and steps of a run."""
    whole = model.run.cross_rank.matches
    ranks = {index: model.run.timelines[number].rank for number, (index, _) in enumerate(model.place)}
    known = {step for timeline in run.timelines for step in timeline.windows.names}
    for excess in every:
        step = str(whole.step[excess.instance]) if excess.instance >= 0 else ""
        if ranks[excess.process] in run.ranks and (step in known or (not step and not run.has_selected_steps)):
            yield _Delay(excess, ranks[excess.process], step)


def _without_core(delays: Sequence[_Delay], waits: CoreWaits, on_cpu: bool) -> list[_Delay]:
    """Return delays; those of a rank that had no core have that cause."""
    losses = [Loss(delay.rank, delay.step, delay.excess.cause, delay.excess.ns) for delay in delays]
    return [
        replace(delay, excess=replace(delay.excess, cause=NO_CORE, what="", where="")) if lacks else delay
        for delay, lacks in zip(delays, lacks_core(losses, waits, on_cpu), strict=True)
    ]


def _grouped(delays: Sequence[_Delay]) -> list[_Group]:
    """Group delays by root cause, the largest first."""
    lost = [Lost(d.rank, d.excess.cause, d.excess.what, d.excess.where, d.excess.ns) for d in delays]
    groups: dict[tuple[object, ...], list[_Delay]] = {}
    for key, delay in zip(root_causes(lost), delays, strict=True):
        groups.setdefault(key, []).append(delay)
    found = [_Group(str(key[0]), tuple(own)) for key, own in groups.items()]
    return sorted(found, key=lambda group: -group.ns)


class _Waits:
    """What ranks waited for late ones, as measured."""

    def __init__(self, run: Run) -> None:
        self.run, self.matches = run, run.cross_rank.matches
        self._core_waits = core_waits(run.metadata, run.timelines)
        late = run.cross_rank.stragglers
        self._arrivals: dict[tuple[int, str], list[tuple[int, int, int]]] = {}
        """By rank and step: instance, lateness, cost."""
        for instance, device, late_ns, cost_ns in zip(
            late.instance.tolist(), late.device.tolist(), late.late_ns.tolist(), late.cost_ns.tolist(), strict=True
        ):
            place = self.matches.device_ids[device][0], str(self.matches.step[instance])
            self._arrivals.setdefault(place, []).append((instance, late_ns, cost_ns))
        self._late = set(zip(late.instance.tolist(), late.device.tolist(), strict=True))
        self._members = np.diff(self.matches.first)
        """Ranks of each instance."""
        self._walls = {
            (timeline.rank, name): int(wall)
            for timeline in run.timelines
            for name, wall in zip(timeline.windows.names, np.diff(timeline.windows.bounds), strict=True)
        }

    def finding(self, group: _Group, delays: Sequence[_Delay], step_ns: float, before: str) -> Finding:
        """Describe a group; its cost is the waiting that it caused, shared with the rank's other delays of a step."""
        total, own = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
        for delay in delays:
            total[delay.rank, delay.step] += delay.excess.ns
        for delay in group.delays:
            own[delay.rank, delay.step] += delay.excess.ns
        by_step, reached, gpu_ns = Counter[str](), list[tuple[int, int, int]](), 0.0
        for (rank, step), ns in own.items():
            arrivals = self._arrivals.get((rank, step), [])
            reached += [(late_ns, instance, rank) for instance, late_ns, _ in arrivals]
            lost_ns = round(sum(cost for *_, cost in arrivals) * ns / total[rank, step])
            by_step[step] += lost_ns
            gpu_ns += lost_ns * self._gpus(rank, step, arrivals)
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
        steps = group.steps
        unknown = may_lack_core(own, self._core_waits, self.run.on_cpu)
        reason = straggler_reason(group.cause, largest.what, largest.where, group.ranks, self.run.on_cpu, unknown)
        reason += f" before “{before}”" if before and group.cause == "nothing_recorded" else ""
        most = duration(max(own.values()))
        longer = f"{'up to ' if len(steps) > 1 else ''}{most} longer" + (f" {steps_text(steps)}" if steps else "")
        steps_of_all = len({name for timeline in self.run.timelines for name in timeline.windows.names})
        cost_ns = round(gpu_ns / max(1, steps_of_all * len(self.run.timelines)))
        advice = straggler_advice(group.cause, self.run.metadata, largest.what)
        text = f"{waiting_text(waiting, group.ranks)}: {reason}, {longer}."
        return Finding("straggler", text, advice, cost_ns, cost_ns / max(1.0, step_ns), evidence)

    def _gpus(self, rank: int, step: str, arrivals: Sequence[tuple[int, int, int]]) -> float:
        """Return how many GPUs' steps late arrivals of a rank lengthen by their cost; its own by no more than it is."""
        own = sum(cost for *_, cost in arrivals)
        if not step or not own:
            return 0.0
        others = sum(cost * (int(self._members[instance]) - 1) for instance, _, cost in arrivals)
        return (others + min(own, self._walls.get((rank, step), own))) / own

    def _step(self, instance: int | None) -> str:
        return "" if instance is None else str(self.matches.step[instance])

    def _early(self, instance: int | None) -> list[int]:
        """Return the ranks that were not late at a collective."""
        if instance is None:
            return []
        members = slice(int(self.matches.first[instance]), int(self.matches.first[instance + 1]))
        devices = self.matches.device[members].tolist()
        return sorted({self.matches.device_ids[d][0] for d in devices if (instance, d) not in self._late})


_FAR_BELOW = 0.5
"""Share of a finding's cost below which a gain is explained."""
_ABSENT = "Ranks are missing, so it is unknown how much of this is waiting for them."


AnyRun = TypeVar("AnyRun", bound=Run)
Progress = Callable[[float], None]
"""Called with the fraction that is done."""


def findings_with_gains(
    run: Run,
    found: Sequence[Finding],
    progress: Progress = lambda fraction: None,
    *,
    stragglers: bool = True,
) -> tuple[Finding, ...]:
    """Return the findings of a run with what each would gain, the greatest gain first.

    Where the run can't be replayed, all findings stay, and each says why.

    Args:
        run: what the findings are about.
        found: its findings.
        progress: called with the fraction that is done.
        stragglers: make those on stragglers of what a replay takes out, so that their gains add up to that of no
            straggler; they replace the ones found by waiting.
    """
    try:
        gains = _Gains(run)
    except DptraceError as error:
        gain = Gain(reason=_without_path(error, run))
        return tuple(replace(finding, gain=gain) for finding in found)
    gained = gains.of_stragglers(lambda fraction: progress(fraction / 2)) if stragglers else []
    if gained and all(finding.gain is None or finding.gain.ns is None for finding, _ in gained):
        gained, stragglers = [], False  # the replay does not know them: those by waiting stay, and say why
    known = {rank for finding, _ in gained for rank in finding.evidence["ranks"]}
    others = [f for f in found if not stragglers or f.kind != "straggler" or _is_unlevel(f, known)]
    for number, finding in enumerate(others, 1):
        gained.append(gains.of(finding))
        progress((1 + number / len(others)) / 2)
    progress(1)
    return gains.after_those_above(gained)


def _is_unlevel(finding: Finding, known: set[int]) -> bool:
    """Return whether ranks are late only since their recordings begin at another point of the program."""
    return finding.evidence["cause"] == "unlevel_start" and not known & set(finding.evidence["ranks"])


def with_gains(run: AnyRun, progress: Progress = lambda fraction: None) -> AnyRun:
    """Return a run whose findings have what each would gain."""
    found = findings_with_gains(run, run.cross_rank.findings, progress)
    result = dataclasses.replace(run, gains=findings_with_gains)
    # Both are computed only once; a run is frozen, so its cached properties are set in its dictionary.
    vars(result)["cross_rank"] = replace(run.cross_rank, findings=found)
    if "replays" in vars(run):
        vars(result)["replays"] = vars(run)["replays"]
    return result


_Gained = tuple[Finding, "Change | None"]
"""A finding with its gain, and the change that it is the gain of."""


class _Gains:
    """The counterfactuals of a run; findings with the same one share its replay."""

    def __init__(self, run: Run) -> None:
        replay = replay_of(run)
        self._run, self._context, self._measurer = run, GainContext(run, replay.model), Measurer(replay)
        self._known: dict[Change, GainEstimate] = {}

    def of_stragglers(self, progress: Progress) -> list[_Gained]:
        """Return the findings on stragglers, with their gains."""
        return list(straggler_findings(self._run, self._measurer, progress))

    def of(self, finding: Finding) -> _Gained:
        """Return a finding with what it would gain, or why that is not known."""
        try:
            change = counterfactual(finding, self._context)
            if isinstance(change, str):
                return replace(finding, gain=Gain(reason=change)), None
            if change not in self._known:
                self._known[change] = self._measurer.measure(change)
        except DptraceError as error:
            return replace(finding, gain=Gain(reason=_without_path(error, self._context.model.run))), None
        measured = self._known[change]
        if isinstance(change, HiddenCollectives) and change.lacks_ranks(self._context.model):
            measured = _at_most(measured, finding)
        return replace(finding, gain=_explained(measured, finding)), change

    def after_those_above(self, gained: Sequence[_Gained]) -> tuple[Finding, ...]:
        """Sort findings by their gain, and give each what it gains after those above it: one cause counts once."""
        change_of = {id(finding): change for finding, change in gained}
        found, taken, before = list[Finding](), list[Change](), 0
        for finding in by_gain(finding for finding, _ in gained):
            gain, change = finding.gain, change_of[id(finding)]
            notable = gain is not None and (gain.shown_ns or 0) >= MIN_SHARE * self._measurer.step_ns
            if gain is not None and gain.ns is not None and notable and change is not None and change.keeps_tasks:
                taken.append(change)
                after = self._measurer.gain_ns(*taken)
                if finding.kind != "straggler":
                    gain = _after(gain, min(gain.ns, max(0, after - before)), found)
                before = after
            if gain is not None and gain.shown_ns is not None:
                gain = replace(gain, share=gain.shown_ns / self._measurer.mean_step_ns)
            found.append(replace(finding, gain=gain))
        return by_gain(found)


def _after(gain: Gain, ns: int, above: Sequence[Finding]) -> Gain:
    """Add to a gain what is left of it after the findings above, and say so where that is far less."""
    if not above or gain.ns is None or ns >= _FAR_BELOW * gain.ns:
        return replace(gain, next_ns=ns)
    text = f"Findings above have part of the same time: after them it gains {duration(ns) if ns else 'nothing'}."
    return replace(gain, next_ns=ns, reason=f"{gain.reason} {text}".lstrip())


def _without_path(error: DptraceError, run: Run) -> str:
    """Return an error's message without the run's path, which all findings share."""
    text = str(error).removeprefix(f"{run.path}: ")
    return text[:1].upper() + text[1:]


def _at_most(measured: GainEstimate, finding: Finding) -> GainEstimate:
    """Keep a gain that may be waiting for missing ranks only where it is small: then the transfers gain no more."""
    gain = measured.gain
    if gain.ns is None or gain.ns < _FAR_BELOW * finding.cost_ns:
        return measured
    unknown = Gain(gain.change, reason=_ABSENT, doubts=gain.doubts)
    return replace(measured, gain=unknown)


def _explained(measured: GainEstimate, finding: Finding) -> Gain:
    """Describe why a gain is far below what a finding counts: other work takes as long at the same time."""
    gain = measured.gain
    if gain.ns is None or not 0 <= gain.ns < _FAR_BELOW * finding.cost_ns:
        return gain
    hidden, counted = duration(finding.cost_ns - gain.ns), duration(finding.cost_ns)
    text = f"Of {counted} counted, {hidden} are hidden behind other work, not on the critical path"
    return replace(gain, reason=f"{text}: without them, {measured.pace}.")

"""What a step would gain without something: one change of a replay, or several; and the changes on late ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.findings.cores import CoreWaits, Loss, core_waits, lacks_core, may_lack_core
from dptrace.analysis.findings.evidence import Jitter, Straggler
from dptrace.analysis.findings.finding import MIN_SHARE, Finding, Gain
from dptrace.analysis.findings.stragglers import (
    Lost,
    late_arrivals,
    root_causes,
    steps_text,
    straggler_advice,
    straggler_reason,
    waiting_text,
)
from dptrace.analysis.per_gpu.causes import NO_CORE
from dptrace.analysis.per_gpu.split import COMPUTE
from dptrace.core.intervals import median
from dptrace.core.units import duration, ranks_text, share
from dptrace.errors import DptraceError
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import INFERRED
from dptrace.replay.graph.schedule import simulate
from dptrace.replay.late_nodes import by_node, node_of
from dptrace.replay.noise import beyond_noise
from dptrace.replay.paths import path_of_run
from dptrace.replay.reach import reach_text
from dptrace.replay.simulation import WALL, SteadyState, StepLengths, mean_range, steady_state, step_lengths
from dptrace.replay.stalls import place_text
from dptrace.replay.transforms.change import Change
from dptrace.replay.transforms.schedule import Reschedule
from dptrace.replay.transforms.stragglers import Excess, WithoutExcesses, excesses, without_cuts
from dptrace.replay.whatif import Replay
from dptrace.run.nodes import ranks_by_node
from dptrace.run.run import Run

# What changes gain: how much shorter a step is, with its range, and why it is unknown.


_NOTABLE = 0.01
"""Share of a step from which a shorter one is compared with its steady state."""


class GainEstimate(msgspec.Struct, frozen=True):
    """What a change gains, and what then sets the length of a step."""

    gain: Gain
    pace: Callable[[], str] = str
    """Says it in words."""


class Measurer:
    """Measures changes of one run, each in one replay where nothing of the graph was inferred from times."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self._known: dict[frozenset[Change], SteadyState] = {}
        """The steady states of changed runs that were needed."""
        self._gained: dict[tuple[Change, ...], int] = {}
        self._least: dict[Change, float] = {}
        self._last: tuple[tuple[Change, ...], Model] | None = None

    @cached_property
    def _base(self) -> tuple[StepLengths, ...]:
        """The run as it was, and without the waits that only times suggest, if it has any."""
        return (self.replay.base, self.replay.strict) if self._inferred else (self.replay.base,)

    @cached_property
    def _inferred(self) -> bool:
        """Whether waits are in the graph that only times suggest: the range is then that with and without them."""
        return bool(self.replay.model.graph.edge.of(*INFERRED).any())

    @property
    def steps(self) -> int:
        """Number of steps that findings are about."""
        return len(self.replay.chosen.steps)

    @cached_property
    def _walls(self) -> NDArray[np.float64]:
        """Length of each step of the mean rank, as recorded."""
        walls: NDArray[np.float64] = self.replay.measured[:, :, WALL].mean(axis=0)
        return walls

    @property
    def step_ns(self) -> float:
        """Median length of a step of the mean rank, as recorded."""
        return float(median(self._walls))

    @property
    def mean_step_ns(self) -> float:
        """Mean length of a step of the mean rank, as recorded."""
        return float(self._walls.mean())

    @cached_property
    def refusal(self) -> Gain | None:
        """Why no change can be told, as the replay does not explain the run as it was; None where it does."""
        doubts = self.replay.doubts
        refused = [doubt.text for doubt in doubts if doubt.refuses]
        return Gain(reason=refused[0], doubts=tuple(doubt.kind for doubt in doubts)) if refused else None

    def gain_ns(self, changes: Sequence[Change]) -> int:
        """Return how much shorter a step is with some changes at once, as far as hosts, devices and links allow.

        Changes that cut certain pieces come first, as they would otherwise find them cut; then those that keep tasks.
        Where those before it leave no all-reduce that takes time, other buckets gain no more.
        """
        ordered = tuple(sorted(changes, key=_order))
        if ordered not in self._gained:
            model = self._without(ordered)
            gained = self._per_step(self._base[0], step_lengths(model, self.replay.chosen))
            self._gained[ordered] = self._bounded(changes, model, gained).gain_ns
        return self._gained[ordered]

    def _without(self, ordered: tuple[Change, ...]) -> Model:
        """Apply changes, from where those of the last call go no further."""
        done, model = self._last or ((), self.replay.model)
        if not done or ordered[: len(done)] != done:
            late = [one for one in ordered if isinstance(one, WithoutExcesses)]
            done, model = tuple(late), self.replay.model
            model = without_cuts(model, [one.cuts for one in late]) if late else model
        for change in ordered[len(done) :]:
            with suppress(DptraceError) if isinstance(change, Reschedule) else nullcontext():
                model = change.apply(model)
        self._last = ordered, model
        return model

    def measure(self, change: Change) -> GainEstimate:
        """Replay a change.

        Raises:
            DptraceError: the run does not have what would change.
        """
        replay = self.replay
        model = change.apply(replay.model)
        after = step_lengths(model, replay.chosen)
        gained = [self._per_step(self._base[0], after)]
        # The range of what is not worth a finding needs no second replay.
        if self._inferred and gained[0].mean() >= _NOTABLE * self.step_ns:
            strict = step_lengths(change.apply(replay.strict.model), replay.chosen)
            gained.append(self._per_step(self._base[1], strict))
        held: NDArray[np.float64] | None = None
        if replay.held is not None and gained[0].mean() >= _NOTABLE * self.step_ns:
            held = self._per_step(replay.held, step_lengths(change.apply(replay.held.model), replay.chosen))
        most = list[NDArray[np.float64]]()
        if replay.early is not None and gained[0].mean() >= _NOTABLE * self.step_ns:
            early = step_lengths(change.apply(replay.early.model), replay.chosen)
            most.append(self._per_step(replay.early, early))
        bounded = self._bounded((change,), model, gained[0])
        doubts = replay.doubts_about((change,), bounded.predicted_ns, bounded.least[0], bounded.steady)
        gain = Gain(change.describe(), doubts=tuple(dict.fromkeys(doubt.kind for doubt in doubts)))
        if refused := [doubt.text for doubt in doubts if doubt.refuses]:
            return GainEstimate(replace(gain, reason=refused[0]))
        ns, shorter = bounded.gain_ns, _less(round(self.step_ns) - bounded.predicted_ns, bounded.beyond_ns)
        low, high = self._range(gained, most, round(gained[0].mean()), bounded)
        if held is not None:
            recorded, (low, high) = low, self._range([*gained, held], most, round(gained[0].mean()), bounded)
            gain = replace(gain, reason=self.as_late("it gains nothing")) if low <= 0 < recorded else gain
        gain = replace(gain, ns=ns, low_ns=min(low, ns), high_ns=max(high, ns), median_step_ns=shorter)
        return GainEstimate(gain, lambda: _pace(model, bounded))

    def as_late(self, then: str) -> str:
        """Say that a gain is unknown, since ranks may hide it that collectives lack; empty where none can."""
        if self.replay.held is None:
            return ""
        absent = self.replay.whole.cross_rank.not_recorded
        who = f"{absent}, and" if absent else "collectives lack ranks, which"
        return f"Can't tell: {who} may be as late as the others; then {then}."

    def _per_step(self, before: StepLengths, after: StepLengths) -> NDArray[np.float64]:
        """Return how much shorter each step is, of the mean timeline; what comes before the first counts in none."""
        less: NDArray[np.float64] = (before.length_ns - after.length_ns).mean(axis=0)
        return less

    def _bounded(self, changes: Sequence[Change], model: Model, gained: NDArray[np.float64]) -> _Bounded:
        """Bind what changes gain in each step by what hosts, devices and links need."""
        replay, predicted = self.replay, round(float(median(self._walls - gained)))
        steady = self._steady(changes, model, predicted)
        links = max(map(self._links_ns, changes), default=0.0)
        least = replay.bound(steady), links
        beyond, mean = max(0, round(max(least) - predicted)), round(float(gained.mean()))
        if all(change.keeps_tasks for change in changes):
            mean = max(0, mean)  # nothing that only gets shorter lengthens a step
        return _Bounded(predicted, steady, least, beyond, _less(mean, beyond))

    def _links_ns(self, change: Change) -> float:
        """Return how long a step takes at least with a change, whatever the replay says."""
        if change not in self._least:
            self._least[change] = change.least_step_ns(self.replay.model)
        return self._least[change]

    def _steady(self, changes: Sequence[Change], model: Model, predicted: int) -> SteadyState:
        """Return the steady state of a changed run, or one that allows the predicted step as well.

        A step that stays about as long is above what hosts and devices need, as it was; and where some of the changes
        leave no more than the predicted step to do, all of them, which only make things shorter, do not either.
        """
        replay, own, most = self.replay, frozenset(changes), None
        if predicted > (1 - _NOTABLE) * self.step_ns:
            return replay.steady
        if all(change.keeps_tasks for change in changes):
            known = (replay.steady, *(steady for some, steady in self._known.items() if some <= own))
            least = min(known, key=replay.bound)
            if replay.bound(least) <= predicted:
                return least
            most = SteadyState(min(one.host_ns for one in known), min(one.device_ns for one in known))
        self._known[own] = steady = steady_state(model, most)
        return steady

    def _range(
        self,
        gained: Sequence[NDArray[np.float64]],
        most: Sequence[NDArray[np.float64]],
        ns: int,
        bounded: _Bounded,
    ) -> tuple[int, int]:
        """Return the range of a gain: of the mean over resampled steps, and by the replay's error.

        Args:
            most: what bounds it from above only.
        """
        ranges, beyond = [mean_range(one - gained[0].mean()) for one in gained], bounded.beyond_ns
        above = [mean_range(one - gained[0].mean())[1] for one in most]
        error = self.replay.error_ns(max(0, bounded.predicted_ns))
        low = ns + min(low for low, _ in ranges) - error
        high = ns + max([*above, *(high for _, high in ranges)]) + error
        return _less(round(low), beyond) if ns < 0 else max(0, round(low) - beyond), _less(round(high), beyond)


class _Bounded(NamedTuple):
    """A gain that is bound by what the steady state and the links allow."""

    predicted_ns: int
    """The median step, before it is bound."""
    steady: SteadyState
    """Of the changed run."""
    least: tuple[float, float]
    """The shortest step of hosts and devices alone, and that of the links."""
    beyond_ns: int
    """By how much the prediction is below these."""
    gain_ns: int


def _order(change: Change) -> tuple[int, int]:
    """Return where a change is among others; those that cut certain pieces are alike, whichever comes first."""
    return (0, id(change)) if isinstance(change, WithoutExcesses) else (1 if change.keeps_tasks else 2, 0)


def _less(ns: int, beyond: int) -> int:
    """Return a gain without what the steady state does not allow."""
    return ns if ns <= 0 else max(0, ns - beyond)


def _pace(model: Model, bounded: _Bounded) -> str:
    """Describe what sets the length of a step once the change is made."""
    steady, least = bounded.steady, bounded.least
    if bounded.beyond_ns and least[1] > least[0]:
        return f"the links alone need {duration(least[1])} a step"
    if bounded.beyond_ns:
        side, needs = max((steady.device_ns, "devices"), (steady.host_ns, "hosts"))[::-1]
        return f"the {side} alone need {duration(needs)} a step"
    by_kind = path_of_run(model, simulate(model.graph)).by_kind()
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
    "absent_ranks": "waits in collectives that lack ranks are",
    "unexplained": "waits without a recorded reason are",
}


# Delays of late ranks: each group with one root cause is a finding, and a change that takes it out of the run.

_MAX_FINDINGS = 12
"""On late ranks."""
_MOST_ALIKE = 0.25
"""Share of all ranks for which one may stand that is late."""
_NOTABLE_STRAGGLER = 0.2
"""Share of what the latest rank loses from which another is named beside it."""


class _Delay(msgspec.Struct, frozen=True, eq=False):
    """An excess, and where the run that findings are about has it."""

    excess: Excess
    rank: int
    ranks: tuple[int, ...]
    """Those that are replayed by this rank, with itself: of many, each for all that are like it."""
    step: str
    """In which it is spent; empty where it is in none."""
    shows: str
    """The step in which others wait for it; where the run does not have that, the one in which it is spent."""
    selected: bool
    """Whether it is spent in the steps of that run."""


class _Group(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The delays with one root cause."""

    cause: str
    delays: tuple[_Delay, ...]
    """Those in the steps that findings are about."""
    excesses: tuple[Excess, ...]
    """Those in all steps: without the cause, none of them is there."""

    @cached_property
    def ns(self) -> int:
        return sum(delay.excess.ns for delay in self.delays)

    @cached_property
    def ns_by_rank(self) -> Counter[int]:
        """What each rank has of it."""
        by_rank = Counter[int]()
        for delay in self.delays:
            ns = delay.excess.ns
            for rank in delay.ranks:
                by_rank[rank] += ns
        return by_rank

    @cached_property
    def ranks(self) -> list[int]:
        """The ranks that have most of it; what others have of the same cause is jitter."""
        least = _NOTABLE_STRAGGLER * max(self.ns_by_rank.values())
        return sorted(rank for rank, ns in self.ns_by_rank.items() if ns >= least)

    def lost_ns(self, model: Model) -> float:
        """What its ranks lose, of the mean rank that can wait for them: that of the latest rank, in its collectives."""
        instance, matches = self.largest.excess.instance, model.run.cross_rank.matches
        members = int(np.diff(matches.first)[instance]) if instance >= 0 else len(model.processes)
        return max(self.ns_by_rank.values()) * min(1.0, members / len(model.processes))

    @cached_property
    def largest(self) -> _Delay:
        return max(self.delays, key=lambda delay: delay.excess.ns)

    def is_once(self, run: Run) -> bool:
        """Whether it is in one of several steps."""
        several = max(len(timeline.windows) for timeline in run.timelines) > 1
        return several and len(self.steps) == 1

    @cached_property
    def steps(self) -> list[str]:
        """The steps that have most of it; what others have of the same cause is jitter."""
        by_step = Counter[str]()
        for delay in self.delays:
            by_step[delay.step] += delay.excess.ns
        least = _NOTABLE_STRAGGLER * max(by_step.values(), default=0)
        return [step for step, ns in by_step.items() if ns >= least]

    @property
    def change(self) -> WithoutExcesses:
        """The run without it."""
        late = ranks_text(self.ranks)
        return WithoutExcesses(f"{late} level with the others", self.excesses)


class LateRanks(NamedTuple):
    """A finding on late ranks, and the run without it."""

    finding: Finding
    change: Change
    lost_ns: float
    """What these ranks lose in a step, of the mean rank that can wait for them."""


def late_ranks(run: Run, measurer: Measurer) -> list[LateRanks]:
    """Return a finding for each root cause of delays, and the largest first; then one for all smaller ones: jitter.

    Args:
        run: what the findings are about; the replay is of the whole run.
    """
    model = measurer.replay.model
    if len(model.processes) < 2:
        return []
    delays = list(_delays(excesses(model), run, model))
    delays = _without_core(delays, core_waits(run.metadata, run.timelines), run.on_cpu)
    least = MIN_SHARE * measurer.step_ns * measurer.steps
    # What a rank does that stands for many others is none of theirs alone: jitter.
    most = 1 if model.of is None else max(1, round(_MOST_ALIKE * len(model.of.whole.ranks)))
    nodes = ranks_by_node(model.whole)
    groups = _grouped([delay for delay in delays if len(delay.ranks) <= most], nodes, _step_names(run))
    large = [group for group in groups if group.ns >= least]
    small = _lost(delay for group in groups if group.ns < least for delay in group.delays)
    told = beyond_noise([(group.cause, _lost(group.delays)) for group in large], small, _steps_of(run))
    groups = [group for group, is_told in zip(large, told, strict=True) if is_told][:_MAX_FINDINGS]
    found = []
    for group in groups:
        finding = _finding(run, group, measurer.mean_step_ns, _what_follows(model, group.largest.excess))
        if node := node_of(group.ranks, nodes):
            finding = _of_node(run, group, finding, node, len(nodes[node]))
        late = [delay.excess for delay in group.delays]
        reach = reach_text(model, group.ranks[0], late) if len(group.ranks) == 1 else ""
        finding = replace(finding, text=f"{finding.text} {reach}".rstrip())
        found.append(LateRanks(finding, group.change, group.lost_ns(model) / measurer.steps))
    named = {id(excess) for group in groups for excess in group.excesses}
    left = [delay for delay in delays if id(delay.excess) not in named]
    if shown := [delay for delay in left if delay.selected]:
        change = WithoutExcesses("no rank late now and then", tuple(delay.excess for delay in left))
        found.append(LateRanks(_jitter(run, shown, measurer.mean_step_ns), change, 0.0))
    return found


def _lost(delays: Iterable[_Delay]) -> Counter[tuple[int, str]]:
    """Return what each rank loses in each step."""
    lost = Counter[tuple[int, str]]()
    for delay in delays:
        for rank in delay.ranks:
            lost[rank, delay.step] += delay.excess.ns
    return lost


def _jitter(run: Run, delays: Sequence[_Delay], step_ns: float) -> Finding:
    """Describe the delays that belong to no other finding."""
    ranks = sorted({rank for delay in delays for rank in delay.ranks})
    are = "is late now and then" if len(ranks) == 1 else "are late in turns"
    lacking = sum(delay.excess.ns for delay in delays if delay.excess.cause == NO_CORE)
    is_lacking = 2 * lacking > sum(delay.excess.ns for delay in delays)
    text = f"{ranks_text(ranks, capital=True)} {are}: jitter; can't tell a cause from noise."
    text += " Most of the time, there was no core to run on." if is_lacking else ""
    advice = "Pin processes to cores, and look for other load on the hosts; with more ranks than cores, expect it."
    worst = max(delays, key=lambda delay: delay.excess.ns)
    cause = NO_CORE if is_lacking else None
    evidence = Jitter(rank=worst.rank, step=worst.step or None, ranks=ranks, cause=cause)
    counted = sum(delay.excess.ns for delay in delays) // max(1, _steps_of(run) * len(run.ranks))
    return Finding("jitter", text, advice, counted, min(1.0, counted / max(1.0, step_ns)), evidence)


def _finding(run: Run, group: _Group, step_ns: float, before: str) -> Finding:
    """Describe a group; what counts is how long the others waited for its ranks in its steps."""
    largest, by_step, by_place = group.largest, Counter[str](), Counter[tuple[int, str]]()
    for delay in group.delays:
        by_step[delay.step] += delay.excess.ns
        by_place[delay.rank, delay.step] += delay.excess.ns
    steps = group.steps
    waited = late_arrivals(run.cross_rank, group.ranks, {one.shows for one in group.delays if one.step in steps})
    there = late_arrivals(run.cross_rank, [largest.rank], [largest.shows])
    late, excess = there if there.number else waited, largest.excess
    own = set(group.ranks)
    waiting = [rank for rank in (waited if waited.number else late).waiting if rank not in own]
    kind = "" if late.instance is None else str(run.cross_rank.matches.kind[late.instance])
    evidence = Straggler(
        rank=largest.rank,
        step=largest.step or None,
        collective=kind,
        cause=group.cause,
        what=excess.what,
        where=excess.where,
        instance=late.instance,
        late_ns=late.late_ns,
        once=group.is_once(run),
        count=waited.number,
        ranks=group.ranks,
        waiting_ranks=waiting,
        lost_by_step_ns=dict(sorted(by_step.items())),
        lost_by_rank_ns={str(rank): ns for rank, ns in sorted(group.ns_by_rank.items())},
    )
    unknown = may_lack_core(by_place, core_waits(run.metadata, run.timelines), run.on_cpu)
    reason = straggler_reason(group.cause, excess.what, excess.where, group.ranks, run.on_cpu, unknown)
    reason += f" {place_text(before)}" if before and group.cause == "nothing_recorded" else ""
    most = duration(max(by_place.values()))
    longer = f"{'up to ' if len(steps) > 1 else ''}{most} longer" + (f" {steps_text(steps)}" if steps else "")
    text = f"{waiting_text(waiting, group.ranks)}: {reason}, {longer}."
    counted = round(waited.waited_ns / max(1, _steps_of(run) * len(run.timelines)))
    advice = straggler_advice(group.cause, run.metadata, excess.what)
    return Finding("straggler", text, advice, counted, min(1.0, counted / max(1.0, step_ns)), evidence)


def _of_node(run: Run, group: _Group, finding: Finding, node: str, ranks: int) -> Finding:
    """Describe a group that is late for one cause as a node.

    Args:
        ranks: how many ranks of the node are recorded.
    """
    own, steps = group.ranks, max(1, len(group.steps))
    longer_ns = median(np.array([group.ns_by_rank[rank] for rank in own])) / steps
    longer = f"{duration(longer_ns)} of a step longer"
    if group.cause == "compute":
        computes = [int(device.split.of(COMPUTE).sum()) for device in run.devices if device.split.rank in own]
        usual = median(np.array(computes)) / max(1, _steps_of(run)) - longer_ns
        longer = f"{share(longer_ns / max(1.0, usual))} longer, {duration(longer_ns)} of a step"
    what = {"compute": "compute takes", "memory_copies": "memory copies take", "slower_host": "hosts take"}
    takes = what.get(group.cause) or f"{straggler_reason(group.cause, '', '', own, run.on_cpu)},"
    of_all = f"{ranks} ranks" if len(own) == ranks else f"{len(own)} of {ranks} ranks"
    evidence = finding.about(Straggler)
    waiting = evidence.waiting_ranks
    who = (
        f" {ranks_text(waiting, capital=True)} {'waits' if len(waiting) == 1 else 'wait'} for them." if waiting else ""
    )
    text = f"{node}, {ranks_text(own)}: {takes} {longer}{f', {steps_text(group.steps)}' if group.steps else ''}.{who}"
    advice = (
        f"Look at what these {of_all} share: power and clock limits, cooling, other load, storage, network of {node}."
    )
    return replace(finding, text=text, advice=advice, evidence=replace(evidence, node=node))


def _steps_of(run: Run) -> int:
    return len(_step_names(run))


def _step_names(run: Run) -> set[str]:
    return {name for timeline in run.timelines for name in timeline.windows.names}


def _what_follows(model: Model, excess: Excess) -> str:
    """Return the name of the call that comes after the longest pause of an excess; empty for one of calls."""
    longest = int(excess.index[int(excess.cut_ns.argmax())])
    return "" if longest >= 0 else model.graph.names[model.graph.name[model.graph.edge.dst[-1 - longest]]]


def _delays(every: Sequence[Excess], run: Run, model: Model) -> Iterator[_Delay]:
    """Yield the excesses of a run's ranks in all steps."""
    whole = model.run.cross_rank.matches
    ranks = {index: model.run.timelines[number].rank for number, (index, _) in enumerate(model.place)}
    selected, stands, known = set(run.ranks), _stands_for(model), _step_names(run)
    for excess in every:
        shows = str(whole.step[excess.instance]) if excess.instance >= 0 else ""
        if (rank := ranks[excess.process]) in selected:
            shows, inside = shows if shows in known else excess.step, excess.step in known
            yield _Delay(excess, rank, stands.get(rank, (rank,)), excess.step, shows, inside)


def _stands_for(model: Model) -> dict[int, tuple[int, ...]]:
    """Return for each rank that is replayed in the place of others which they are, with itself."""
    if model.of is None:
        return {}
    found: dict[int, list[int]] = {}
    for timeline, number in zip(model.of.whole.timelines, model.of.of.tolist(), strict=True):
        found.setdefault(model.run.timelines[number].rank, []).append(timeline.rank)
    return {rank: tuple(dict.fromkeys(own)) for rank, own in found.items()}


def _without_core(delays: Sequence[_Delay], waits: CoreWaits, on_cpu: bool) -> list[_Delay]:
    """Return delays; those of a rank that had no core have that cause."""
    losses = [Loss(delay.rank, delay.step, delay.excess.cause, delay.excess.ns) for delay in delays]
    return [
        replace(delay, excess=replace(delay.excess, cause=NO_CORE, what="", where="")) if lacks else delay
        for delay, lacks in zip(delays, lacks_core(losses, waits, on_cpu), strict=True)
    ]


def _grouped(delays: Sequence[_Delay], nodes: Mapping[str, Sequence[int]], known: set[str]) -> list[_Group]:
    """Group delays by root cause, the largest first; those of the ranks of a late node together.

    Args:
        known: the steps that findings are about. A group that is not late in them has what others wait for there.
    """
    lost = [Lost(d.rank, d.excess.cause, d.excess.what, d.excess.where, d.excess.ns) for d in delays]
    groups: dict[tuple[object, ...], list[_Delay]] = {}
    keys = by_node(root_causes(lost), [delay.ranks for delay in delays], [one.ns for one in lost], nodes)
    for key, delay in zip(keys, delays, strict=True):
        groups.setdefault(key, []).append(delay)
    found = list[_Group]()
    for key, own in groups.items():
        chosen = [one for one in own if one.selected]
        chosen = chosen or [replace(one, step=one.shows) for one in own if one.step and one.shows in known]
        found.append(_Group(str(key[0]), tuple(chosen), tuple(one.excess for one in own)))
    return sorted(found, key=lambda group: -group.ns)

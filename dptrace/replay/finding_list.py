"""Put the findings of a run in order: changes of one replay, which are taken out of it one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from dptrace.analysis.findings.detect import detected
from dptrace.analysis.findings.evidence import Idle, Straggler
from dptrace.analysis.findings.finding import MIN_SHARE, NOISE, NOTABLY_MORE, Finding, FindingContext, Gain, is_part
from dptrace.analysis.findings.stragglers import measured_waiting
from dptrace.core.units import duration
from dptrace.errors import DptraceError
from dptrace.replay.absent import LevelAbsent, absent_ranks
from dptrace.replay.counterfactual import GainContext, counterfactual
from dptrace.replay.gains import GainEstimate, Measurer, late_ranks
from dptrace.replay.stalls import shared_stalls
from dptrace.replay.transforms.change import Change, HiddenCollectives
from dptrace.replay.transforms.stragglers import NoStraggler
from dptrace.replay.whatif import replay_of_some, representatives_of
from dptrace.run.kernels import detected_in_compute
from dptrace.run.run import Run

Progress = Callable[[float], None]
"""Called with the fraction that is done."""
_FAR_BELOW = 0.5
"""Share of what a finding counts, or loses, below which its gain is explained."""
_HIDDEN = 0.5
"""Late ranks that gain nothing, since others are as late, are a finding from this share of what the latest lose."""
_MOSTLY = 0.9
"""Share of what a late rank takes longer in selected steps from which its gain needs no reason."""
_ROUNDS = 3
"""How often the order is changed, at most."""
_WITH_NEXT = "It gains this only once the next one is gone, too."
_FOR_ABOVE = "The one above needs it gone."
_NEGLIGIBLE = 0.001
"""Share of a step that is not divided among changes that gain nothing alone."""
_ABSENT = "Ranks are missing, so it is unknown how much of this is waiting for them."
_OWN_CLOCKS = "Ranks are left on their own clocks, which a replay would correct."


class _Change(NamedTuple):
    """A finding, and the run without it."""

    finding: Finding
    """With what it gains alone."""
    change: Change
    lost_ns: float = 0.0
    """What late ranks lose in a step."""

    @property
    def is_known(self) -> bool:
        """Whether a replay can tell what it gains."""
        return self.finding.gain.ns is not None

    @property
    def is_late(self) -> bool:
        """Whether it is about late ranks."""
        return self.finding.kind in ("straggler", "jitter")

    @property
    def most_ns(self) -> int | None:
        """What the job without the profiler can gain at most; None where that is not measured."""
        evidence = self.finding.evidence
        return evidence.unprofiled_gain_ns if isinstance(evidence, Idle) else None

    @property
    def alone_ns(self) -> int:
        """What it gains alone."""
        return self.finding.gain.ns or 0


class FindingList:
    """The findings of a run, and what was taken out of it for them."""

    def __init__(self, run: Run) -> None:
        self._run, self._taken, self._gained = run, list[Change](), 0
        self._known: dict[Change, GainEstimate] = {}
        self._found: tuple[Finding, ...] | None = None
        self.shown: list[tuple[_Change, int]] = []
        """The changes in their order, and what each gains after those above it."""

    @cached_property
    def _measurer(self) -> Measurer:
        if not self._run.align:
            raise DptraceError(_OWN_CLOCKS)
        return Measurer(replay_of_some(self._run))

    @cached_property
    def _context(self) -> GainContext:
        return GainContext(self._run, self._measurer.replay.model)

    @cached_property
    def _refusal(self) -> Gain | None:
        """Why no gain can be told; None where some can."""
        try:
            return self._measurer.refusal
        except DptraceError as error:
            return Gain(reason=_without_path(error, self._run))

    def found(self, progress: Progress) -> tuple[Finding, ...]:
        """Return the list of :func:`dptrace.replay.findings.findings_of`, computed once."""
        if self._found is None:
            self._found = self._find(progress)
        return self._found

    def _find(self, progress: Progress) -> tuple[Finding, ...]:
        run = self._run
        context, found = FindingContext(run.cross_rank, run.metadata), detected(run.cross_rank, run.metadata)
        if not context.devices or (len(run.timelines) == 1 and not found and not run.on_cpu):
            return ()
        if self._refusal is not None:
            found = (*measured_waiting(context), *found)
            return tuple(sorted(map(self._refused, found), key=lambda finding: -finding.counted_ns))
        late = [self._measured(*one) for one in late_ranks(run, self._measurer)]
        # Once others are gone, ranks that were not recorded would come at other times: what they gain then is unknown.
        least = MIN_SHARE * self._measurer.step_ns
        absent = [self._at_most(self._measured(*one)) for one in absent_ranks(run, self._measurer)]
        late += [one for one in absent if not one.is_known or one.alone_ns >= least]
        waiting = list[Finding]()
        if late and not any(one.is_known for one in late):
            waiting = [replace(one, gain=late[0].finding.gain) for one in measured_waiting(context)]
            late = []
        stalls = shared_stalls(run, self._measurer.replay.model, self._measurer.mean_step_ns)
        late += [self._measured(*stall) for stall in stalls]
        return _with_unknown(self._ordered(late, found, progress), waiting)

    def of_late_ranks(self) -> str:
        """Say how much of the gain without any late rank their findings have, and which has most of the rest.

        What several ranks do at once gains nothing without one of them; a finding on what all hosts do has it.
        """
        self.found(lambda fraction: None)
        least = MIN_SHARE * self._measurer.step_ns if self.shown else 0.0
        shown = sum(ns for one, ns in self.shown if one.is_late)
        rest = (whole := self._measurer.gain_ns([NoStraggler()])) - shown if self.shown else 0
        if rest < max(1.0, least):
            return ""
        both = {
            one.alone_ns + whole - self._measurer.gain_ns([one.change, NoStraggler()]): one.finding
            for one, ns in self.shown
            if not one.is_late and ns >= least
        }
        text = f"Findings on late ranks gain {duration(shown)} of these {duration(whole)} a step"
        if max(both, default=0) < rest / 2:
            return f"{text}; the rest comes only with several of them at once."
        ns, finding = min(rest, max(both)), both[max(both)]
        what = finding.text.partition(",")[0].rstrip(".")
        alone = duration(finding.gain.ns or 0)
        return f"{text}; {duration(ns)} are part of another one, which gains {alone} alone: {what}."

    def detected_in_compute(self) -> tuple[Finding, ...]:
        """Return the findings on compute, without gains; of many ranks, on that of those that are replayed.

        Raises:
            DptraceError: the run was opened with ``figures_only``, or its files can't be read again.
        """
        run = self._run
        of = representatives_of(run) if any(len(timeline.windows) for timeline in run.timelines) else None
        if of is not None:
            run = run.select(ranks=set(run.ranks) & set(of.run.ranks))
        return detected_in_compute(run)

    def of_others(self, found: Sequence[Finding], after: bool) -> tuple[Finding, ...]:
        """Return more findings with what each gains, of the run as it was or after those that the list has."""
        if not found:
            return ()
        if self._refusal is not None:
            return tuple(map(self._refused, found))
        if after:
            self.found(lambda fraction: None)
        own = copy(self)
        own._taken, own._gained = (list(self._taken), self._gained) if after else ([], 0)
        return own._ordered([], found, lambda fraction: None)

    def _refused(self, finding: Finding) -> Finding:
        assert self._refusal is not None
        return replace(finding, gain=self._refusal)

    def _ordered(self, late: Sequence[_Change], found: Sequence[Finding], progress: Progress) -> tuple[Finding, ...]:
        """Take changes out of the run, the greatest gain first; return the findings with what each gains."""
        changes, unknown = [*late], list[Finding]()
        for number, finding in enumerate(found, 1):
            one = self._with_change(finding)
            changes += [one] if isinstance(one, _Change) else []
            unknown += [one] if isinstance(one, Finding) else []
            progress(number / (2 * len(found)))
        least = MIN_SHARE * self._measurer.step_ns
        changes = _parts_first(sorted(changes, key=lambda one: -_owned([one], [one.alone_ns])[0]), least)
        gained, needed = self._cumulative_gains(changes, {}, least), set[int]()
        progress(0.9)
        for _ in range(_ROUNDS):
            needed, again = self._by_gain(changes, gained, least)
            if [*map(id, again)] == [*map(id, changes)] or not (needed or _is_unordered(_owned(changes, gained))):
                break
            most = {id(one): max(one.alone_ns, ns) for one, ns in zip(changes, gained, strict=True)}
            changes, gained = again, self._cumulative_gains(again, most, least)
        self.shown = [*self.shown, *zip(changes, gained, strict=True)]
        self._taken += [one.change for one in changes]
        self._gained += sum(gained)
        latest = max((one.lost_ns for one in late), default=0.0)
        listed = list[Finding]()
        for one, ns in zip(changes, _owned(changes, gained), strict=True):
            if not one.is_late or max(one.alone_ns, ns) >= least or one.lost_ns >= max(1, _HIDDEN * latest):
                finding = self._with_marginal_gain(one, ns, id(one) in needed)
                (listed if finding.gain.ns is not None else unknown).append(finding)
        progress(1)
        first = _needed_below([one for one in listed if not one.is_minor])
        return _with_unknown([*first, *(one for one in listed if one.is_minor)], unknown)

    def _by_gain(
        self, changes: Sequence[_Change], gained: Sequence[int], least: float
    ) -> tuple[set[int], list[_Change]]:
        """Return the ids of what gains nothing itself, but others need, and the changes by what they gained.

        Before what gains only with others come those that it needs, and a part before its whole.
        """
        unmasked = [ns for one, ns in zip(changes, gained, strict=True) if ns >= least and _is_unmasked(one, ns)]
        needed, masked = set[int](), list[tuple[_Change, list[_Change]]]()
        if unmasked:
            needed = {id(changes[number]) for number in self._unmasking(changes, gained, least)}
            masked = self._masked(changes, gained, least)
        pairs = zip(changes, _owned(changes, gained), strict=True)
        # What gains only with others goes before one that gains alone only for notably more: it may need it.
        shown = {id(one): ns / NOTABLY_MORE if _is_unmasked(one, ns) else ns for one, ns in pairs}
        shown |= {one: max(unmasked) / NOTABLY_MORE for one in needed}
        found = sorted(changes, key=lambda one: (-shown[id(one)], id(one) not in needed))
        for one, others in masked:
            last = max(found.index(other) for other in others)
            if found.index(one) < last:
                found.remove(one)
                found.insert(last, one)
        return needed, _parts_first(found, least)

    def _with_change(self, finding: Finding) -> _Change | Finding:
        """Return a finding with what it gains alone, or why that is not known."""
        try:
            change = counterfactual(finding, self._context)
            if isinstance(change, str):
                return replace(finding, gain=Gain(reason=change))
            measured = self._measured(finding, change)
        except DptraceError as error:
            return replace(finding, gain=Gain(reason=_without_path(error, self._context.model.run)))
        return measured if measured.is_known else measured.finding

    def _measured(self, finding: Finding, change: Change, lost_ns: float = 0.0) -> _Change:
        """Measure what a finding gains alone; findings with one change share its replay."""
        if change not in self._known:
            self._known[change] = self._measurer.measure(change)
        estimate = self._known[change]
        gain = estimate.gain
        if isinstance(change, HiddenCollectives) and change.lacks_ranks(self._context.model):
            gain = _at_most(gain, finding)
        if not (lost_ns or gain.reason) and gain.ns is not None and 0 <= gain.ns < _FAR_BELOW * finding.counted_ns:
            hidden, counted = duration(finding.counted_ns - gain.ns), duration(finding.counted_ns)
            text = f"Of {counted} counted, {hidden} are hidden behind other work, not on the critical path"
            gain = replace(gain, reason=f"{text}: without them, {estimate.pace()}.")
        return _Change(replace(finding, gain=gain), change, lost_ns)

    def _at_most(self, one: _Change) -> _Change:
        """Widen the range of a gain without ranks that were not recorded: all that others wait may be for them."""
        most, gain = self._measurer.measure(LevelAbsent(at_most=True)).gain, one.finding.gain
        if gain.high_ns is None or most.high_ns is None:
            return one
        return one._replace(finding=replace(one.finding, gain=replace(gain, high_ns=max(gain.high_ns, most.high_ns))))

    def _delay_ns(self, finding: Finding) -> float:
        """Return how much longer the latest rank of a finding takes in a step; 0 for one that is about no such rank."""
        by_rank = finding.evidence.lost_by_rank_ns if isinstance(finding.evidence, Straggler) else None
        return max((by_rank or {}).values(), default=0) / max(1, self._measurer.steps)

    def _cumulative_gains(self, changes: Sequence[_Change], known: Mapping[int, int], least: float) -> list[int]:
        """Return what each gains once what the list has, and those before it, are gone.

        Args:
            known: by id, what changes gain alone or in another order, where it is known.
        """
        gained, own, count = [0] * len(changes), [number for number, one in enumerate(changes) if one.is_known], 0
        while count < len(own) and max(changes[own[count]].alone_ns, known.get(id(changes[own[count]]), 0)) >= least:
            count += 1
        before = self._gained
        for place, number in enumerate(own[:count]):
            after = self._after(changes, own[: place + 1], before)
            gained[number], before = after - before, after
        if own[count:]:
            self._share(changes, own, count, len(own), (before, self._after(changes, own, before)), gained)
        return gained

    def _share(
        self, changes: Sequence[_Change], own: list[int], low: int, high: int, ends: tuple[int, int], gained: list[int]
    ) -> None:
        """Divide what changes that gain little alone gain together: in halves, while there is something to divide."""
        before, after = ends
        if high - low == 1 or after - before < _NEGLIGIBLE * self._measurer.step_ns:
            gained[own[low]] = after - before
            return
        middle = (low + high) // 2
        between = min(after, self._after(changes, own[:middle], before))
        self._share(changes, own, low, middle, (before, between), gained)
        self._share(changes, own, middle, high, (between, after), gained)

    def _after(self, changes: Sequence[_Change], numbers: Sequence[int], least: int = 0) -> int:
        """Return what the list and some changes gain together, at least *least*."""
        taken = [*self._taken, *(changes[number].change for number in numbers)]
        if len(taken) == 1:
            return max(least, changes[numbers[0]].alone_ns)
        return max(least, self._measurer.gain_ns(list(dict.fromkeys(taken))))

    def _unmasking(self, changes: Sequence[_Change], gained: Sequence[int], least: float) -> set[int]:
        """Return which gain nothing themselves, but one of those that gain only with others needs them."""
        last = max(n for n, ns in enumerate(gained) if ns >= least and _is_unmasked(changes[n], ns))
        kept = [number for number in range(last + 1) if changes[number].is_known]
        small = [number for number in kept if max(gained[number], changes[number].alone_ns) < least]
        found, total = set[int](), self._gained + sum(gained[: last + 1])
        if total - self._after(changes, [number for number in kept if number not in small]) < least:
            return found
        for number in reversed(small):
            others = [other for other in kept if other != number]
            if total - self._after(changes, others) >= least:
                found.add(number)
            else:
                kept = others
        return found

    def _masked(
        self, changes: Sequence[_Change], gained: Sequence[int], least: float
    ) -> list[tuple[_Change, list[_Change]]]:
        """Return late ranks that gain only once later ones are gone, with these, which have a gain of their own."""
        found = list[tuple[_Change, list[_Change]]]()
        for number, (one, ns) in enumerate(zip(changes, gained, strict=True)):
            if not one.is_late or ns < least or not _is_unmasked(one, ns):
                continue
            before = [other for other in range(number) if changes[other].is_known]
            masking = [other for other in before if changes[other].is_late and changes[other].alone_ns >= least]
            own = []
            for other in masking:
                # What all hosts do has the time of the later rank, too.
                part = changes[other].finding
                rest = [n for n in before if n != other and not is_part(part, changes[n].finding)]
                if self._after(changes, [*rest, number]) - self._after(changes, rest) < least:
                    own.append(changes[other])
            found += [(one, own)] if own else []
        return found

    def _with_marginal_gain(self, one: _Change, ns: int, is_needed: bool) -> Finding:
        """Return a finding with what it gains after those above it, and why that is far less."""
        gain, finding = _at_most_own(one), one.finding
        if gain.ns is None or gain.high_ns is None:
            return finding
        reason, once = gain.reason, bool(not gain.low_ns and finding.evidence.once)
        then = f"it gains no more than {duration(gain.ns)}"
        if ns > gain.high_ns and (may_hide := self._measurer.as_late(then)):
            if isinstance(one.change, LevelAbsent):
                may_hide = f"Can't tell: it may be late only where it waits for those above; then {then}."
            # What others wait for was measured; else what it gains alone is all that is known.
            if finding.share >= MIN_SHARE:
                return replace(finding, gain=Gain(gain.change, reason=may_hide, doubts=gain.doubts))
            ns, reason = gain.ns, may_hide
        if one.lost_ns and max(gain.ns, ns) <= one.lost_ns / 2:
            lost = duration(round(one.lost_ns))
            reason = f"Of {lost} a step that is lost, the rest is hidden: other ranks or work are as late."
        elif self._run.has_selected_steps and ns < _MOSTLY * (delay := self._delay_ns(finding)):
            reason = (
                f"Of the {duration(delay)} that it takes longer, the rest is hidden in these steps, where others are "
                "late, too, or lies in the steps around them."
            )
        elif ns < _FAR_BELOW * gain.ns:
            left = duration(ns) if ns else "nothing"
            reason = f"{reason} Findings above have part of the same time: after them it gains {left}.".lstrip()
        elif not reason and one.lost_ns and not gain.low_ns and ns <= gain.high_ns:
            noise = f"{NOISE}: without it, these steps gain 0 to {duration(gain.high_ns)} each."
            reason = "" if once else noise
        if once:
            reason = f"{reason} Seen in one step: can't tell if it comes again.".lstrip()
        share, high = ns / self._measurer.mean_step_ns, max(ns, gain.high_ns)
        gain = replace(gain, marginal_ns=ns, share=share, high_ns=high, reason=reason)
        return replace(finding, gain=gain, needed=is_needed)


def _owned(changes: Sequence[_Change], gained: Sequence[int]) -> list[int]:
    """Return gains without what is the profiler's: together, host time has no more than steps without it leave."""
    left, own = min((one.most_ns for one in changes if one.most_ns is not None), default=0), list[int]()
    for one, ns in zip(changes, gained, strict=True):
        own.append(ns if one.most_ns is None else min(ns, left))
        left -= max(0, own[-1]) if one.most_ns is not None else 0
    return own


def _at_most_own(one: _Change) -> Gain:
    """Return what a finding gains alone, without what is the profiler's."""
    gain, most = one.finding.gain, one.most_ns
    if most is None or gain.ns is None or gain.low_ns is None or gain.high_ns is None or gain.ns <= most:
        return gain
    median = None if gain.median_step_ns is None else min(gain.median_step_ns, most)
    reason = f"{duration(gain.ns - most)} more are the profiler's. {gain.reason}".rstrip()
    return replace(gain, ns=most, low_ns=0, high_ns=most, median_step_ns=median, reason=reason)


def _is_unordered(gained: Sequence[int]) -> bool:
    """Return whether a change gained notably more than one before it."""
    return any(after > NOTABLY_MORE * before for before, after in pairwise(gained))


def _is_unmasked(one: _Change, ns: int) -> bool:
    """Return whether a change gains far more once others are made than alone."""
    return ns > 2 * one.alone_ns


def _parts_first(changes: list[_Change], least: float) -> list[_Change]:
    """Put parts that gain something before the whole: a late rank's host time before that of all hosts."""
    found = list(changes)
    for whole in changes:
        place = found.index(whole)
        parts = [one for one in found[place:] if one.alone_ns >= least and is_part(one.finding, whole.finding)]
        rest = [one for one in found[place:] if not any(one is part for part in parts)]
        found[place:] = [*parts, *rest]
    return found


def _needed_below(listed: Sequence[Finding]) -> list[Finding]:
    """Put what gains nothing itself below the finding that gains only with it."""
    found, held = list[Finding](), list[Finding]()
    for finding in listed:
        if _only_needed(finding):
            held.append(_with_reason(finding, _FOR_ABOVE))
        else:
            found += [_with_reason(finding, _WITH_NEXT), *held] if held else [finding]
            held = []
    return found + held


def _with_reason(finding: Finding, reason: str) -> Finding:
    return replace(finding, gain=replace(finding.gain, reason=f"{reason} {finding.gain.reason}".rstrip()))


def _only_needed(finding: Finding) -> bool:
    return finding.needed and finding.figure[1] < MIN_SHARE


def _with_unknown(listed: Sequence[Finding], unknown: Sequence[Finding]) -> tuple[Finding, ...]:
    """Put those of which no gain is known after those with one, and before what gains little: a count is no gain."""
    counted = sorted(unknown, key=lambda one: -one.counted_ns)
    shown = [one for one in listed if not one.is_minor]
    return *shown, *counted, *(one for one in listed if one.is_minor)


def _without_path(error: DptraceError, run: Run) -> str:
    """Return an error's message without the run's path, which all findings share."""
    text = str(error).removeprefix(f"{run.path}: ")
    return text[:1].upper() + text[1:]


def _at_most(gain: Gain, finding: Finding) -> Gain:
    """Keep a gain that may be waiting for missing ranks only where it is small: then the transfers gain no more."""
    if gain.ns is None or gain.ns < _FAR_BELOW * finding.counted_ns:
        return gain
    return Gain(gain.change, reason=_ABSENT, doubts=gain.doubts)

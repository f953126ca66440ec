"""Findings with what a step would gain without each: one replay for each counterfactual, on one graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from dptrace.analysis.findings.finding import MIN_SHARE, Finding, Gain, by_gain
from dptrace.core.units import duration
from dptrace.errors import DptraceError
from dptrace.replay.gains.context import GainContext
from dptrace.replay.gains.counterfactual import counterfactual
from dptrace.replay.gains.device_time import HiddenCollectives, NoStreamGaps, NoStreamWaits, ShorterTasks
from dptrace.replay.gains.host_time import HostTime
from dptrace.replay.gains.measure import GainEstimate, Measurer
from dptrace.replay.gains.stragglers import straggler_findings
from dptrace.replay.simulation.changes import Change
from dptrace.replay.transforms.stragglers import WithoutExcesses
from dptrace.run.run import Run

__all__ = ["find_gains", "with_gains"]

_FAR_BELOW = 0.5
"""Share of a finding's cost below which a gain is explained."""
_ABSENT = "Ranks are missing, so it is unknown how much of this is waiting for them."


Progress = Callable[[float], None]
"""Called with the fraction that is done."""


def find_gains(
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
    known = {rank for finding, _ in gained for rank in finding.evidence["ranks"]}
    others = [finding for finding in found if finding.kind != "straggler" or _is_unlevel(finding, known)]
    for number, finding in enumerate(others, 1):
        gained.append(gains.of(finding))
        progress((1 + number / len(others)) / 2)
    progress(1)
    return gains.after_those_above(gained)


def _is_unlevel(finding: Finding, known: set[int]) -> bool:
    """Return whether ranks are late only since their recordings begin at another point of the program."""
    return finding.evidence["cause"] == "unlevel_start" and not known & set(finding.evidence["ranks"])


def with_gains(run: Run, progress: Progress = lambda fraction: None) -> Run:
    """Return a run whose findings have what each would gain."""
    gained = dataclasses.replace(run, gains=True)
    # Both are computed only once; a run is frozen, so its cached properties are set in its dictionary.
    vars(gained)["cross_rank"] = replace(run.cross_rank, findings=find_gains(run, run.cross_rank.findings, progress))
    if "replay" in vars(run):
        vars(gained)["replay"] = run.replay
    return gained


_Gained = tuple[Finding, "Change | None"]
"""A finding with its gain, and the change that it is the gain of."""


class _Gains:
    """The counterfactuals of a run; findings with the same one share its replay."""

    def __init__(self, run: Run) -> None:
        self._run, self._context = run, GainContext(run, run.replay.model)
        self._measurer = Measurer(run.replay)
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
            if gain is not None and gain.ns is not None and notable and change is not None and _keeps_tasks(change):
                taken.append(change)
                after = self._measurer.gain_ns(*taken)
                if finding.kind != "straggler":
                    gain = _after(gain, min(gain.ns, max(0, after - before)), found)
                before = after
            if gain is not None and gain.shown_ns is not None:
                gain = replace(gain, share=gain.shown_ns / self._measurer.mean_step_ns)
            found.append(replace(finding, gain=gain))
        return tuple(found)


def _keeps_tasks(change: Change) -> bool:
    """Return whether a change only shortens tasks and edges, so that others can be made with it."""
    return isinstance(
        change, WithoutExcesses | HostTime | ShorterTasks | HiddenCollectives | NoStreamGaps | NoStreamWaits
    )


def _after(gain: Gain, ns: int, above: Sequence[Finding]) -> Gain:
    """Add to a gain what is left of it after the findings above, and say so where that is far less."""
    if not above or gain.ns is None or ns >= _FAR_BELOW * gain.ns:
        return replace(gain, next_ns=ns)
    text = f"After the findings above it would gain {duration(ns) if ns else 'nothing'}: the time is the same."
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

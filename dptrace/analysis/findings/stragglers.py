"""What findings on late ranks say: who waits for whom, how long as measured, why, and what to do.

The delays themselves, with their causes, are what a replay takes out of the run (``replay/gains.py``). Where it can't
tell, :func:`measured_waiting` says who waits for whom, without a cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dptrace.analysis.cross_rank.across import AcrossRanks
from dptrace.analysis.findings.evidence import Straggler
from dptrace.analysis.findings.finding import MIN_SHARE, Finding, FindingContext, allocator_advice
from dptrace.analysis.per_gpu.causes import DELAYS, NO_CORE
from dptrace.core.units import duration, plural, ranks_text
from dptrace.timeline.steps import WHOLE_TRACE

# How long the others waited for some ranks.


class LateArrivals(NamedTuple):
    """The collectives at which some ranks were late."""

    waited_ns: float
    """Exposed waiting for them, summed over all GPUs and steps."""
    number: int
    """Of late arrivals."""
    instance: int | None
    """The collective at which one was latest, by index into the matches; None for none."""
    late_ns: int
    """How late it was there."""
    waiting: tuple[int, ...]
    """The ranks that waited for them."""


def late_arrivals(across: AcrossRanks, ranks: Collection[int], steps: Collection[str]) -> LateArrivals:
    """Return how late some ranks were in some steps, and how long the others waited for them."""
    late, matches = across.stragglers, across.matches
    rank = np.array([rank for rank, _ in matches.device_ids], np.int64)
    chosen = np.isin(rank[late.device], [*ranks]) & np.isin(matches.step.astype(str)[late.instance], [*steps])
    if not chosen.any():
        return LateArrivals(0.0, 0, None, 0, ())
    early = np.diff(matches.first) - np.bincount(late.instance, minlength=len(matches))
    own = late.take(chosen)
    latest = int(own.late_ns.argmax())
    instance, count = int(own.instance[latest]), len(rank)
    # Each member of these collectives as one number, instance and device, without those who were late there.
    members = (matches.instance * count + matches.device)[np.isin(matches.instance, own.instance)]
    waiting = np.unique(rank[np.setdiff1d(members, late.instance * count + late.device) % count])
    waited_ns = float((own.waited_ns * early[own.instance]).sum())
    return LateArrivals(waited_ns, len(own), instance, int(own.late_ns[latest]), tuple(waiting.tolist()))


_NAMED = 0.2
"""Share of the waiting for one rank from which another is named beside it."""


def measured_waiting(context: FindingContext) -> list[Finding]:
    """Return a finding on the ranks that others wait for, without a cause; none where that is little.

    It is for a run whose replay can't tell what these ranks do longer.
    """
    across, steps = context.across, {name for timeline in context.timelines for name in timeline.windows.names}
    late, matches = across.stragglers, across.matches
    by_rank = Counter[int]()
    for device, instance, ns in zip(late.device.tolist(), late.instance.tolist(), late.waited_ns.tolist(), strict=True):
        if matches.step[instance] in steps:
            by_rank[matches.device_ids[device][0]] += ns
    ranks = sorted(rank for rank, ns in by_rank.items() if ns > _NAMED * max(by_rank.values()))
    if not ranks:
        return []
    found = late_arrivals(across, ranks, steps)
    assert found.instance is not None
    step, kind = str(matches.step[found.instance]), str(matches.kind[found.instance])
    where = "" if step == WHOLE_TRACE else f" in {step}"
    text = f"{waiting_text(found.waiting, ranks)}: up to {duration(found.late_ns)} late at an {kind}{where}."
    evidence = Straggler(
        rank=matches.device_ids[_latest(across, found.instance)][0],
        step=step,
        collective=kind,
        cause="unknown",
        what="",
        where="",
        instance=found.instance,
        late_ns=found.late_ns,
        count=found.number,
        ranks=ranks,
        waiting_ranks=[*found.waiting],
    )
    finding = context.finding("straggler", text, DELAYS["unknown"].advice, found.waited_ns, evidence)
    return [finding] if finding.share >= MIN_SHARE else []


def _latest(across: AcrossRanks, instance: int) -> int:
    return int(across.stragglers.latest(len(across.matches))[instance])


# Why they were late.

_SMALL = 0.3
"""Share of what a rank loses below which a part that can be merged is small."""


class Lost(NamedTuple):
    """Time that a rank lost, and why."""

    owner: int
    """The rank."""
    cause: str
    what: str
    where: str
    ns: int


def root_causes(delays: Sequence[Lost]) -> list[tuple[object, ...]]:
    """Return what identifies the root cause of each delay, its cause first.

    It is the same call in the same place, on any rank, or a host that is slower throughout."""
    by_owner, by_label = Counter[int](), Counter[tuple[object, ...]]()
    for delay in delays:
        by_owner[delay.owner] += delay.ns
        by_label[delay[:-1]] += delay.ns
    keys: list[tuple[object, ...]] = []
    for delay in delays:
        small = by_label[delay[:-1]] < _SMALL * by_owner[delay.owner]
        if delay.cause == "slower_host" or (DELAYS[delay.cause].merged and small):
            keys.append(("slower_host", delay.owner))
        elif delay.cause == NO_CORE:
            keys.append((NO_CORE,))
        elif delay.cause in ("compute", "memory_copies"):
            keys.append((delay.cause, delay.owner))
        else:
            keys.append((delay.cause,) if delay.cause == "allocator" else (delay.cause, delay.what, delay.where))
    return keys


def straggler_advice(cause: str, metadata: Mapping[str, Any], what: str = "") -> str:
    """Return what to do about a rank that is late for a cause.

    Args:
        metadata: the contents of ``run.json``.
        what: the call in which it loses the most.
    """
    return allocator_advice(metadata, what) if cause == "allocator" else DELAYS[cause].advice


def waiting_text(waiting: Sequence[int], late: Sequence[int]) -> str:
    """Return who waits for whom; a rank that waits and is late, in turns or on several GPUs, is not named twice.

    >>> waiting_text([0, 1, 3], [2]), waiting_text([], [1])
    ('Ranks 0, 1, 3 wait for rank 2', 'Rank 1 takes longer than the others')
    >>> waiting_text([0, 1], [1, 2]), waiting_text([0], [0])
    ('Rank 0 waits for ranks 1, 2', 'A GPU of rank 0 waits for another')
    >>> waiting_text([0, 1], [0, 1])
    'Ranks 0, 1 take turns keeping each other waiting'
    """
    only = sorted(set(waiting) - set(late))
    if only:
        return f"{ranks_text(only, capital=True)} {'waits' if len(only) == 1 else 'wait'} for {ranks_text(late)}"
    if len(late) > 1:
        return f"{ranks_text(late, capital=True)} take turns keeping each other waiting"
    if waiting:
        return f"A GPU of {ranks_text(late)} waits for another"
    return f"{ranks_text(late, capital=True)} takes longer than the others"


def straggler_reason(
    cause: str, what: str, where: str, late: Sequence[int], on_cpu: bool, may_lack_core: bool = False
) -> str:
    """Describe what the late ranks did that the others did not.

    Args:
        may_lack_core: whether they may have had no core instead, since the recording does not tell.
    """
    its = "its" if len(late) == 1 else "their"
    lacks_core = may_lack_core and (on_cpu or cause != "compute")  # a GPU's kernels need none
    called = f" “{what}”" if what else ""
    inside = f" in “{where}”" if where and where != what else ""
    return DELAYS[cause].reason.format(
        its=its,
        what=what,
        called=called,
        inside=inside,
        operator=called or " short operators",
        kernel=called and f" ({'operator' if on_cpu else 'kernel'}{called})",
        copy=called and f" ({called.strip()})",
        most=inside and f", most{inside}",
        instead=" (or has no core: the recording doesn't tell)" if lacks_core else "",
        they_have="it has no core" if len(late) == 1 else "they have no cores",
    )


def steps_text(steps: Sequence[str]) -> str:
    """Return in how many steps, or in which one."""
    if list(steps) == [WHOLE_TRACE]:
        return f"in the {WHOLE_TRACE}"
    return f"in {steps[0]} alone" if len(steps) == 1 else f"in {plural(len(steps), 'step')}"

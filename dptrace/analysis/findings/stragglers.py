"""Findings on ranks that keep the others waiting: one for each root cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dptrace.analysis.cross_rank.stragglers import Delay
from dptrace.analysis.findings.cores import NO_CORE, Loss, lacks_core, may_lack_core
from dptrace.analysis.findings.finding import (
    PYTHON_ADVICE,
    SYNCHRONIZING_ADVICE,
    UNRECORDED_ADVICE,
    Claim,
    Finding,
    FindingContext,
    allocator_advice,
)
from dptrace.analysis.findings.host import HOST_CAUSES
from dptrace.core.intervals import Int64, covered
from dptrace.core.units import duration, plural, ranks_text
from dptrace.timeline.model import HostCause
from dptrace.timeline.steps import WHOLE_TRACE

IDLE_CAUSE = {
    "data_loading": "data_loading_ns",
    "allocator": "allocator_ns",
    "synchronizing": "synchronizing_ns",
    "host_bound": "host_bound_ns",
    "python": "host_bound_ns",
    "slower_host": "host_bound_ns",
    NO_CORE: "host_bound_ns",
    "nothing_recorded": "host_bound_ns",
}
"""The cause of idle time on the late rank itself that goes with the cause of its delay."""
_HOST_BOUND = {
    "host_bound": (HostCause.OPERATOR,),
    "python": (HostCause.PYTHON,),
    "slower_host": (HostCause.OPERATOR, HostCause.PYTHON),
    NO_CORE: (HostCause.OPERATOR, HostCause.PYTHON, HostCause.NOTHING_RECORDED),
    "nothing_recorded": (HostCause.NOTHING_RECORDED,),
}
"""What the host did, where idle time that goes with a delay is host-bound; others are as in HOST_CAUSES."""
_MERGED = ("host_bound", "python", "synchronizing")
"""Causes whose small parts on one rank together mean that its host is slower."""
_SMALL = 0.3
"""Share of a rank's cost below which such a part is small."""
_NO_FINDING = ("passed_on", "before_recording")
"""The rank waits for another itself, which has its own finding; work from before the recording is no finding."""
_ADVICE = {
    "compute": "Compare its work (batch, sequence lengths, experts), clock rate and temperature with the others'.",
    "memory_copies": "Find what it copies in this time; pin the memory and copy on a separate stream.",
    "data_loading": "Raise its DataLoader's num_workers or prefetch_factor, and check its storage.",
    "synchronizing": SYNCHRONIZING_ADVICE,
    "host_bound": "Find what else runs in this operator on that rank, and compare the load of its CPU.",
    "python": PYTHON_ADVICE,
    "slower_host": "Compare that host's CPU frequency, pinning and background load with the others'.",
    NO_CORE: "Pin processes to cores, give each rank no more threads than its share (OMP_NUM_THREADS), and look for "
    "other load on the machine.",
    "nothing_recorded": UNRECORDED_ADVICE,
    "unlevel_start": "The step is not at fault: leave the first step out (--steps), or record after a barrier.",
    "uneven_end": "Compare the message sizes and the links of that rank in this collective.",
    "unknown": "Check its timeline before the collective.",
}


@dataclass
class DelayGroup:
    """The delays with one root cause."""

    cause: str
    delays: list[Delay]
    gpu_ns: float = 0.0
    """By how much they lengthen the steps, summed over all GPUs."""

    @property
    def largest(self) -> Delay:
        return max(self.delays, key=lambda delay: delay.cost_ns)


def stragglers(context: FindingContext) -> list[Finding | Claim]:
    """Return one finding per root cause; the idle time of the late ranks themselves that goes with it is part of it."""
    found: list[Finding | Claim] = []
    gpus = len(context.devices)
    for group in grouped(_without_core(context, context.across.stragglers.delays)):
        if any(context.device_of_match[delay.device] < 0 for delay in group.delays):
            continue  # the late rank's own recording lacks something: it is not in the mean step
        # The early ranks wait while the late one computes, copies or idles: without it, the step is shorter on all.
        lost = sum(delay.cost_ns * min(delay.group_size, gpus) for delay in group.delays)
        group.gpu_ns = lost - _outside_steps(context, group)
        if group.cause not in _NO_FINDING and group.gpu_ns > 0:
            found += [claim for delay in group.delays if (claim := _claim(context, delay))]
            found.append(_finding(context, group))
    return found


def _without_core(context: FindingContext, delays: Sequence[Delay]) -> list[Delay]:
    """Return delays; those of a rank that had no core have that cause."""
    matches, waits = context.across.matches, context.core_waits
    losses = [
        Loss(
            matches.device_ids[delay.device][0],
            str(matches.step[delay.collectives[0]]),
            delay.cause,
            round(delay.cost_ns),
        )
        for delay in delays
    ]
    lacking = lacks_core(losses, waits, context.on_cpu)
    return [
        replace(delay, cause=NO_CORE, what="", where="") if lacks else delay
        for delay, lacks in zip(delays, lacking, strict=True)
    ]


def _outside_steps(context: FindingContext, group: DelayGroup) -> int:
    """Return how much of a group's delays does not fit into the late ranks' own steps before they arrived.

    The step is a mean over the same GPUs: what a GPU lost before its first step does not lengthen its steps, and what
    it lost once can keep several process groups waiting.
    """
    matches, outside = context.across.matches, 0
    for device in {delay.device for delay in group.delays}:
        members, number = matches.device == device, int(context.device_of_match[device])
        arrival = dict(zip(matches.instance[members].tolist(), matches.start_ns[members].tolist(), strict=True))
        # Of some of the steps, a delay may have begun at a collective before them.
        own = [
            delay
            for delay in group.delays
            if delay.device == device and delay.cost_ns > 0 and delay.collectives[0] in arrival
        ]
        if number < 0 or not own:
            continue
        bounds = context.devices[number].timeline.windows.bounds
        until = np.array([arrival[delay.collectives[0]] for delay in own], np.int64)
        order = np.argsort(until, kind="stable")
        lost = np.cumsum([round(own[i].cost_ns) for i in order])
        room = np.clip(until[order], bounds[0], bounds[-1]) - bounds[0]
        outside += max(0, int((lost - room).max()))
    return outside


class Lost(NamedTuple):
    """Time that a rank lost, and why."""

    owner: int
    """The rank, or its device."""
    cause: str
    what: str
    where: str
    ns: int


def root_causes(delays: Sequence[Lost], by_kernel: bool = False) -> list[tuple[object, ...]]:
    """Return what identifies the root cause of each delay, its cause first.

    It is the same call in the same place, on any rank, or a host that is slower throughout.

    Args:
        by_kernel: whether compute and copies of a rank are apart by what is slow.
    """
    by_owner, by_label = Counter[int](), Counter[tuple[object, ...]]()
    for delay in delays:
        by_owner[delay.owner] += delay.ns
        by_label[delay[:-1]] += delay.ns
    keys: list[tuple[object, ...]] = []
    for delay in delays:
        small = by_label[delay[:-1]] < _SMALL * by_owner[delay.owner]
        if delay.cause == "slower_host" or (delay.cause in _MERGED and small):
            keys.append(("slower_host", delay.owner))
        elif delay.cause == NO_CORE:
            keys.append((NO_CORE,))
        elif delay.cause in ("compute", "memory_copies"):
            keys.append((delay.cause, delay.owner, delay.what if by_kernel else ""))
        elif delay.cause in ("unlevel_start", "uneven_end", "unknown"):
            keys.append((delay.cause, delay.owner))
        else:
            keys.append((delay.cause,) if delay.cause == "allocator" else (delay.cause, delay.what, delay.where))
    return keys


def grouped(delays: Sequence[Delay]) -> list[DelayGroup]:
    """Return the delays by root cause; each finding is about one of these groups."""
    lost = [Lost(delay.device, delay.cause, delay.what, delay.where, round(delay.cost_ns)) for delay in delays]
    groups: dict[tuple[object, ...], DelayGroup] = {}
    for key, delay in zip(root_causes(lost, by_kernel=True), delays, strict=True):
        groups.setdefault(key, DelayGroup(str(key[0]), [])).delays.append(delay)
    return list(groups.values())


def _claim(context: FindingContext, delay: Delay) -> Claim | None:
    """Claim the idle time of a late rank in its own delay, so that the findings on idle time leave it out."""
    number = int(context.device_of_match[delay.device])
    if delay.cause not in IDLE_CAUSE or delay.cost_ns <= 0 or number < 0 or not delay.end_ns:
        return None
    cause = IDLE_CAUSE[delay.cause]
    idle = context.host_gaps(number, _HOST_BOUND.get(delay.cause) or HOST_CAUSES[cause])
    within = int(np.diff(covered(idle, np.array([delay.start_ns, delay.end_ns], np.int64)))[0])
    # Gaps too short to be kept are claimed in the step of the delay.
    names, step = context.devices[number].split.names, str(context.across.matches.step[delay.collectives[0]])
    return Claim(
        number,
        cause,
        min(within, delay.late_ns),
        names.index(step) if step in names else None,
        round(delay.cost_ns),
        delay.start_ns,
        delay.end_ns,
    )


def _finding(context: FindingContext, group: DelayGroup) -> Finding:
    matches, largest = context.across.matches, group.largest
    instance = largest.collectives[0]
    late = sorted({matches.device_ids[delay.device][0] for delay in group.delays if delay.cost_ns > 0})
    waiting = [matches.device_ids[device][0] for device in largest.waiting]
    steps = _cost_by_step(context, group)
    lost = Counter[tuple[int, str]]()
    for delay in group.delays:
        lost[matches.device_ids[delay.device][0], str(matches.step[delay.collectives[0]])] += round(delay.cost_ns)
    unknown = may_lack_core(lost, context.core_waits, context.on_cpu)
    reason = straggler_reason(group.cause, largest.what, largest.where, late, context.on_cpu, unknown)
    text = f"{waiting_text(waiting, late)}: {reason}, {_how_late(group, steps)}."
    worst = max(steps, key=lambda step: steps[step], default=str(matches.step[instance]))
    evidence: dict[str, Any] = {"rank": matches.device_ids[largest.device][0], "step": worst or None}
    evidence |= {
        "collective": matches.kind[instance],
        "cause": group.cause,
        "what": largest.what,
        "where": largest.where,
    }
    evidence |= {"instance": instance, "late_ns": largest.late_ns, "count": len(reached(group))}
    evidence |= {"ranks": late, "waiting_ranks": waiting, "cost_by_step_ns": steps}
    advice = straggler_advice(group.cause, context.metadata, largest.what)
    return context.finding("straggler", text, advice, group.gpu_ns, evidence)


def reached(group: DelayGroup) -> set[int]:
    """Return the collectives whose waits a group costs, by index into the matches."""
    return {instance for delay in group.delays for instance in delay.collectives if delay.cost_ns > 0}


def _cost_by_step(context: FindingContext, group: DelayGroup) -> dict[str, int]:
    """Return what the group cost in each step, mean of the ranks that waited, in ns."""
    cost: dict[str, int] = {}
    for delay in group.delays:
        step = str(context.across.matches.step[delay.collectives[0]])
        cost[step] = cost.get(step, 0) + round(delay.cost_ns)
    return {step: ns for step, ns in sorted(cost.items()) if ns > 0}


def straggler_advice(cause: str, metadata: Mapping[str, Any], what: str = "") -> str:
    """Return what to do about a rank that is late for a cause.

    Args:
        metadata: the contents of ``run.json``.
        what: the call in which it loses the most.
    """
    return allocator_advice(metadata, what) if cause == "allocator" else _ADVICE[cause]


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
    called = f" “{what}”" if what else ""
    inside = f" in “{where}”" if where and where != what else ""
    instead = " or has no core: the recording doesn't tell which" if may_lack_core else ""
    return {
        "compute": f"{its} compute takes longer"
        + (f" ({'operator' if on_cpu else 'kernel'}{called})" if called else ""),
        "memory_copies": f"{its} memory copies take longer" + (f" ({called.strip()})" if called else ""),
        "data_loading": f"{its} host waits for the DataLoader",
        "allocator": f"{its} host allocates memory ({what}){inside}",
        "synchronizing": f"{its} host blocks in{called}{inside}",
        "host_bound": f"{its} host is in{called or ' short operators'}{inside}",
        "python": f"{its} host runs Python code in{called} outside operators{instead}",
        "slower_host": f"{its} host runs the same operators more slowly" + (f", most{inside}" if inside else ""),
        NO_CORE: "it has no core to run on" if len(late) == 1 else "they have no cores to run on",
        "nothing_recorded": f"{its} host does nothing that the trace records{instead}",
        "unlevel_start": f"{its} recording begins at a later point of the program",
        "uneven_end": f"{its} part of an earlier{' ' + what if what else ' collective'} ends later",
        "unknown": "the trace does not show why",
    }[cause]


def _how_late(group: DelayGroup, steps: Mapping[str, int]) -> str:
    """Describe how much later than the others, and in which steps; one delay has no median."""
    late: Int64 = np.array([delay.late_ns for delay in group.delays if delay.cost_ns > 0], np.int64)
    most = duration(int(late.max()))
    where = steps_text(list(steps))
    if len(late) == 1:
        return f"{most} later {where}"
    if group.cause == "slower_host":
        return f"{plural(len(reached(group)), 'late arrival')} {where}"
    return f"up to {most} later {where}"


def steps_text(steps: Sequence[str]) -> str:
    """Return in how many steps, or in which one."""
    if list(steps) == [WHOLE_TRACE]:
        return f"in the {WHOLE_TRACE}"
    return f"in {steps[0]} alone" if len(steps) == 1 else f"in {plural(len(steps), 'step')}"

"""Report on a matching: which collectives are complete, what is missing, and on which rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.matching.calls import NO_STEP, Calls, unique_pairs
from dptrace.core.intervals import Int64
from dptrace.core.units import plural
from dptrace.timeline.model import UNKNOWN_GROUP

__all__ = ["MatchingReport", "instance_sizes", "report_unmatched"]


class MatchingReport(NamedTuple):
    """What a matching left over."""

    unmatched: tuple[NDArray[np.int32], ...]
    """For each device, its communication intervals without a counterpart on another rank that should have one."""
    run_notes: tuple[str, ...]
    device_notes: tuple[tuple[int, str], ...]
    """Index of the device, and a sentence."""


def instance_sizes(calls: Calls, order: Int64, first: Int64, world_size: int) -> Int64:
    """Return the number of ranks in each instance; the recorded ones if the size is unknown.

    Args:
        order, first: the calls of each instance in turn, and the index of each instance's first.
        world_size: the size of groups of unknown size; 0 if unknown.
    """
    if not len(order):
        return np.empty(0, np.int64)
    recorded = _devices_by_group(calls)
    by_group = np.array(
        [group.size or (0 if group.name else world_size) or recorded[i] for i, group in enumerate(calls.groups)],
        np.int64,
    )
    wanted = np.where(calls.endpoints[order, 0] >= 0, 2, by_group[calls.group[order]])
    size: Int64 = np.maximum.reduceat(wanted, first[:-1])
    return size


def _devices_by_group(calls: Calls) -> Counter[int]:
    """Count the devices that have calls in each group."""
    return Counter(unique_pairs(calls.group, calls.device)[0].tolist())


def report_unmatched(
    calls: Calls, order: Int64, first: Int64, time: Int64, ranks: Sequence[int], world_size: int
) -> MatchingReport:
    """Report what could not be matched, and the unmatched calls of each device.

    Args:
        order, first: as for :func:`instance_sizes`.
        time: when each call ended, on a clock common to matched devices, in ns.
        ranks: the rank of each device.
    """
    size = np.repeat(np.diff(first), np.diff(first))
    single = order[(size == 1) & _has_recorded_partner(calls, ranks)[order]]
    alone = by_device(calls.device[single], len(ranks))
    unmatched = tuple(calls.index[np.sort(single[at])] for at in alone)
    run_notes = (*_absent(calls, order, first, ranks, world_size), *_ambiguous(calls))
    notes: list[tuple[int, str]] = []
    calls_of, taken = by_device(calls.device, len(ranks)), by_device(calls.device[order], len(ranks))
    number = np.repeat(np.arange(len(first) - 1), np.diff(first))
    step_index = np.maximum.reduceat(calls.step_index[order], first[:-1]) if len(order) else np.empty(0, np.int64)
    for device, rank in enumerate(ranks):
        found = _unmatched(calls, single[alone[device]], rank)
        if len(calls_of[device]):
            in_instance = np.zeros(len(first) - 1, np.bool_)
            in_instance[number[taken[device]]] = True
            found += _lacking(
                calls, order[first[:-1]], np.diff(first), step_index, time, calls_of[device], in_instance, rank
            )
        notes += [(device, note) for note in found]
    return MatchingReport(unmatched, run_notes, tuple(notes))


def by_device(device: NDArray[Any], count: int) -> list[NDArray[np.intp]]:
    """Return the ascending indices of each of *count* devices; a single sort, fast for thousands of devices."""
    order = np.argsort(device, kind="stable")
    return np.split(order, np.searchsorted(device[order], np.arange(1, count))) if count else []


def _has_recorded_partner(calls: Calls, ranks: Sequence[int]) -> NDArray[np.bool_]:
    """Return whether each call's group, or the other end of the message, is recorded on another device."""
    recorded = _devices_by_group(calls)
    several = np.array([recorded[i] > 1 for i in range(len(calls.groups))], np.bool_)
    by_group = several[calls.group] if len(calls) else np.empty(0, np.bool_)
    both = np.isin(calls.endpoints, np.array(ranks)).all(axis=1)
    return np.where(calls.endpoints[:, 0] >= 0, both, by_group)


def _listed(values: Iterable[int]) -> str:
    shown = sorted(values)
    text = ", ".join(map(str, shown[:8])) + (f" and {len(shown) - 8:,} more" if len(shown) > 8 else "")
    return f"rank {text}" if len(shown) == 1 else f"ranks {text}"


def _absent(calls: Calls, order: Int64, first: Int64, ranks: Sequence[int], world_size: int) -> list[str]:
    """Note how many collectives lack ranks that have no trace.

    The run's own notes name the missing ranks of the job; only others, which a group lists beyond them, are named here.
    """
    recorded, lacking, count, uncertain = set(ranks), set[int](), 0, 0
    devices = _devices_by_group(calls)
    instances = Counter(calls.group[order[first[:-1]]].tolist())
    for i, group in enumerate(calls.groups):
        known = group.ranks and len(group.ranks) == group.size
        listed = group.ranks if known else () if group.name else tuple(range(world_size))
        if absent := set(listed) - recorded:
            lacking |= absent
            count += instances[i]
        elif not listed and devices[i] < group.size:
            uncertain += instances[i]
    if not count + uncertain:
        return []
    unnamed = lacking - set(range(world_size))
    missing = f" ({_listed(unnamed)})" if unnamed else ""
    which = f" Which ranks take part in {uncertain:,} of them is not recorded." if uncertain else ""
    total = count + uncertain
    incomplete = f"{plural(total, 'collective')} {'is' if total == 1 else 'are'} incomplete"
    return [f"{incomplete}, because ranks not in this run{missing} take part: wait and transfer are unknown.{which}"]


def _ambiguous(calls: Calls) -> list[str]:
    """Note the calls that cannot be matched because the traces do not record who takes part."""
    found = Counter(calls.group[calls.unmatchable].tolist())
    devices = _devices_by_group(calls)
    unnamed = [i for i in found if calls.groups[i].name == UNKNOWN_GROUP]
    shared = [i for i in found if not calls.groups[i].ranks and 0 < calls.groups[i].size < devices[i]]
    shared = [i for i in shared if i not in unnamed]
    blind = sum(count for i, count in found.items() if i not in (*shared, *unnamed))
    notes = [f"{blind:,} sends and receives do not record their peer rank and are not matched."] if blind else []
    if unnamed:
        notes.append(
            "The ranks use several process groups, but gloo's events do not name them: "
            f"{sum(found[i] for i in unnamed):,} calls are not matched. "
            "Record again with dptrace, which records the groups."
        )
    return notes + [
        f"Group {calls.groups[i].name!r} has {calls.groups[i].size} ranks but is used on more, and the traces do not "
        f"list its ranks: its {found[i]:,} calls are not matched."
        for i in shared
    ]


def _unmatched(calls: Calls, own: Int64, rank: int) -> list[str]:
    own = own[~calls.unmatchable[own]]
    if not len(own):
        return []
    outside = int((calls.step_index[own] == NO_STEP).sum())
    why = f", {outside:,} of them launched outside the recorded steps" if outside else ""
    word = "has" if len(own) == 1 else "have"
    return [f"Rank {rank}: {plural(len(own), 'collective')} {word} no counterpart on any other rank{why}."]


def _lacking(
    calls: Calls,
    representative: Int64,
    size: Int64,
    label: Int64,
    time: Int64,
    device_calls: NDArray[np.intp],
    in_instance: NDArray[np.bool_],
    rank: int,
) -> list[str]:
    """Note the collectives of its groups that a device lacks although its capture was running.

    Args:
        representative: a representative call of each instance; *size*: its number of calls; *label*: its step.
        device_calls: the device's calls; *in_instance*: the instances they belong to.
    """
    device = int(calls.device[device_calls[0]])
    step = np.append(calls.device_has_step[:, device], False)[label]
    during = (time[representative] > time[device_calls].min()) & (time[representative] < time[device_calls].max())
    chosen = (size > 1) & ~in_instance & step & during & (calls.endpoints[representative, 0] < 0)
    chosen &= np.isin(calls.family[representative], calls.family[device_calls])
    missing = np.flatnonzero(chosen)
    if not len(missing):
        return []
    example = representative[missing[0]]
    which = f"{calls.collectives[example].kind} in {calls.step_names[label[missing[0]]]}"
    first_of = which if len(missing) == 1 else f"the first: {which}"
    return [
        f"Rank {rank} lacks {plural(len(missing), 'collective')} that others recorded during its capture ({first_of})."
    ]

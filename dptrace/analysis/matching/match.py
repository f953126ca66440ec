"""Which calls on which ranks are one collective.

Calls with the same signature (kind, bytes, dtype, process group) launched in the same step are the same collectives on
all ranks, in order; so are calls with the same sequence number in a group, if the trace has these. If the ranks have
different numbers of calls, because captures begin and end at different places or a call is missing, calls are matched
by their end times, on clocks aligned by the certain matches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.matching.calls import NO_STEP, Calls, Group, calls_of, unique_pairs
from dptrace.analysis.matching.pairing import pair
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import Int64, members, unique
from dptrace.core.units import plural
from dptrace.model.collectives import POINT_TO_POINT
from dptrace.readers.trace import UNKNOWN_GROUP
from dptrace.timeline.model import Collective

# Report on a matching: which collectives are complete, what is missing, and on which rank.


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
    return np.maximum.reduceat(wanted, first[:-1])


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
    alone = members(calls.device[single], len(ranks))
    unmatched = tuple(calls.index[np.sort(single[at])] for at in alone)
    run_notes = (*_absent(calls, order, first, ranks, world_size), *_ambiguous(calls))
    notes: list[tuple[int, str]] = []
    calls_of, taken = members(calls.device, len(ranks)), members(calls.device[order], len(ranks))
    number = np.repeat(np.arange(len(first) - 1), np.diff(first))
    step_index = np.maximum.reduceat(calls.step_index[order], first[:-1]) if len(order) else np.empty(0, np.int64)
    shared = _Shared.of(calls, order[first[:-1]], np.diff(first), step_index)
    for device, rank in enumerate(ranks):
        found = _unmatched(calls, single[alone[device]], rank)
        if len(calls_of[device]):
            found += _lacking(calls, shared, time, calls_of[device], number[taken[device]], rank)
        notes += [(device, note) for note in found]
    return MatchingReport(unmatched, run_notes, tuple(notes))


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


class _Shared(NamedTuple):
    """The collectives that several devices recorded, sorted by family, so that those of a device are found at once."""

    instance: Int64
    family: NDArray[np.int32]
    representative: Int64
    """A call of each."""
    step: NDArray[np.int32]

    @classmethod
    def of(cls, calls: Calls, representative: Int64, size: Int64, step: NDArray[Any]) -> _Shared:
        """Choose the collectives of at least two calls.

        Args:
            representative: a call of each instance; *size*: its number of calls; *step*: its step.
        """
        shared = np.flatnonzero((size > 1) & (calls.endpoints[representative, 0] < 0))
        shared = shared[np.argsort(calls.family[representative[shared]], kind="stable")]
        chosen = representative[shared]
        return cls(shared, calls.family[chosen], chosen, step[shared])

    def of_families(self, families: NDArray[np.int32]) -> Int64:
        """Return the places of the collectives of some families, in the order of their instances."""
        low, high = (np.searchsorted(self.family, families, side) for side in ("left", "right"))
        places = np.concatenate([np.arange(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)])
        return places[np.argsort(self.instance[places])]


def _lacking(
    calls: Calls, shared: _Shared, time: Int64, device_calls: NDArray[np.intp], instances: Int64, rank: int
) -> list[str]:
    """Note the collectives of its groups that a device lacks although its capture was running.

    Args:
        device_calls: the device's calls; *instances*: those that they belong to.
    """
    device = int(calls.device[device_calls[0]])
    places = shared.of_families(unique(calls.family[device_calls]))
    at = time[shared.representative[places]]
    step = np.append(calls.device_has_step[:, device], False)[shared.step[places]]
    during = (at > time[device_calls].min()) & (at < time[device_calls].max())
    missing = places[step & during & ~np.isin(shared.instance[places], instances)]
    if not len(missing):
        return []
    example = shared.representative[missing[0]]
    which = f"{calls.collectives[example].kind} in {calls.step_names[shared.step[missing[0]]]}"
    first_of = which if len(missing) == 1 else f"the first: {which}"
    return [
        f"Rank {rank} lacks {plural(len(missing), 'collective')} that others recorded during its capture ({first_of})."
    ]


Value = TypeVar("Value", bound=np.generic)


class Matches(msgspec.Struct, frozen=True, dict=True):
    """One row per collective instance, sorted by time, and one row per member, sorted by instance."""

    device_ids: tuple[tuple[int, int], ...]
    """Rank and GPU of each device, in the order of the input."""
    collectives: tuple[Collective, ...]
    """Kind, bytes, dtype, group, seq and label of each instance, from its best described member."""
    kind: NDArray[np.object_]
    bytes: Int64
    group: NDArray[np.int32]
    """Index into ``groups``."""
    groups: tuple[Group, ...]
    step: NDArray[np.object_]
    """Name of the step that launched it (``ProfilerStep#5``); empty if no member was launched in a step."""
    phase: NDArray[np.uint8]
    synchronizing: NDArray[np.bool_]
    """Whether all ranks leave it at about the same time, by its kernel or else its kind."""
    size: NDArray[np.int32]
    """Number of ranks that take part, as far as known."""
    complete: NDArray[np.bool_]
    """Whether all its ranks are recorded."""
    first: Int64
    """Index of each instance's first member, followed by the number of members."""
    device: NDArray[np.int32]
    """Of each member: index of its device."""
    index: NDArray[np.int32]
    """Of each member: index among its device's communication intervals."""
    start_ns: Int64
    end_ns: Int64
    """Start and end of each member, on its own clock."""
    unmatched: tuple[NDArray[np.int32], ...]
    """For each device, its communication intervals without a counterpart on another rank that should have one."""
    run_notes: tuple[str, ...]
    """What could not be matched or compared in the whole run, one sentence each."""
    device_notes: tuple[tuple[int, str], ...]
    """What could not be matched of one device: its index and a sentence."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be matched, one sentence each."""
        return (*self.run_notes, *(note for _, note in self.device_notes))

    def __len__(self) -> int:
        return len(self.collectives)

    @cached_property
    def instance(self) -> Int64:
        """Instance of each member."""
        return np.repeat(np.arange(len(self)), np.diff(self.first))

    @cached_property
    def of_device(self) -> list[Int64]:
        """The members of each device, ascending."""
        return members(self.device, len(self.device_ids))

    @cached_property
    def messages(self) -> NDArray[np.bool_]:
        """Whether it is a message whose two sides are recorded, so that each waits for the other."""
        found: NDArray[np.bool_] = np.isin(self.kind.astype(str), list(POINT_TO_POINT)) & (np.diff(self.first) == 2)
        return found

    @cached_property
    def member(self) -> NDArray[np.int32]:
        """Instances × devices: index among the device's communication intervals; -1 if the device has none."""
        return self.to_table(self.index, -1)

    def to_table(self, values: NDArray[Value], missing: float) -> NDArray[Value]:
        """Arrange values of members as a table of instances × devices."""
        table = np.full((len(self), len(self.device_ids)), missing, values.dtype)
        table[self.instance, self.device] = values
        return table


def match(devices: Sequence[DeviceFigures], world_size: int = 0) -> Matches:
    """Match the collectives of a run's devices.

    Args:
        devices: the figures of each GPU; communication intervals suffice.
        world_size: number of ranks of the job, for groups of unknown size; 0 if unknown.
    """
    calls = calls_of(devices)
    row, time = pair(calls)
    order = np.lexsort((calls.device, row))
    row, first = np.unique(row[order], return_index=True)
    first = np.append(first, len(order)).astype(np.int64)
    # Sort instances by the end of their earliest member, on the reference's clock.
    by_time = np.argsort(np.minimum.reduceat(time[order], first[:-1]), kind="stable") if len(row) else row
    size = np.diff(first)[by_time]
    bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(size)))
    within = np.arange(len(order)) - np.repeat(bounds[:-1], size)
    order = order[np.repeat(first[:-1][by_time], size) + within]
    return _matches(devices, calls, order, bounds, time, world_size)


def _matches(
    devices: Sequence[DeviceFigures], calls: Calls, order: Int64, first: Int64, time: Int64, world_size: int
) -> Matches:
    """Describe the instances; *order* holds the calls of each instance in turn."""
    instance = np.repeat(np.arange(len(first) - 1), np.diff(first))
    best_described = _best_described_member(calls, order, instance)
    collectives = [calls.collectives[i] for i in best_described.tolist()]
    wanted = np.maximum(instance_sizes(calls, order, first, world_size), 1)
    kinds, size = _across(calls, order, first, collectives)
    # Without group metadata, gloo's annotation has the bytes of one rank's share of an all-gather.
    share = (kinds == "all_gather") & np.array([d.timeline.on_cpu for d in devices], np.bool_)[
        calls.device[best_described]
    ]
    share &= np.array([not collective.group_size for collective in collectives], np.bool_)
    size = np.where(share, size * wanted, size)
    labels = np.array([*calls.step_names, ""], object)
    places = tuple((device.timeline.rank, device.timeline.device) for device in devices)
    report = report_unmatched(calls, order, first, time, [rank for rank, _ in places], world_size)
    return Matches(
        device_ids=places,
        collectives=tuple(collectives),
        kind=kinds,
        bytes=size,
        group=calls.group[best_described],
        groups=calls.groups,
        step=labels[_max_per_instance(calls.step_index, order, first)],
        phase=calls.phase[best_described],
        synchronizing=np.logical_and.reduceat(calls.synchronizing[order], first[:-1])
        if len(collectives)
        else np.empty(0, np.bool_),
        size=np.maximum(wanted, np.diff(first)).astype(np.int32),
        complete=(np.diff(first) >= wanted) & _sizes_known(calls, order, first),
        first=first,
        device=calls.device[order],
        index=calls.index[order],
        start_ns=calls.start_ns[order],
        end_ns=calls.end_ns[order],
        unmatched=report.unmatched,
        run_notes=report.run_notes,
        device_notes=report.device_notes,
    )


def _sizes_known(calls: Calls, order: Int64, first: Int64) -> NDArray[np.bool_]:
    """Return whether the members of each instance agree on its size, as those of different jobs may not.

    A single member must say that its group has one rank. Several whose size is not recorded are taken for all.
    """
    if len(first) == 1:
        return np.empty(0, np.bool_)
    size = np.array([group.size for group in calls.groups], np.int64)[calls.group[order]]
    largest = np.maximum.reduceat(size, first[:-1])
    smallest = np.minimum.reduceat(np.where(size > 0, size, np.iinfo(np.int64).max), first[:-1])
    known: NDArray[np.bool_] = np.where(np.diff(first) > 1, (largest == 0) | (smallest == largest), largest == 1)
    return known


def _best_described_member(calls: Calls, order: Int64, instance: Int64) -> Int64:
    """Return the best described member of each instance."""
    ranked = order[np.lexsort((np.arange(len(order)), ~calls.described[order], instance))]
    return ranked[np.unique(np.sort(instance), return_index=True)[1]]


def _max_per_instance(values: NDArray[np.int32], order: Int64, first: Int64) -> NDArray[np.int32]:
    return np.maximum.reduceat(values[order], first[:-1]) if len(first) > 1 else np.empty(0, np.int32)


def _across(
    calls: Calls, order: Int64, first: Int64, collectives: list[Collective]
) -> tuple[NDArray[np.object_], Int64]:
    """Return kind and bytes of each instance: a matched send and receive are send_recv; the largest bytes count."""
    kinds = np.array([c.kind for c in collectives], object)
    members = calls.bytes[order]
    size = np.maximum.reduceat(members, first[:-1]) if len(collectives) else members
    several = np.diff(first) > 1
    kinds[several & np.isin(kinds, ("send", "recv"))] = "send_recv"
    return kinds, size

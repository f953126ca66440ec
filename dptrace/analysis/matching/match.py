"""Which calls on which ranks are one collective.

Calls with the same signature (kind, bytes, dtype, process group) launched in the same step are the same collectives on
all ranks, in order; so are calls with the same sequence number in a group, if the trace has these. If the ranks have
different numbers of calls, because captures begin and end at different places or a call is missing, calls are matched
by their end times, on clocks aligned by the certain matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.matching.calls import Calls, Group, calls_of
from dptrace.analysis.matching.pairing import pair
from dptrace.analysis.matching.unmatched import instance_sizes, report_unmatched
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import Int64
from dptrace.timeline.model import Collective

__all__ = ["Group", "Matches", "match"]

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

"""The measured memory of a run's ranks: peaks, what was alive at them, and calls of the allocator, as rows.

A run's figures do not need memory events, so that its files are read again for them, one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.memory.usage import (
    KIND_LABELS,
    MEMORY,
    NOWHERE,
    DeviceMemory,
    Group,
    MemoryKind,
    MemoryUse,
    Peak,
    alive_blocks,
    groups,
    kind_groups,
    levels_within,
    peak_among,
    phase_peaks,
    total_bytes,
)
from dptrace.core.intervals import Int64
from dptrace.core.units import plural, sanitize
from dptrace.errors import DptraceError
from dptrace.run.run import Run, whole_run
from dptrace.timeline.model import Phase

NO_MEMORY = (
    "This run has no memory events: record it with dptrace record --memory, or with profile_memory=True of "
    "torch.profiler."
)
_MOST_BLOCKS = 20
"""Blocks, operators and modules that JSON lists for each device."""
BY = ("kind", "operator", "module")


class DeviceReport(msgspec.Struct, frozen=True):
    """The memory of one device as one rank uses it, and its peak in the selected steps."""

    rank: int
    use: MemoryUse
    device: DeviceMemory
    steps: NDArray[np.bool_] | None
    """Which of the rank's steps are selected; None for all, and what is outside of them."""
    levels: Int64
    peak: Peak

    def name(self, index: int) -> str:
        """Return the name of an operator or module; empty for NOWHERE."""
        return self.use.names[index] if index >= 0 else ""

    def step_name(self, index: int) -> str | None:
        """Return the name of a step; None outside all steps."""
        return self.use.steps[index] if index >= 0 else None

    def groups(self, by: str) -> list[tuple[str, Group]]:
        """Return the blocks by ``kind``, ``operator`` or ``module``, with the names."""
        if by == "kind":
            found = kind_groups(self.device, self.levels, self.peak)
            return [(KIND_LABELS[MemoryKind(one.key)], one) for one in found]
        column = self.device.origins.operator if by == "operator" else self.device.origins.module
        born = self.device.blocks.born
        keys = np.where(born == NOWHERE, NOWHERE, column[born])
        return [(self.name(one.key), one) for one in groups(self.device, keys, self.levels, self.peak)]


def memory_uses(run: Run) -> dict[int, MemoryUse]:
    """Return the memory of each rank whose file can be read again.

    Raises:
        DptraceError: the run was opened with ``figures_only``.
    """
    if run.figures_only:
        raise DptraceError(f"{run.path}: opened with figures_only, which drops its memory. Leave figures_only out.")
    uses = {timeline.rank: timeline for timeline in run.timelines}
    found = ((rank, run.read_again(timeline, MEMORY)) for rank, timeline in uses.items())
    return {rank: use for rank, use in found if use is not None}


def _recordings(uses: dict[int, MemoryUse]) -> Iterator[tuple[int, MemoryUse]]:
    """Yield each rank's memory, window by window."""
    return ((rank, part) for rank, whole in uses.items() for part in whole.parts)


def device_reports(run: Run) -> tuple[DeviceReport, ...]:
    """Return the devices of each rank, the GPUs first; without those that the selected steps do not touch.

    Where a rank has several windows, there is a report for each device and window, in the order of time.
    """
    reports = []
    for rank, use in _recordings(memory_uses(run)):
        steps = _selected(run, rank, use)
        for device in use.devices:
            levels = levels_within(device, steps)
            if len(levels):
                reports.append(DeviceReport(rank, use, device, steps, levels, peak_among(device, levels)))
    return tuple(reports)


def by_device(reports: Iterable[DeviceReport]) -> list[list[DeviceReport]]:
    """Return the reports of each device: of several windows, the one with the highest peak first."""
    found = defaultdict[tuple[int, int], list[DeviceReport]](list)
    for report in reports:
        found[report.rank, report.device.device].append(report)
    return [sorted(own, key=lambda report: -report.peak.bytes) for own in found.values()]


def at_peaks(reports: Iterable[DeviceReport]) -> tuple[DeviceReport, ...]:
    """Return a report for each device: of several windows, that of the one with the highest peak."""
    return tuple(own[0] for own in by_device(reports))


def _selected(run: Run, rank: int, use: MemoryUse) -> NDArray[np.bool_] | None:
    """Return which steps of a rank the run still has; None if it has all."""
    names, all_names = (
        {name for t in part.timelines if t.rank == rank for name in t.windows.names} for part in (run, whole_run(run))
    )
    return None if names == all_names else np.array([name in names for name in use.steps], np.bool_)


def memory_notes(run: Run) -> list[str]:
    """Return what limits the figures of memory, a sentence each."""
    uses = memory_uses(run)
    unread = sorted({timeline.rank for timeline in run.timelines} - uses.keys())
    notes = [f"Rank {rank}: its file can't be read again, so its memory is unknown." for rank in unread]
    if uses and not any(map(len, uses.values())):
        notes.append(NO_MEMORY)
    for rank, use in _recordings(uses):
        if use.unreadable:
            notes.append(f"Rank {rank}: {plural(use.unreadable, 'memory event')} left out that could not be read.")
        notes += [
            f"Rank {rank}, {device.label}: {plural(device.gaps, 'total')} of allocated bytes do not continue the one "
            "before: memory events are missing from the file, and blocks may seem to live too long."
            for device in use.devices
            if device.gaps
        ]
    return notes


def unallocated_bytes(report: DeviceReport) -> int:
    """Return the most that the allocator held without using it: cached blocks and what fragmentation leaves."""
    reserved = np.append(report.device.events.reserved[:1], report.device.events.reserved)[report.levels]
    return max(int((reserved - total_bytes(report.device)[report.levels]).max()), 0) if reserved.any() else 0


def peak_rows(reports: tuple[DeviceReport, ...]) -> Iterator[dict[str, Any]]:
    """Yield the peak of each step, and of each phase in it."""
    for report in reports:
        for one in phase_peaks(report.device):
            if report.steps is None or report.steps[one.step]:
                yield {
                    "rank": report.rank,
                    "device": report.device.device,
                    "step": report.use.steps[one.step],
                    "phase": "all" if one.phase is None else one.phase.name.lower(),
                    "peak_bytes": one.bytes,
                    "reserved_bytes": one.reserved_bytes,
                }


def usage_rows(reports: tuple[DeviceReport, ...], by: str) -> Iterator[dict[str, Any]]:
    """Yield what was allocated by kind, operator or module; of several windows, in the one with the highest peak."""
    for report in at_peaks(reports):
        for name, one in report.groups(by):
            yield {"rank": report.rank, "device": report.device.device, **_usage(name, one)}


def _usage(name: str, one: Group) -> dict[str, Any]:
    return {
        "name": name or None,
        "peak_bytes": one.peak_bytes,
        "blocks": one.alive,
        "allocated_bytes": one.allocated_bytes,
        "allocations": one.allocations,
    }


def block_rows(reports: tuple[DeviceReport, ...], most: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the blocks that are alive at each device's peak, the largest first; of several windows, at the highest.

    Args:
        most: number of blocks of each device; None yields all.
    """
    for report in at_peaks(reports):
        device = report.device
        for block in alive_blocks(device, report.peak.level)[:most].tolist():
            yield {"rank": report.rank, "device": device.device, **_block(report, block)}


def _block(report: DeviceReport, block: int) -> dict[str, Any]:
    device, origins = report.device, report.device.origins
    born = int(device.blocks.born[block])
    known = born != NOWHERE
    return {
        "bytes": int(device.blocks.bytes[block]),
        "kind": KIND_LABELS[MemoryKind(int(device.kind[block]))],
        "operator": report.name(int(origins.operator[born])) or None if known else None,
        "module": report.name(int(origins.module[born])) or None if known else None,
        "step": report.step_name(int(origins.step[born])) if known else None,
        "phase": Phase(int(origins.phase[born])).name.lower() if known else None,
        "born_ns": int(device.events.time_ns[born]) if known else None,
    }


def call_rows(reports: tuple[DeviceReport, ...]) -> Iterator[dict[str, Any]]:
    """Yield how often each rank called the runtime's allocator in the selected steps, by the call's name."""
    found = dict[tuple[int, str], dict[str, int]]()
    for report in {id(report.use): report for report in reports}.values():
        calls, use = report.use.calls, report.use
        chosen = np.ones(len(calls), np.bool_)
        if report.steps is not None:
            chosen = (calls.step >= 0) & np.append(report.steps, False)[np.maximum(calls.step, NOWHERE)]
        for name in np.unique(calls.name[chosen]).tolist():
            own = chosen & (calls.name == name)
            row = found.setdefault((report.rank, use.names[name]), dict.fromkeys(("count", "in_steps", "total_ns"), 0))
            row["count"] += int(own.sum())
            row["in_steps"] += int((own & (calls.step >= 0)).sum())
            row["total_ns"] += int((calls.end_ns[own] - calls.start_ns[own]).sum())
    yield from ({"rank": rank, "name": name, **row} for (rank, name), row in found.items())


def with_memory(run: Run, figures: dict[str, Any]) -> dict[str, Any]:
    """Return a run's figures as plain data, with the memory of each rank and device."""
    notes = [*figures["notes"], *memory_notes(run)]
    return figures | {"notes": notes, "memory": [_device_dict(own) for own in by_device(device_reports(run))]}


def _device_dict(own: Sequence[DeviceReport]) -> dict[str, Any]:
    report, in_order = own[0], tuple(sorted(own, key=lambda one: int(one.device.events.time_ns[0])))
    device, peak, one = report.device, report.peak, (report,)

    def rest(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in row.items() if key not in ("rank", "device")} for row in rows]

    return {
        "rank": report.rank,
        "device": device.device,
        "counts_from_recording": device.on_cpu,
        "events": sum(len(each.device) for each in own),
        "baseline_bytes": device.baseline_bytes,
        "freed_before_recording_bytes": device.freed_preexisting_bytes,
        "peak": {
            "bytes": peak.bytes,
            "reserved_bytes": peak.reserved_bytes,
            "at_ns": peak.at_ns,
            "step": report.step_name(peak.step),
            "phase": peak.phase.name.lower(),
        },
        "unallocated_bytes": unallocated_bytes(report),
        "steps": rest(peak_rows(in_order)),
        "kinds": [_usage(name, group) for name, group in report.groups("kind")],
        "operators": [_usage(sanitize(name), group) for name, group in report.groups("operator")[:_MOST_BLOCKS]],
        "modules": [_usage(sanitize(name), group) for name, group in report.groups("module")[:_MOST_BLOCKS]],
        "blocks": rest(block_rows(one, _MOST_BLOCKS)),
        "allocator_calls": rest(call_rows(in_order)),
        "out_of_memory": sum(int((each.use.failed.device == device.device).sum()) for each in own),
    }

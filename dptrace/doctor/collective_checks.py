"""Checks of what ranks do together: collectives, their metadata, whether they match, and the clocks they imply."""

from __future__ import annotations

import numpy as np

from dptrace.core.units import duration, plural, share
from dptrace.doctor.verdict import Level, RecordedRun, Verdict
from dptrace.timeline.model import UNKNOWN, Kind, Timeline

__all__ = ["check_clocks", "check_collectives", "check_launch_clock", "check_matching", "check_metadata"]

_APART_NS = 1_000_000
"""Clocks of one machine are never this far apart: Kineto puts all times on the system's clock."""
_EARLY_NS, _TOO_EARLY_NS = 5_000, 1_000_000
"""A kernel that starts this much before the call that launched it shows clocks that do not fit."""
_FEW = 0.01
_FEW_MATCH = 0.5


def check_collectives(recorded: RecordedRun) -> Verdict:
    """Check that each rank's trace contains collectives."""
    without = [timeline.rank for timeline in recorded.timelines() if not timeline.collectives]
    if without:
        return Verdict(
            "collectives",
            "wrong",
            f"rank {without[0]} shows no collective, though it trained with others. "
            + (
                "Its NCCL kernels have names that dptrace does not know, or were not recorded: report it with the kept "
                "folder"
                if recorded.on_gpus
                else "This torch does not record gloo's work: update torch"
            ),
        )
    count = min((len(timeline.collectives) for timeline in recorded.timelines()), default=0)
    return Verdict("collectives", "ok", f"{count:,} on each rank" if count else "none recorded")


def check_metadata(recorded: RecordedRun) -> Verdict:
    """Check that collectives carry their message size and, with NCCL, their group and its ranks."""
    calls = [collective for timeline in recorded.timelines() for collective in timeline.collectives]
    if not calls:
        return Verdict("metadata", "ok", "no collective to describe")
    lacking = {"message sizes": sum(not call.bytes for call in calls)}
    if recorded.on_gpus:
        lacking["process groups"] = sum(not call.group_size for call in calls)
        lacking["the groups' ranks"] = sum(not call.ranks for call in calls)
    missing = {what: count for what, count in lacking.items() if count}
    if not missing:
        what = "message sizes, process groups and their ranks" if recorded.on_gpus else "message sizes"
        return Verdict("metadata", "ok", what)
    which = ", ".join(f"{what} of {count:,} of {len(calls):,} collectives" for what, count in missing.items())
    return Verdict(
        "metadata",
        "wrong" if len(calls) in missing.values() else "warning",
        f"the trace lacks {which}, so bandwidth {'and groups are' if recorded.on_gpus else 'is'} unknown for them. "
        "torch 2.4 and later write them (as arguments of record_param_comms): update torch",
    )


def check_matching(recorded: RecordedRun) -> Verdict:
    """Check that the ranks' collectives can be matched with each other."""
    matches = recorded.run.cross_rank.matches
    if not len(matches):
        return Verdict(
            "matching", "wrong", "no collective of a rank matches one of another rank; see collectives above"
        )
    complete = float(np.mean(matches.complete))
    if complete == 1:
        return Verdict("matching", "ok", f"{plural(len(matches), 'collective')}, each found on all of its ranks")
    level: Level = "wrong" if complete < _FEW_MATCH else "warning"
    notes = " ".join(recorded.run.cross_rank.notes)
    return Verdict(
        "matching", level, f"{share(1 - complete)} of the collectives lack a rank. {notes}".strip().rstrip(".")
    )


def check_clocks(recorded: RecordedRun) -> Verdict:
    """Check that the ranks' clocks can be compared, are plausible, and leave no transfer negative."""
    run = recorded.run
    clocks, rows = run.cross_rank.clocks, run.cross_rank.clock_rows()
    if clocks.misfit.any():
        return Verdict("clocks", "wrong", " ".join(clocks.notes).rstrip("."))
    unknown = [row["rank"] for row in rows if row["offset_ns"] is None]
    if unknown:
        return Verdict(
            "clocks", "wrong", f"no collective connects rank {unknown[0]}'s clock with rank {rows[0]['rank']}'s"
        )
    offset_ns = max((abs(row["offset_ns"]) for row in rows), default=0)
    if offset_ns > _APART_NS:
        return Verdict(
            "clocks",
            "wrong",
            f"the ranks' clocks are up to {duration(offset_ns)} apart, on one machine. Something changes the clock "
            "while processes run, or the profiler converts the GPU's time wrongly: update torch and the driver",
        )
    negative = _negative_transfers(recorded)
    if negative > _FEW:
        return Verdict(
            "clocks",
            "wrong",
            f"{share(negative)} of the collectives end on one rank before another has started them, beyond the clocks' "
            "uncertainty: the times of the ranks cannot be compared",
        )
    uncertainty = max((int(ns) for ns in clocks.uncertainty_ns), default=0)
    return Verdict("clocks", "ok", f"the ranks agree within {duration(max(offset_ns, uncertainty))}")


def _negative_transfers(recorded: RecordedRun) -> float:
    """Return the share of matched collectives that end somewhere before they have started everywhere."""
    matches, clocks = recorded.run.cross_rank.matches, recorded.run.cross_rank.clocks
    checked = matches.complete & matches.synchronizing
    if not checked.any():
        return 0.0
    start, end = matches.start_ns.copy(), matches.end_ns.copy()
    for device in range(len(matches.device_ids)):
        own = matches.device == device
        start[own], end[own] = clocks.align(device, start[own]), clocks.align(device, end[own])
    last_start = np.maximum.reduceat(start, matches.first[:-1])
    first_end = np.minimum.reduceat(end, matches.first[:-1])
    allowed_ns = 2 * int(clocks.uncertainty_ns.max(initial=0))
    return float(np.mean((last_start - first_end)[checked] > allowed_ns))


def check_launch_clock(recorded: RecordedRun) -> Verdict:
    """Check that no kernel starts before the call that launched it: the GPU's clock against the CPU's."""
    worst_ns, worst_share, rank = 0, 0.0, 0
    for timeline in recorded.timelines():
        early_ns = _early_ns(timeline)
        early = float(np.mean(early_ns > _EARLY_NS)) if len(early_ns) else 0.0
        if early > worst_share:
            worst_ns, worst_share, rank = int(early_ns.max()), early, timeline.rank
    if worst_share < _FEW and worst_ns < _TOO_EARLY_NS:
        return Verdict("launches", "ok", "no kernel starts before its launch")
    return Verdict(
        "launches",
        "wrong" if worst_ns >= _TOO_EARLY_NS else "warning",
        f"on rank {rank}, {share(worst_share)} of the kernels start before the call that launched them, up to "
        f"{duration(worst_ns)} before: the GPU's clock is not aligned with the CPU's, so launch latency and the "
        "causes of idle time are off by as much. Update torch and the driver",
    )


def _early_ns(timeline: Timeline) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    known = (timeline.launch_ns != UNKNOWN) & (timeline.kind == Kind.COMPUTE)
    early: np.ndarray[tuple[int], np.dtype[np.int64]] = (timeline.launch_ns - timeline.start_ns)[known]
    return early

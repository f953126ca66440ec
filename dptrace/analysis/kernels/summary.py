"""Tables of device time by kernel, operator, shape, module, annotation or phase, over ranks or for each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from dptrace.analysis.kernels.attribution import Attribution, attribute
from dptrace.analysis.kernels.grouping import NEEDS_CALLS, Groups, group
from dptrace.analysis.kernels.names import kernel_names
from dptrace.analysis.kernels.roofline import CountedFlops
from dptrace.analysis.kernels.shapes import merge_shapes, shape_columns
from dptrace.analysis.kernels.statistics import Pieces, Statistics, join, statistics
from dptrace.core.intervals import Int64, union
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.timeline.model import UNKNOWN, Kind, Phase, Timeline

__all__ = ["KIND_TOTALS", "CallSource", "KernelSummary", "summarize"]

CallSource = Callable[[Timeline], OperatorCalls]
"""Reads the operator calls of a timeline's rank."""
KIND_TOTALS = tuple(f"{kind.name.lower()}_ns" for kind in Kind)
_KEY_COLUMNS = {
    "kernel": ("kernel", "kind"),
    "operator": ("operator", "forward_operator", "phase"),
    "operator-shape": ("operator", "input_dims"),
    "module": ("module",),
    "layer": ("layer",),
    "annotation": ("annotation",),
    "phase": ("phase",),
}
_NO_CALLS = OperatorCalls()


class KernelSummary(msgspec.Struct, frozen=True):
    """A table of device time, and the totals that its rows add up to."""

    by: str
    rows: list[dict[str, Any]]
    """Most time first; their ``total_ns`` add up to ``totals``, by kind."""
    totals: dict[str, dict[str, int]]
    """By kind: ``total_ns``, the sum of durations, and ``busy_ns``, the time with at least one running."""
    wall_ns: int
    """Length of all steps of all devices."""
    ranks: list[int]
    flops: CountedFlops | None = None
    """What the rows by operator and shape add up to; None for other tables, and where no operator has FLOPs."""

    @property
    def outside_steps_ns(self) -> int:
        """The time of the rows that no step launched, which their shares of a step leave out."""
        return sum(row["total_ns"] - row["step_ns"] for row in self.rows)


def summarize(
    timelines: Sequence[Timeline],
    read: CallSource,
    by: str,
    kinds: Sequence[Kind] = tuple(Kind),
    per_rank: bool = False,
    only_steps: bool = False,
    exposed: Sequence[Int64] | None = None,
) -> KernelSummary:
    """Summarize the time of devices.

    Args:
        read: reads the calls of a timeline's rank; needed for the groupings in NEEDS_CALLS.
        by: one of GROUPINGS.
        kinds: kinds of intervals that count.
        per_rank: give each rank rows of its own.
        only_steps: leave out intervals that no step launched.
        exposed: exposed time of each interval of each timeline in ns; without, it is not known and 0.
    """
    numbers: dict[tuple[Any, ...], int] = {}
    outer = _Outermost()
    parts, origin = [], 0
    for place, timeline in enumerate(timelines):
        recorded = read(timeline) if by in NEEDS_CALLS else _NO_CALLS
        attribution = _attribution(timeline, recorded)
        chosen = np.isin(timeline.kind[attribution.interval], np.array(list(kinds), np.uint8))
        chosen &= (timeline.step[attribution.interval] >= 0) | (not only_steps)
        attribution = attribution.filter(chosen)
        groups = merge_shapes(group(by, timeline, recorded, attribution), by)
        keys = [(*key, timeline.rank) if per_rank else key for key in groups.keys]
        code = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
        own = Groups(groups.keys, code[groups.code] if len(code) else groups.code, groups.instance + origin)
        parts.append(_pieces(timeline, place, attribution, own, None if exposed is None else exposed[place]))
        outer.add(recorded, attribution, own.code)
        origin += len(recorded) + len(timeline) + 1
    pieces = join(parts)
    figures = statistics(pieces, len(numbers), len(timelines))
    rows = _rows(by, list(numbers), figures, timelines, per_rank)
    for row, name in zip(rows, outer.names(len(numbers)), strict=True):
        if by in ("operator", "operator-shape"):
            row["outermost_operator"] = name
    if by == "kernel":
        shorts = kernel_names(timelines)
        rows = [{**row, "kernel": shorts[row["kernel"]], "name": row["kernel"]} for row in rows]
    order = np.argsort(-figures.total_ns, kind="stable")
    wall = sum(map(_wall, timelines))
    return KernelSummary(by, [rows[i] for i in order], _totals(timelines, kinds, only_steps), wall, _ranks(timelines))


def _ranks(timelines: Sequence[Timeline]) -> list[int]:
    return list(dict.fromkeys(timeline.rank for timeline in timelines))


def _attribution(timeline: Timeline, recorded: OperatorCalls) -> Attribution:
    if len(recorded):
        return attribute(timeline, recorded)
    none = np.full(len(timeline), -1, np.int64)
    return Attribution(
        np.arange(len(timeline)), timeline.end_ns - timeline.start_ns, *(none,) * 7, recompute=timeline.recompute
    )


def _pieces(timeline: Timeline, place: int, attribution: Attribution, groups: Groups, exposed: Int64 | None) -> Pieces:
    interval = attribution.interval
    start, launch = timeline.start_ns[interval], timeline.launch_ns[interval]
    known = (launch != UNKNOWN) & (not timeline.on_cpu)
    return Pieces(
        group=groups.code,
        instance=groups.instance,
        rank=np.full(len(interval), place),
        ns=attribution.ns,
        start_ns=start,
        end_ns=timeline.end_ns[interval],
        kind=timeline.kind[interval],
        phase=timeline.phase[interval],
        in_step=timeline.step[interval] >= 0,
        delay_ns=np.where(known, np.maximum(start - launch, 0), -1),
        exposed_ns=np.zeros(len(interval), np.int64) if exposed is None else exposed[interval],
        recompute=attribution.recompute,
        nested=np.full(len(interval), timeline.on_cpu),
    )


def _wall(timeline: Timeline) -> int:
    bounds = timeline.windows.bounds
    return int(bounds[-1] - bounds[0]) if len(bounds) else 0


def _totals(timelines: Sequence[Timeline], kinds: Sequence[Kind], only_steps: bool) -> dict[str, dict[str, int]]:
    totals = {}
    for kind in kinds:
        masks = [(t.kind == kind) & ((t.step >= 0) | (not only_steps)) for t in timelines]
        busy = [union(t.start_ns[mask], t.end_ns[mask]) for t, mask in zip(timelines, masks, strict=True)]
        totals[kind.name.lower()] = {
            "total_ns": sum(int((t.end_ns - t.start_ns)[mask].sum()) for t, mask in zip(timelines, masks, strict=True)),
            "busy_ns": sum(int((ends - starts).sum()) for starts, ends in busy),
        }
    return totals


def _rows(
    by: str, keys: list[tuple[Any, ...]], figures: Statistics, timelines: Sequence[Timeline], per_rank: bool
) -> list[dict[str, Any]]:
    walls: dict[int, int] = {}
    for timeline in timelines:
        walls[timeline.rank] = walls.get(timeline.rank, 0) + _wall(timeline)
    ranks = [timeline.rank for timeline in timelines]
    whole = _Whole(figures, keys, per_rank)
    rows = []
    for number, key in enumerate(keys):
        rank = {"rank": key[-1]} if per_rank else {}
        own = key[:-1] if per_rank else key
        wall = walls[key[-1]] if per_rank else sum(walls.values())
        row = rank | dict(zip(_KEY_COLUMNS[by], own, strict=True))
        row |= _figures(figures, number, wall, whole)
        row |= {} if per_rank else _spread(figures, number, ranks)
        rows.append(shape_columns(row) if by == "operator-shape" else row)
    return rows


class _Whole:
    """Compute time, all and by phase, that a row is a share of: its rank's, or that of all."""

    def __init__(self, figures: Statistics, keys: list[tuple[Any, ...]], per_rank: bool) -> None:
        self.rank = [key[-1] if per_rank else None for key in keys]
        self.compute: dict[Any, int] = {}
        self.phase: dict[Any, Any] = {}
        for number, rank in enumerate(self.rank):
            self.compute[rank] = self.compute.get(rank, 0) + int(figures.by_kind[number, Kind.COMPUTE])
            self.phase[rank] = self.phase.get(rank, 0) + figures.by_phase[number]


def _figures(figures: Statistics, number: int, wall: int, whole: _Whole) -> dict[str, Any]:
    by_kind, by_phase, rank = figures.by_kind[number], figures.by_phase[number], whole.rank[number]
    compute, phase = int(by_kind[Kind.COMPUTE]), int(by_phase.argmax())
    ratio = partial(_share, digits=6)
    return {
        "count": int(figures.count[number]),
        "kernels": int(figures.kernels[number]),
        "recompute_count": int(figures.recompute_count[number]),
        "total_ns": int(figures.total_ns[number]),
        "kernel_ns": int(figures.kernel_ns[number]),
        **dict(zip(KIND_TOTALS, map(int, by_kind), strict=True)),
        "exposed_comm_ns": int(figures.exposed_ns[number]),
        "recompute_ns": int(figures.recompute_ns[number]),
        **{f"{one.name.lower()}_ns": int(by_phase[one]) for one in Phase},
        "mean_ns": round(float(figures.mean_ns[number]), 1),
        "p50_ns": round(float(figures.p50_ns[number]), 1),
        "p95_ns": round(float(figures.p95_ns[number]), 1),
        "step_ns": int(figures.step_ns[number]),
        "share_of_step": ratio(int(figures.step_ns[number]), wall),
        "share_of_compute": ratio(compute, whole.compute[rank]),
        "main_phase": Phase(phase).name.lower() if compute else None,
        "share_of_phase": ratio(int(by_phase[phase]), int(whole.phase[rank][phase])) if compute else None,
        "launch_delay_ns": _or_none(figures.delay_ns[number]),
    }


def _share(part: int, whole: int, digits: int) -> float | None:
    return round(part / whole, digits) if whole else None


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 1)


def _spread(figures: Statistics, number: int, ranks: list[int]) -> dict[str, Any]:
    """Return how far the slowest device is above the median one; null for one device."""
    by_rank = figures.by_rank[number]
    middle = float(np.median(by_rank))
    several = len(by_rank) > 1
    return {
        "max_over_median": round(float(by_rank.max()) / middle, 4) if several and middle else None,
        "slowest_rank": ranks[int(by_rank.argmax())] if several else None,
    }


class _Outermost:
    """The outermost operator with most time in each group."""

    def __init__(self) -> None:
        self._ns: dict[tuple[int, str], int] = {}

    def add(self, recorded: OperatorCalls, pieces: Attribution, code: Any) -> None:
        """Add the pieces of one device, whose groups are *code*."""
        known = pieces.outermost >= 0
        if not known.any():
            return
        names = recorded.calls.name[pieces.outermost[known]].astype(np.int64)
        size = len(recorded.calls.names)
        pairs, which = np.unique(code[known] * size + names, return_inverse=True)
        ns = np.zeros(len(pairs), np.int64)
        np.add.at(ns, which.reshape(-1), pieces.ns[known])
        for pair, time in zip(pairs.tolist(), ns.tolist(), strict=True):
            key = (pair // size, recorded.calls.names[pair % size])
            self._ns[key] = self._ns.get(key, 0) + time

    def names(self, groups: int) -> list[str]:
        """Return the name for each group; empty where nothing is known."""
        best: dict[int, tuple[int, str]] = {}
        for (number, name), ns in self._ns.items():
            best[number] = max(best.get(number, (-1, "")), (ns, name))
        return [best.get(number, (0, ""))[1] for number in range(groups)]

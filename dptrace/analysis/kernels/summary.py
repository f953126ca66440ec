"""Tables of device time by kernel, operator, shape, module, annotation or phase, over ranks or for each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.kernels.attribution import Attribution, attribute
from dptrace.analysis.kernels.grouping import NEEDS_CALLS, Groups, group, shape_columns
from dptrace.analysis.kernels.names import kernel_names
from dptrace.core.array_file import let_go
from dptrace.core.columns import Columns
from dptrace.core.gpu import GpuProperties
from dptrace.core.intervals import Int64, sums, union
from dptrace.core.notes import PHASES_NEED
from dptrace.model.gpu_peaks import GpuPeak, gpu_peak, utilization
from dptrace.readers.provenance import read_provenance
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.timeline.model import UNKNOWN, Kind, Phase, Timeline

# Sums, quantiles and shares of groups of device time, over the pieces of all ranks.


KIND_TOTALS = tuple(f"{kind.name.lower()}_ns" for kind in Kind)
_PHASE_TOTALS = tuple(f"{phase.name.lower()}_ns" for phase in Phase)


class Pieces(Columns, frozen=True):
    """Pieces of a device's time, each of one group and call; one entry per piece in each column."""

    group: Int64
    instance: Int64
    """Number of the call, unique among all ranks."""
    ns: Int64
    start_ns: Int64
    end_ns: Int64
    """Start and end; on a CPU, those of the interval around it."""
    kind: NDArray[np.uint8]
    phase: NDArray[np.uint8]
    in_step: NDArray[np.bool_]
    delay_ns: Int64
    """Time from its launch to its start; -1 where unknown."""
    exposed_ns: Int64
    """Time of a collective without compute, each on its own; 0 for what is no collective."""
    recompute: NDArray[np.bool_]
    nested: NDArray[np.bool_]
    """Whether it is a part of an interval, so that times add up and do not overlap."""


_NONE = np.empty(0, np.int64)


class Statistics:
    """The figures of groups, added up rank by rank: of each piece, only what quantiles need is kept."""

    def __init__(self) -> None:
        self._totals = _totals_of(Pieces.empty(), 0, (_NONE, _NONE, _NONE))
        self._by_rank: list[Int64] = []
        self._busy: list[tuple[NDArray[Any], Int64]] = [(_NONE, _NONE)]
        self._delay: list[tuple[NDArray[Any], Int64]] = [(_NONE, _NONE)]

    def add(self, pieces: Pieces, groups: int) -> None:
        """Add the pieces of a device, in the first *groups* groups."""
        calls = owner, busy, _ = _calls(pieces)
        totals = _totals_of(pieces, groups, calls)
        self._by_rank.append(totals["total_ns"].copy())
        for name, values in totals.items():
            values[: len(self._totals[name])] += self._totals[name]
        self._totals = totals
        known = pieces.delay_ns >= 0
        self._busy.append((owner.astype(np.int32), busy))
        self._delay.append((pieces.group[known].astype(np.int32), pieces.delay_ns[known]))

    def columns(self) -> tuple[dict[str, NDArray[Any]], Int64]:
        """Return the figures of all that was added.

        Returns:
            the columns of the table with an entry per group in each, by the names in run/columns.py, and ``total_ns``
            by device: [group, device].
        """
        totals, groups = self._totals, len(self._totals["count"])
        (owner, busy), (waiting, delay) = (
            (np.concatenate([group for group, _ in parts]), np.concatenate([values for _, values in parts]))
            for parts in (self._busy, self._delay)
        )
        middle, late = _quantiles(owner, busy, groups, (0.5, 0.95))
        by_rank = np.zeros((groups, len(self._by_rank)), np.int64)
        for place, own in enumerate(self._by_rank):
            by_rank[: len(own), place] = own
        columns = {
            **{name: values for name, values in totals.items() if name != "step_ns"},
            "mean_ns": totals["kernel_ns"] / np.maximum(totals["count"], 1),
            "p50_ns": middle,
            "p95_ns": late,
            "step_ns": totals["step_ns"],
            "launch_delay_ns": _quantiles(waiting, delay, groups, (0.5,))[0],
        }
        return columns, by_rank


def _totals_of(pieces: Pieces, groups: int, calls: tuple[Int64, Int64, NDArray[Any]]) -> dict[str, Int64]:
    """Return what is added up for each group, given the group, busy time and recomputation of each call."""
    owner, busy, again = calls
    by_kind, by_phase = (np.zeros((groups, size), np.int64) for size in (len(Kind), len(Phase)))
    np.add.at(by_kind, (pieces.group, pieces.kind), pieces.ns)
    compute = pieces.kind == Kind.COMPUTE
    np.add.at(by_phase, (pieces.group[compute], pieces.phase[compute]), pieces.ns[compute])
    return {
        "count": np.bincount(owner, minlength=groups),
        "kernels": np.bincount(pieces.group, minlength=groups),
        "recompute_count": np.bincount(owner[again], minlength=groups),
        "total_ns": sums(pieces.group, pieces.ns, groups),
        "kernel_ns": sums(owner, busy, groups),
        **dict(zip(KIND_TOTALS, by_kind.T.copy(), strict=True)),
        "exposed_comm_ns": sums(pieces.group, pieces.exposed_ns, groups),
        "recompute_ns": sums(pieces.group, pieces.ns * pieces.recompute, groups),
        **dict(zip(_PHASE_TOTALS, by_phase.T.copy(), strict=True)),
        "step_ns": sums(pieces.group, pieces.ns * pieces.in_step, groups),
    }


def _calls(pieces: Pieces) -> tuple[Int64, Int64, NDArray[np.bool_]]:
    """Return the group and the busy time of each call, and whether it is recomputation.

    Within a call, what an earlier piece covers already does not count again. Ends are ranks of times, and calls follow
    each other, so that the reach of one call never covers the next::

        call 0 [0, 10) [5, 12) → 10 + 2    call 1 [3, 4) → 1
    """
    if not len(pieces.group):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_)
    _, call = np.unique(pieces.instance, return_inverse=True)
    # A call in two groups (its pieces in two phases) is one call of each.
    order = np.lexsort((pieces.start_ns, call.reshape(-1), pieces.group))
    call, group = call.reshape(-1)[order], pieces.group[order]
    first = np.append(True, (call[1:] != call[:-1]) | (group[1:] != group[:-1]))
    number = np.cumsum(first) - 1
    start, end, ns = pieces.start_ns[order], pieces.end_ns[order], pieces.ns[order]
    times, rank = np.unique(end, return_inverse=True)
    reach = np.maximum.accumulate(number * len(times) + rank.reshape(-1))
    before = np.append(0, times[reach[:-1] % len(times)])
    covered = np.maximum(end - np.where(first, start, np.maximum(start, before)), 0)
    own = np.where(pieces.nested[order], ns, covered)
    edges = np.flatnonzero(first)
    again = np.logical_or.reduceat(pieces.recompute[order], edges)
    return group[edges], np.add.reduceat(own, edges), again


def _quantiles(group: NDArray[Any], values: Int64, groups: int, wanted: tuple[float, ...]) -> list[NDArray[np.float64]]:
    """Return quantiles of each group's values, interpolated linearly; NaN for a group without values."""
    edges = np.concatenate(([0], np.cumsum(np.bincount(group, minlength=groups))))
    span = int(values.max(initial=0)) + 1
    if int(values.min(initial=0)) >= 0 and groups * span < 1 << 62:
        # One number for group and value: its sort takes a tenth of the time of one by two columns.
        ordered = np.sort(group.astype(np.int64) * span + values) % span
    else:
        ordered = values[np.lexsort((values, group))]
    count, found = np.diff(edges), []
    for quantile in wanted:
        place = edges[:-1] + quantile * np.maximum(count - 1, 0)
        low = np.minimum(np.floor(place).astype(np.int64), max(len(ordered) - 1, 0))
        high = np.minimum(np.ceil(place).astype(np.int64), max(len(ordered) - 1, 0))
        value = np.full(groups, np.nan)
        some = count > 0
        if some.any():
            part = place[some] - low[some]
            value[some] = ordered[low[some]] * (1 - part) + ordered[high[some]] * part
        found.append(value)
    return found


# Rows by operator and shape against their GPU's roofline, and the FLOPs that they add up to.
#
# The roofline model ("Roofline: An Insightful Visual Performance Model", Williams, Waterman and Patterson, 2009): a
# kernel of I FLOP/byte reaches at most min(peak, I · memory bandwidth). Left of the ridge memory limits it, right of it
# the arithmetic.


class Roof(msgspec.Struct, frozen=True):
    """The limits of the GPUs of a run; None where they are not known or differ."""

    gpu: GpuPeak | None = None
    peak_flops_per_s: float | None = None
    """What the user gave, for any type."""

    def flops_per_s(self, dtype: str) -> float | None:
        """Return the peak for a type in FLOP/s."""
        if self.peak_flops_per_s is not None:
            return self.peak_flops_per_s
        return None if self.gpu is None else self.gpu.flops_per_s(dtype)

    @property
    def bytes_per_s(self) -> float | None:
        """The memory bandwidth in bytes/s."""
        return None if self.gpu is None else self.gpu.bytes_per_s


class CountedFlops(msgspec.Struct, frozen=True):
    """The FLOPs of all operators with a formula, within the steps."""

    model: float
    """Without recomputation; masked attention in full."""
    hardware: float
    """With recomputation."""
    dtype: str
    """The type of most of them."""
    covered: float
    """Share of the compute time that these operators have: the rest is elementwise, or has no shapes."""
    tflops: float | None
    """Model FLOPs over the time of all steps, in TFLOP/s of one device."""
    mfu: float | None
    hfu: float | None
    peak_tflops: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return msgspec.structs.asdict(self)


def roof_of(timelines: Sequence[Timeline], peak_tflops: float | None = None) -> Roof:
    """Return the limits of the devices of a run.

    Args:
        peak_tflops: peak of one GPU in TFLOP/s, in place of the table's.
    """
    gpus = [None if t.on_cpu else gpu_peak(t.gpu or GpuProperties(t.device_name)) for t in timelines]
    gpu = gpus[0] if gpus and all(one == gpus[0] for one in gpus) else None
    return Roof(gpu, None if peak_tflops is None else peak_tflops * 1e12)


def with_roofline(row: dict[str, Any], roof: Roof) -> dict[str, Any]:
    """Add to a row by operator and shape its arithmetic intensity, and the shares of its GPU's peaks.

    ``share_of_roofline`` is the rate over what the roofline allows: by arithmetic, or by memory where that is less.
    """
    flops, size, tflops, gbps = row["flops"], row["bytes"], row["tflops"], row["gbps"]
    peak, bandwidth = roof.flops_per_s(row["dtype"]), roof.bytes_per_s
    arithmetic = None if tflops is None or peak is None else tflops * 1e12 / peak
    memory = None if gbps is None or bandwidth is None else gbps * 1e9 / bandwidth
    shares = [share for share in (arithmetic, memory) if share is not None]
    columns = {
        "flops_per_byte": None if flops is None or not size else round(flops / size, 6),
        "peak_tflops": None if peak is None or flops is None else round(peak / 1e12, 6),
        "share_of_peak": _rounded(arithmetic),
        "share_of_bandwidth": _rounded(memory),
        "share_of_roofline": _rounded(max(shares, default=None)),
        "bound": _bound(arithmetic, memory, flops),
    }
    at = list(row).index("gbps") + 1
    items = list(row.items())
    return dict(items[:at]) | columns | dict(items[at:])


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 6)


def _bound(arithmetic: float | None, memory: float | None, flops: float | None) -> str | None:
    """Return which limit is nearer: the larger share says so."""
    if memory is None or (arithmetic is None and flops is not None):
        return None
    return "memory" if arithmetic is None or memory >= arithmetic else "compute"


def counted_flops(rows: Sequence[dict[str, Any]], wall_ns: int, roof: Roof) -> CountedFlops | None:
    """Add up the FLOPs of rows by operator and shape; None where none has a formula.

    Calls outside the steps are left out by their share of time.

    Args:
        wall_ns: length of all steps of all devices.
    """
    model = hardware = covered = compute = 0.0
    types: dict[str, float] = {}
    for row in rows:
        inside = row["step_ns"] / row["total_ns"] if row["total_ns"] else 0.0
        compute += row["compute_ns"] * inside
        if row["flops"] is None:
            continue
        covered += row["compute_ns"] * inside
        hardware += row["counted_flops"] * row["count"] * inside
        model += row["model_flops"] * (row["count"] - row["recompute_count"]) * inside
        types[row["dtype"]] = types.get(row["dtype"], 0.0) + row["counted_flops"] * row["count"]
    if not types:
        return None
    dtype = max(types, key=lambda name: types[name])
    peak = roof.flops_per_s(dtype)
    return CountedFlops(
        model=model,
        hardware=hardware,
        dtype=dtype,
        covered=covered / compute if compute else 0.0,
        tflops=model / wall_ns / 1e3 if wall_ns else None,
        mfu=None if peak is None else utilization(model, wall_ns, peak),
        hfu=None if peak is None else utilization(hardware, wall_ns, peak),
        peak_tflops=None if peak is None else peak / 1e12,
    )


CallSource = Callable[[Timeline], OperatorCalls]
"""Reads the operator calls of a timeline's rank."""
_KEY_COLUMNS = {
    "kernel": ("kernel", "kind"),
    "operator": ("operator", "forward_operator", "phase"),
    "operator-shape": ("operator", "input_dims"),
    "module": ("module",),
    "layer": ("layer",),
    "source": ("source", "code", "fx_nodes", "module"),
    "annotation": ("annotation",),
    "phase": ("phase",),
}
_COMPUTE = KIND_TOTALS[Kind.COMPUTE]
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
    provenance: str | Path | None = None,
) -> KernelSummary:
    """Summarize the time of devices.

    Args:
        read: reads the calls of a timeline's rank; needed for the groupings in NEEDS_CALLS.
        by: one of GROUPINGS.
        kinds: kinds of intervals that count.
        per_rank: give each rank rows of its own.
        only_steps: leave out intervals that no step launched.
        exposed: exposed time of each interval of each timeline in ns; without, it is not known and 0.
        provenance: inductor's files, which have the lines of compiled kernels; needed by source.
    """
    lines = None if provenance is None else read_provenance(provenance)
    numbers: dict[tuple[Any, ...], int] = {}
    outer = _Outermost()
    found, origin = Statistics(), 0
    for place, timeline in enumerate(timelines):
        recorded = read(timeline) if by in NEEDS_CALLS else _NO_CALLS
        attribution = _attribution(timeline, recorded)
        chosen = np.isin(timeline.kind[attribution.interval], np.array(list(kinds), np.uint8))
        chosen &= (timeline.step[attribution.interval] >= 0) | (not only_steps)
        attribution = attribution.take(chosen)
        groups = group(by, timeline, recorded, attribution, lines)
        keys = [(*key, timeline.rank) if per_rank else key for key in groups.keys]
        code = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
        own = Groups(groups.keys, code[groups.code] if len(code) else groups.code, groups.instance + origin)
        found.add(_pieces(timeline, attribution, own, None if exposed is None else exposed[place]), len(numbers))
        outer.add(recorded, attribution, own.code)
        origin += len(recorded) + len(timeline) + 1
        let_go(timeline.start_ns)
    figures, by_rank = found.columns()
    rows = _rows(by, list(numbers), figures, by_rank, timelines, per_rank)
    for row, name in zip(rows, outer.names(len(numbers)), strict=True):
        if by in ("operator", "operator-shape"):
            row["outermost_operator"] = name or None
    if by == "kernel":
        shorts = kernel_names(timelines)
        rows = [{**row, "kernel": shorts[row["kernel"]], "name": row["kernel"]} for row in rows]
    order = np.argsort(-figures["total_ns"], kind="stable")
    wall = sum(timeline.windows.wall_ns for timeline in timelines)
    ranks = list(dict.fromkeys(timeline.rank for timeline in timelines))
    return KernelSummary(by, [rows[i] for i in order], _totals(timelines, kinds, only_steps), wall, ranks)


def _attribution(timeline: Timeline, recorded: OperatorCalls) -> Attribution:
    if len(recorded):
        return attribute(timeline, recorded)
    none = np.full(len(timeline), -1, np.int64)
    return Attribution(
        np.arange(len(timeline)), timeline.end_ns - timeline.start_ns, *(none,) * 7, recompute=timeline.recompute
    )


def _pieces(timeline: Timeline, attribution: Attribution, groups: Groups, exposed: Int64 | None) -> Pieces:
    interval = attribution.interval
    start, launch = timeline.start_ns[interval], timeline.launch_ns[interval]
    known = (launch != UNKNOWN) & (not timeline.on_cpu)
    return Pieces(
        group=groups.code,
        instance=groups.instance,
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
    by: str,
    keys: list[tuple[Any, ...]],
    figures: dict[str, NDArray[Any]],
    by_rank: Int64,
    timelines: Sequence[Timeline],
    per_rank: bool,
) -> list[dict[str, Any]]:
    walls: dict[int, int] = {}
    for timeline in timelines:
        walls[timeline.rank] = walls.get(timeline.rank, 0) + timeline.windows.wall_ns
    ranks = [timeline.rank for timeline in timelines]
    whole: dict[int | None, Counter[str]] = {}
    for number, key in enumerate(keys):
        # What a row's compute is a share of, in all and by phase: that of its rank, or of all.
        own = whole.setdefault(key[-1] if per_rank else None, Counter())
        own.update({name: int(figures[name][number]) for name in (_COMPUTE, *_PHASE_TOTALS)})
    known = not any(premise in PHASES_NEED for timeline in timelines for premise in timeline.lacks)
    rows = []
    for number, key in enumerate(keys):
        rank = {"rank": key[-1]} if per_rank else {}
        wall = walls[key[-1]] if per_rank else sum(walls.values())
        row = rank | dict(zip(_KEY_COLUMNS[by], key[:-1] if per_rank else key, strict=True))
        row |= {"forward_operator": row["forward_operator"] or None} if by == "operator" else {}
        row |= _with_shares(
            {name: _plain(column[number]) for name, column in figures.items()}, wall, whole[rank.get("rank")]
        )
        row |= {} if known else dict.fromkeys((*_PHASE_TOTALS, "main_phase", "share_of_phase"))
        row |= {} if per_rank else _spread(by_rank[number], ranks)
        rows.append(shape_columns(row) if by == "operator-shape" else row)
    return rows


def _with_shares(row: dict[str, Any], wall: int, whole: Counter[str]) -> dict[str, Any]:
    """Add to a row what it is a share of: the length of all steps, all compute, and all compute of its main phase."""
    compute, phase = row[_COMPUTE], max(_PHASE_TOTALS, key=lambda name: int(row[name]))
    delay = row.pop("launch_delay_ns")
    return row | {
        "share_of_step": _share(row["step_ns"], wall),
        "share_of_compute": _share(compute, whole[_COMPUTE]),
        "main_phase": phase.removesuffix("_ns") if compute else None,
        "share_of_phase": _share(row[phase], whole[phase]) if compute else None,
        "launch_delay_ns": delay,
    }


def _plain(value: Any) -> int | float | None:
    """Return a number of an array: whole ones as they are, times to a tenth of a ns; None for NaN."""
    if isinstance(value, np.integer):
        return int(value)
    return None if np.isnan(value) else round(float(value), 1)


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _spread(by_rank: Int64, ranks: list[int]) -> dict[str, Any]:
    """Return how far the slowest device is above the median one; null for one device."""
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
        ns = sums(which.reshape(-1), pieces.ns[known], len(pairs))
        for pair, time in zip(pairs.tolist(), ns.tolist(), strict=True):
            key = (pair // size, recorded.calls.names[pair % size])
            self._ns[key] = self._ns.get(key, 0) + time

    def names(self, groups: int) -> list[str]:
        """Return the name for each group; empty where nothing is known."""
        best: dict[int, tuple[int, str]] = {}
        for (number, name), ns in self._ns.items():
            best[number] = max(best.get(number, (-1, "")), (ns, name))
        return [best.get(number, (0, ""))[1] for number in range(groups)]

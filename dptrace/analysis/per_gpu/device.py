"""Figures of one GPU that need only its own trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.split import (
    SHOWN,
    Part,
    Split,
    collective_exposure,
    compute_of,
    idle,
    part_intervals_of,
    split,
    unknown_figures,
)
from dptrace.core.checks import holds, objects, rank_entries
from dptrace.core.intervals import Int64, IntervalSet, intersect, median, sums, union
from dptrace.core.notes import MARKS, SUMS
from dptrace.model.flops import OperatorCall
from dptrace.model.operator_costs import cost
from dptrace.timeline.model import Kind, Phase, Timeline
from dptrace.timeline.steps import select_steps


class StepFlops(msgspec.Struct, frozen=True):
    """What each step computes as ``torch.utils.flop_counter`` counts: products, masked or not, without biases."""

    hardware: NDArray[np.float64]
    """All of them."""
    model: NDArray[np.float64]
    """Without what repeats earlier work: forward again in backward, Q·Kᵀ in the backward of fused attention."""
    dtype: str
    """The type of most of them: ``bf16``."""


def step_flops(timeline: Timeline) -> StepFlops | None:
    """Add up the FLOPs of a timeline's operators by step; None where a formula lacks what a call's inputs are."""
    products, steps = timeline.products, len(timeline.windows)
    if products is None:
        return None
    hardware, model = np.zeros(steps), np.zeros(steps)
    types: Counter[str] = Counter()
    inside = np.flatnonzero((products.step >= 0) & (products.step < steps))
    for group in inside.tolist():
        name, inputs = products.calls[group]
        found = cost(OperatorCall.recorded(name, inputs.dims, inputs.dtypes, inputs.concrete))
        if found is None or found.counted_flops is None or found.model_flops is None:
            return None
        step, count = products.step[group], products.count[group]
        hardware[step] += found.counted_flops * count
        model[step] += 0 if products.recompute[group] else found.model_flops * count
        types[found.dtype] += found.counted_flops * int(count)
    return StepFlops(hardware, model, types.most_common(1)[0][0]) if types else None


class DeviceFigures(msgspec.Struct, frozen=True):
    """The timeline of one GPU and all figures that need no other rank."""

    timeline: Timeline
    split: Split
    exposed_ns: Int64
    """Exposed time of each interval of the timeline on its own; 0 for non-communication."""
    overlapped_ns: Int64
    exposed: IntervalSet
    """When communication ran without compute: the intervals behind ``exposed_comm_ns``."""
    idle_causes: dict[str, Int64]
    """By the names in ``causes.CAUSES``: idle ns in each step; the causes add up to the split's idle time."""
    host_gaps: IntervalSet
    """Idle gaps, 50 µs and longer, that ended with work which the host launched late."""
    backward_start_ns: Int64
    """Start of the first backward kernel of each step; 0 without any."""
    backward_end_ns: Int64
    """End of the last backward kernel of each step; 0 without any."""
    recompute_ns: Int64
    """Recomputed forward work in each step; part of backward's compute."""
    parameter_search_ns: Int64
    """Time the host searched for unused parameters in each step."""
    parameter_search_idle_ns: Int64
    """The part of the search during which the GPU was idle; on a CPU all of it, since the host computes."""
    flops: StepFlops | None = None
    """Of each step; None where the file does not tell."""

    def mean_idle(self) -> dict[str, float | None]:
        """Return the mean idle time of a step in ns by cause, which add up to it; None where causes are not known."""
        unknown = self.split.unknown
        return {cause: None if cause in unknown else float(values.mean()) for cause, values in self.idle_causes.items()}

    def shared_exposed(self) -> Int64:
        """Return each collective's share of the exposed time, so that concurrent collectives add up to the step's."""
        comm = self.timeline.collective >= 0
        exposed, step = self.exposed_ns[comm], self.timeline.step[comm]
        inside = step >= 0
        exposed_per_step = sums(step[inside], exposed[inside], len(self.timeline.windows))
        whole = self.split.figures["exposed_comm_ns"]
        share = np.append(np.minimum(whole / np.maximum(exposed_per_step, 1), 1.0), 1.0)
        shared: Int64 = np.floor(exposed * share[np.where(inside, step, -1)]).astype(np.int64)
        return shared

    def shared_exposed_of(self, kind: str) -> int:
        """Return the exposed time of a kind of collective, so that kinds which run at once add up to the step's."""
        whole, kinds = self.split.figures["exposed_comm_ns"], self.split.comm
        every = np.sum([of_kind.exposed_ns for of_kind in kinds.values()], axis=0)
        share = np.minimum(whole / np.maximum(every, 1), 1.0)
        return int(np.floor(kinds[kind].exposed_ns * share).sum())

    def only_communication(self) -> DeviceFigures:
        """Drop all other intervals; the figures remain those of the whole timeline."""
        chosen = self.timeline.kind == Kind.COMMUNICATION
        return replace(
            self,
            timeline=self.timeline.take(chosen),
            exposed_ns=self.exposed_ns[chosen],
            overlapped_ns=self.overlapped_ns[chosen],
        )

    def first_steps(self, count: int) -> DeviceFigures:
        """Keep the first *count* steps with their figures."""
        if not 0 < count < len(self.timeline.windows):
            return self
        timeline, kept = select_steps(self.timeline, 0, count - 1)
        return replace(
            self,
            timeline=timeline,
            split=self.split.first(count),
            exposed_ns=self.exposed_ns[kept],
            overlapped_ns=self.overlapped_ns[kept],
            idle_causes={name: values[:count] for name, values in self.idle_causes.items()},
            backward_start_ns=self.backward_start_ns[:count],
            backward_end_ns=self.backward_end_ns[:count],
            recompute_ns=self.recompute_ns[:count],
            parameter_search_ns=self.parameter_search_ns[:count],
            parameter_search_idle_ns=self.parameter_search_idle_ns[:count],
            flops=step_flops(timeline),
        )

    def with_rank(self, rank: int) -> DeviceFigures:
        """Return a copy with another rank number."""
        return replace(self, timeline=replace(self.timeline, rank=rank), split=replace(self.split, rank=rank))


def figures_of(timeline: Timeline) -> DeviceFigures:
    """Compute all figures of a timeline."""
    part_intervals = part_intervals_of(timeline)
    compute = compute_of(timeline)
    exposed, overlapped = collective_exposure(timeline, compute)
    why = idle(timeline, part_intervals)
    flagged = timeline.recompute & (timeline.kind == Kind.COMPUTE)
    idle_time = intersect(timeline.parameter_search, why.idle)
    return _consistent(
        DeviceFigures(
            timeline,
            split(timeline, part_intervals, compute),
            exposed,
            overlapped,
            part_intervals[Part.EXPOSED_COMM],
            why.causes,
            why.host_gaps,
            *_backward(timeline),
            recompute_ns=_per_step(timeline, union(timeline.start_ns[flagged], timeline.end_ns[flagged])),
            parameter_search_ns=_per_step(timeline, timeline.parameter_search),
            parameter_search_idle_ns=_per_step(timeline, timeline.parameter_search if timeline.on_cpu else idle_time),
            flops=step_flops(timeline),
        )
    )


def _consistent(device: DeviceFigures) -> DeviceFigures:
    """Return the figures, unknown where they contradict each other."""
    figures, idle_ns = device.split.figures, device.split.figures["idle_ns"]
    parts = np.sum([ns for name, ns in figures.items() if name not in ("wall_ns", "overlapped_comm_ns")], axis=0)
    together = (
        holds((parts == figures["wall_ns"]).all(), "the parts of a step add up to it"),
        holds(all((ns >= 0).all() for ns in figures.values()), "no part is negative"),
        holds((np.sum([*device.idle_causes.values()], axis=0) == idle_ns).all(), "the causes add up to the idle time"),
        holds((device.overlapped_ns <= device.timeline.end_ns - device.timeline.start_ns).all(), "overlap ≤ duration"),
    )
    if all(together):
        return device
    return replace(device, split=replace(device.split, lacks=(*device.split.lacks, SUMS)))


def _per_step(timeline: Timeline, when: IntervalSet) -> Int64:
    return timeline.windows.per_step(when)


def _backward(timeline: Timeline) -> tuple[Int64, Int64]:
    count = len(timeline.windows)
    starts, ends = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    backward = (timeline.kind == Kind.COMPUTE) & (timeline.phase == Phase.BACKWARD) & (timeline.step >= 0)
    np.minimum.at(starts, timeline.step[backward], timeline.start_ns[backward])
    np.maximum.at(ends, timeline.step[backward], timeline.end_ns[backward])
    return np.where(ends > 0, starts, 0), ends


# The figures of a run as a grid of GPUs × steps, where some GPUs may lack steps.


class StepGrid(msgspec.Struct, frozen=True):
    """The nine figures of every GPU in every step."""

    device_ids: tuple[tuple[int, int], ...]
    """Rank and device of each row."""
    steps: tuple[str, ...]
    """The steps of all GPUs, each once, in the order of their times."""
    present: NDArray[np.bool_]
    """GPUs × steps: whether the GPU has the step."""
    figures: dict[str, Int64]
    """By the names in ``split.SHOWN``: GPUs × steps, in ns; 0 where a GPU lacks the step."""
    lacks: tuple[tuple[str, ...], ...] = ()
    """The premises that fail in each row's recording; empty where none does in any."""

    def is_known(self, name: str) -> NDArray[np.bool_]:
        """Return for each GPU whether a figure is known."""
        if not self.lacks:
            return np.ones(len(self.device_ids), np.bool_)
        return np.array([name not in unknown_figures(lacks) for lacks in self.lacks], np.bool_)

    def share(self, name: str) -> NDArray[np.float64]:
        """Return a figure as a share of the step's wall time, from 0 to 1; NaN if it is unknown or the wall time 0."""
        wall = self.figures["wall_ns"]
        shown = (wall > 0) & self.is_known(name)[:, None]
        return np.where(shown, self.figures[name] / np.maximum(wall, 1), np.nan)

    def mean(self, name: str) -> NDArray[np.float64]:
        """Return each GPU's mean over its steps, in ns; 0 without steps, NaN where it is not known."""
        means = self.figures[name].sum(axis=1) / np.maximum(self.present.sum(axis=1), 1)
        return np.where(self.is_known(name), means, np.nan)

    def total(self, name: str) -> int:
        """Return the sum of a figure over all GPUs and steps."""
        return int(self.figures[name].sum())


def step_grid(devices: Sequence[DeviceFigures]) -> StepGrid:
    """Arrange the figures of all GPUs by step; steps of the same name are the same step."""
    kept = [device for device in devices if len(device.timeline.windows)]
    steps = _in_order([device.split.names for device in kept])
    column = {name: index for index, name in enumerate(steps)}
    shape = len(kept), len(steps)
    present = np.zeros(shape, np.bool_)
    figures = {name: np.zeros(shape, np.int64) for name in SHOWN}
    # The cell of each step of each GPU, in their order; steps of one GPU with the same name count as one.
    rows = np.repeat(np.arange(len(kept)), [len(device.split.names) for device in kept])
    columns = np.array([column[name] for device in kept for name in device.split.names], np.int64)
    present[rows, columns] = True
    for name in SHOWN if kept else ():
        np.add.at(figures[name], (rows, columns), np.concatenate([device.split.of(name) for device in kept]))
    device_ids = tuple((device.timeline.rank, device.timeline.device) for device in kept)
    lacks = tuple(device.split.lacks for device in kept)
    return StepGrid(device_ids, steps, present, figures, lacks if any(lacks) else ())


def step_windows(devices: Sequence[DeviceFigures]) -> tuple[tuple[str, ...], ...]:
    """Return the names of the steps of each recording, in the order of their times; some devices can lack some."""
    windows = {device.timeline.windows.names: device.timeline.windows for device in devices}
    steps = next(iter(windows)) if len(windows) == 1 else _in_order([*windows])
    if not any(one.gaps for one in windows.values()):
        return (steps,) if steps else ()
    place = {name: number for number, name in enumerate(steps)}
    # Two steps are of one recording where a device has both in one.
    apart = np.ones(len(steps), np.bool_)
    for one in windows.values():
        number, recording = np.array([place[name] for name in one.names]), np.searchsorted(one.gaps, one.span)
        together = np.flatnonzero(np.diff(recording) == 0)
        for first, last in zip(number[together].tolist(), number[together + 1].tolist(), strict=True):
            apart[first:last] = False
    ends = (np.flatnonzero(apart) + 1).tolist()
    return tuple(steps[first:last] for first, last in pairwise((0, *ends)))


def in_mean(devices: Sequence[DeviceFigures]) -> tuple[DeviceFigures, ...]:
    """Return the devices that the mean step is of: those with steps and a whole recording, if there are any.

    Otherwise those whose steps are marked, and if there are none, all that have a window.
    """
    with_steps = [device for device in devices if len(device.timeline.windows)]
    whole = [device for device in with_steps if not device.split.lacks]
    marked = [device for device in with_steps if MARKS not in device.split.lacks]
    return tuple(whole or marked or with_steps)


def middle_step(devices: Sequence[DeviceFigures]) -> str | None:
    """Return the step with the wall time nearest to the median, among those that most GPUs have; None without steps."""
    grid = step_grid(devices)
    if not grid.steps:
        return None
    count = grid.present.sum(axis=0)
    common = np.flatnonzero(count == count.max())
    wall = grid.figures["wall_ns"].sum(axis=0)[common] / count.max()
    return grid.steps[int(common[np.abs(wall - median(wall)).argmin()])]


def _in_order(names: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Merge the GPUs' steps into one order: by number if all have one, otherwise by each GPU's own order."""
    every = list(dict.fromkeys(name for steps in names for name in steps))
    found = [re.fullmatch(r"(.*?)(\d{1,18})", name) for name in every]
    numbers = {name: int(match[2]) for name, match in zip(every, found, strict=True) if match}
    if len(numbers) == len(every) and len({match[1] for match in found if match}) <= 1:
        return tuple(sorted(every, key=numbers.__getitem__))
    merged: list[str] = []
    for steps in names:
        place = 0
        for name in dict.fromkeys(steps):
            if name in merged:
                place = merged.index(name) + 1
            else:
                merged.insert(place, name)
                place += 1
    return tuple(merged)


# How evenly tokens were distributed over the experts of a mixture, from run.json.


class ExpertLoad(msgspec.Struct, frozen=True):
    """The experts of one layer; their shares of the layer's tokens sum to 1."""

    layer: int
    """Counted from 0."""
    shares: tuple[float, ...]
    dropped: float | None = None
    """Share of the layer's tokens that experts had no room for; None without a capacity."""

    @property
    def most_loaded(self) -> int:
        """Index of the expert with the most tokens; the first among equals."""
        return self.shares.index(max(self.shares))

    @property
    def least_loaded(self) -> int:
        """Index of the expert with the fewest tokens; the first among equals."""
        return self.shares.index(min(self.shares))

    @property
    def even_share(self) -> float:
        """Share of each expert under an even load."""
        return 1 / len(self.shares)


def expert_loads(metadata: Mapping[str, Any]) -> tuple[ExpertLoad, ...]:
    """Return each layer's load; empty for runs without experts; layers whose entry is not a list of counts are skipped.

    Args:
        metadata: the contents of run.json, which may be malformed.
    """
    dropped = _by_layer(metadata, "expert_dropped")
    loads = []
    for layer, counts in sorted(_by_layer(metadata, "expert_load").items()):
        whole = sum(counts)
        if whole > 0:
            lost = sum(dropped[layer]) / whole if layer in dropped else None
            loads.append(ExpertLoad(layer, tuple(count / whole for count in counts), lost))
    return tuple(loads)


def _by_layer(metadata: Mapping[str, Any], key: str) -> dict[int, list[int]]:
    """Return a list of counts for each layer, of the run or, where the ranks have different layers, of the ranks."""
    options = metadata.get("options")
    rows = options.get(key) if isinstance(options, dict) else None
    tables = [(range(len(rows)), rows)] if isinstance(rows, list) else []
    for own in objects([entry.get("experts") for entry in rank_entries(metadata)]):
        if isinstance(own.get("layers"), list) and isinstance(own.get(key), list):
            tables.append((own["layers"], own[key]))
    return {
        layer: counts
        for layers, rows in tables
        for layer, counts in zip(layers, rows, strict=False)
        if type(layer) is int and _are_counts(counts)
    }


def _are_counts(counts: object) -> bool:
    return isinstance(counts, list) and all(type(count) is int and count >= 0 for count in counts)

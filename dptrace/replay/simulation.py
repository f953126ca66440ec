"""From simulated times back to a run: its timelines, the lengths of its steps, and their figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.split import FIGURES, Split, split
from dptrace.core.intervals import EMPTY, Int64, covered, median, union
from dptrace.errors import DptraceError
from dptrace.replay.graph.build import Model, residuals
from dptrace.replay.graph.model import NEVER, EdgeKind, TaskKind
from dptrace.replay.graph.process import Process
from dptrace.replay.graph.schedule import Schedule, Simulation, Times, Ways, run_of
from dptrace.replay.representatives import Representatives
from dptrace.run.run import Run
from dptrace.timeline.model import (
    BEFORE_FIRST,
    INTERVAL_SETS,
    NO_ACTIONS,
    NO_ACTIVITY,
    UNKNOWN,
    Kind,
    Timeline,
    Windows,
)
from dptrace.timeline.premises import cut_files
from dptrace.timeline.steps import CpuSteps, device_windows, with_usual_steps

# The timelines of a run that went differently, and the ends of its steps.


def timeline_at(model: Model, number: int, times: Times) -> Timeline:
    """Return a timeline of the run with simulated times, on its own clock; its steps are those of the definitions.

    What the timeline says about the host is left out, since a simulation does not have it.
    """
    timeline, _, tasks = _find(model, number)
    start, end, windows = _moved(model, number, times)
    moved = replace(
        timeline,
        start_ns=start,
        end_ns=end,
        launch_ns=_launches(model, number, times, start),
        windows=windows,
        host=NO_ACTIVITY,
        actions=NO_ACTIONS,
        **dict.fromkeys(INTERVAL_SETS, EMPTY),
    )
    order = np.argsort(start, kind="stable")
    # Operators of a collective's own thread are part of it, and have no task.
    return moved.take(order[(tasks >= 0)[order]] if timeline.on_cpu else order)


class Bound(NamedTuple):
    """Where a step of a timeline is over, and the next one begins."""

    task: int
    """The task that ends or starts there."""
    at_ns: int
    """On the clock that all ranks share."""


def bound_of(model: Model, number: int, times: Times, span: int) -> Bound:
    """Return the end of a timeline's step by its definition, at simulated times; of step -1, where the first begins.

    Args:
        span: which of the spans of ``Timeline.windows`` it is.
    """
    timeline, _, tasks = _find(model, number)
    bound = int(_moved(model, number, times)[2].bounds[span + 1])
    # It is the end of what was launched up to then, the mark of the next step, or the start of that step's work.
    placed = np.flatnonzero(tasks >= 0)
    of = timeline.span[placed]
    own = placed[(of >= BEFORE_FIRST) & (of <= span)]
    following = placed[of == span + 1]
    mark = _marks(model, number)[span + 1 : span + 2]
    task = np.concatenate((model.over[tasks[own]], mark, tasks[following]))
    at = np.concatenate((times.end_ns[task[: len(own)]], times.start_ns[task[len(own) :]]))
    shift = timeline.start_ns - model.graph.start_ns[tasks]
    own_clock = at + np.concatenate((shift[own], np.full(len(mark), _shift(model, number)), shift[following]))
    last = int(np.where(own_clock <= bound, own_clock, _LEAST).argmax())
    return Bound(int(task[last]), int(at[last]) + bound - int(own_clock[last]))


def _moved(model: Model, number: int, times: Times) -> tuple[Int64, Int64, Windows]:
    """Return when the intervals of a timeline start and end at simulated times, and its steps, on its own clock."""
    timeline, _, tasks = _find(model, number)
    start, end = timeline.start_ns.copy(), timeline.end_ns.copy()
    placed = np.flatnonzero(tasks >= 0)
    task = tasks[placed]
    shift = timeline.start_ns[placed] - model.graph.start_ns[task]
    start[placed] = times.start_ns[task] + shift
    end[placed] = times.end_ns[model.over[task]] + shift
    marks = _marks(model, number)
    marks = times.start_ns[marks] + _shift(model, number)
    windows = timeline.windows
    if len(marks):
        steps = CpuSteps(windows.span_names, marks[:-1], int(marks[-1]))
        windows = replace(windows, bounds=device_windows(steps, start, end, timeline.span).bounds)
    elif len(start):
        windows = Windows(windows.names, np.array([start.min(), end.max()], np.int64))
    return start, end, windows


def _find(model: Model, number: int) -> tuple[Timeline, Process, Int64]:
    index, tasks = model.place[number]
    return model.run.timelines[number], model.processes[index], tasks


def _shift(model: Model, number: int) -> int:
    """Return what to add to times on the shared clock for those of the timeline's own."""
    timeline, _, tasks = _find(model, number)
    placed = np.flatnonzero(tasks >= 0)[:1]
    return int((timeline.start_ns[placed] - model.graph.start_ns[tasks[placed]]).sum())


def _marks(model: Model, number: int) -> Int64:
    """Return the tasks at which the timeline's steps start on the host, and the last ends; empty without marks."""
    timeline, process, _ = _find(model, number)
    known = {name: i for i, name in enumerate(process.step_names)}
    windows = timeline.windows
    places = [known[name] for name in windows.names if name in known]
    if len(places) != len(windows):
        return EMPTY[0]
    # A gap begins where the step before it ends, also where the process has steps after that which are left out.
    for gap in windows.gaps:
        places.insert(gap, places[gap - 1] + 1)
    return process.mark_tasks[[*places, places[-1] + 1]]


def _launches(model: Model, number: int, times: Times, start: Int64) -> Int64:
    """Return when each interval was launched, on the timeline's clock; *start* is when it starts."""
    timeline, process, tasks = _find(model, number)
    launch = timeline.launch_ns.copy()
    interval = tasks - int(process.interval_tasks[0]) if len(process.interval_tasks) else np.full(len(tasks), -1)
    # Tasks beyond the process's own were inserted by a change: no recorded call launches them.
    inserted = tasks >= process.first_task + len(process)
    on_device = (tasks >= 0) & (interval >= 0) & ~inserted
    by = np.full(len(tasks), -1, np.int64)
    by[on_device] = process.device.launched_by[interval[on_device]]
    known = (by >= 0) & (launch != UNKNOWN)
    call = process.host_tasks.begin[by[known]]
    launch[known] += times.start_ns[call] - process.host.start_ns[by[known]]
    launch[inserted] = start[inserted]
    operator = (tasks >= 0) & (interval < 0) & ~inserted
    launch[operator] += times.start_ns[tasks[operator]] - model.graph.start_ns[tasks[operator]]
    return launch


class _Ends(msgspec.Struct, frozen=True):
    """What the steps of a model's timelines end with."""

    model: Model
    """One of the models that have these."""
    ways: Ways
    """The tasks that belong to each step: a group for what came before the first step of a timeline, and for each."""
    shift_ns: Int64
    """From the shared clock to the timeline's own, of each task."""
    least_ns: Int64
    """The least end of each group."""
    first: Int64
    """First group of each timeline, followed by their number."""
    mark: Int64
    """Of each group: the mark that it ends with, or -1."""
    mark_ns: Int64
    """From the shared clock to the timeline's own, of each mark."""

    def is_of(self, model: Model) -> bool:
        """Whether the timelines of a model have the same tasks, at the same recorded times."""
        own = self.model
        same = own.run is model.run and own.place is model.place and own.over is model.over
        return same and own.graph.start_ns is model.graph.start_ns


def step_bounds(model: Model, simulation: Simulation) -> list[Int64]:
    """Return when each step of each timeline is over, preceded by when what came before the first one was.

    A step is over when the next begins on the host and all that was launched up to then has ended. In contrast to the
    bounds of the definitions, these never move apart when something gets faster: a device that is further ahead of its
    host starts a step later, not earlier. The first step begins no earlier than in the recording, so that it is no
    longer where what came before it gets faster. Times are on each timeline's own clock.
    """
    schedule = simulation.schedule
    if schedule.asked is None or not schedule.asked.is_of(model):
        schedule.asked = _ends(model, schedule)
    ends: _Ends = schedule.asked
    last = np.maximum(simulation.latest(ends.ways, ends.shift_ns), ends.least_ns)
    marked = np.flatnonzero(ends.mark >= 0)
    last[marked] = np.maximum(last[marked], simulation.starts(ends.mark[marked]) + ends.mark_ns[marked])
    return [np.maximum.accumulate(last[low:high]) for low, high in pairwise(ends.first.tolist())]


def _ends(model: Model, schedule: Schedule) -> _Ends:
    """Prepare what the steps of timelines end with."""
    groups, tasks, shifts, least, marks, mark_ns = ([EMPTY[0]] for _ in range(6))
    first = 0
    for number in range(len(model.run.timelines)):
        timeline, _, task = _find(model, number)
        mark = _marks(model, number)
        # Operators of a collective's own thread are part of it, and have no task.
        counted = (task >= 0) if timeline.on_cpu else np.ones(len(task), np.bool_)
        if len(mark):
            span = timeline.span
            group = span.astype(np.int64) + 1
            counted &= span >= BEFORE_FIRST
            own = np.full(len(mark), _LEAST)
            own[0] = timeline.end_ns[span == BEFORE_FIRST].max(initial=_LEAST)
        else:
            # Two bounds: the start of the recording, and the end of its last interval.
            group, mark = np.ones(len(task), np.int64), np.full(2, -1)
            own = np.full(2, timeline.start_ns.min(initial=np.iinfo(np.int64).max))
        fixed = np.flatnonzero(counted & (task < 0))
        np.maximum.at(own, group[fixed], timeline.end_ns[fixed])
        placed = np.flatnonzero(counted & (task >= 0))
        placed = placed[~_is_outlasted(model, task[placed], group[placed])]
        groups.append(first + group[placed])
        tasks.append(model.over[task[placed]])
        shifts.append(timeline.start_ns[placed] - model.graph.start_ns[task[placed]])
        least.append(own)
        marks.append(mark)
        mark_ns.append(np.full(len(mark), _shift(model, number)))
        first += len(mark)
    group, task, shift = (np.concatenate(column) for column in (groups, tasks, shifts))
    return _Ends(
        model=model,
        ways=schedule.ways(group, first, task, np.arange(len(task))),
        shift_ns=shift,
        least_ns=np.concatenate(least),
        first=np.cumsum([0, *map(len, marks[1:])]),
        mark=np.concatenate(marks),
        mark_ns=np.concatenate(mark_ns),
    )


def _is_outlasted(model: Model, task: Int64, group: Int64) -> NDArray[np.bool_]:
    """Return which tasks of a timeline another one of their group follows on their stream, so that it ends later.

    No change lets a kernel start before the one in front of it has ended, where it did not as recorded.
    """
    outlasted = np.zeros(len(task), np.bool_)
    if not len(task):
        return outlasted
    low, end = int(task.min()), int(task.max()) + 1
    place = np.full(end - low, -1)
    place[task - low] = np.where(model.over[task] == task, np.arange(len(task)), -1)
    edge = model.graph.edge.take(slice(*model.graph.first[[low, end]].tolist()))
    inner = edge.of(EdgeKind.STREAM) & edge.from_end & (edge.lag_ns >= 0) & (edge.src >= low) & (edge.src < end)
    before, after = place[edge.src[inner] - low], place[edge.dst[inner] - low]
    outlasted[before[(before >= 0) & (after >= 0) & (group[before] == group[after])]] = True
    return outlasted


# Figures of the same steps on all ranks, as recorded and replayed, and the range of their median.

WALL = FIGURES.index("wall_ns")
_LEAST = np.iinfo(np.int64).min
_CUT_OFF = 0.1
"""A last step shorter than this share of the median was cut off by the end of the recording."""
_RESAMPLES = 400
"""Draws of the bootstrap that gives a range."""
_RANGE = (5, 95)
"""Percentiles of the median over resampled steps."""


class StepSelection(msgspec.Struct, frozen=True):
    """The steps and timelines that an answer is about."""

    timelines: tuple[int, ...]
    """Their numbers in the whole run."""
    steps: tuple[str, ...]
    places: tuple[NDArray[np.int64], ...]
    """Index of each step in each timeline."""
    of: NDArray[np.int64] | None = None
    """Of each timeline of a run that is replayed in part: the place of the one that stands for it; None of all."""

    def replayed(self, of: Representatives | None) -> StepSelection:
        """Return the same steps of the timelines that are replayed for these."""
        if of is None:
            return self
        numbers, place = np.unique(of.of[list(self.timelines)], return_inverse=True)
        return replace(_chosen(of.run, tuple(numbers.tolist()), self.steps), of=place)

    def of_all(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return values of the replayed timelines for all that they stand for."""
        return values if self.of is None else values[self.of]


class StepLengths(msgspec.Struct, frozen=True):
    """The steps of a model that was simulated."""

    simulation: Simulation
    length_ns: NDArray[np.int64]
    """From the end of one to the end of the next: timelines × steps."""
    ended_ns: NDArray[np.int64]
    """When the last of these steps ends, on each timeline's clock."""

    @property
    def times(self) -> Times:
        """When each task starts and ends."""
        return self.simulation.times


class Outcome(StepLengths, frozen=True, dict=True):
    """A model that was simulated, with the figures of its steps, which are computed if they are asked for."""

    model: Model
    chosen: StepSelection

    @cached_property
    def by_end(self) -> NDArray[np.int64]:
        """Figures of each step, from the end of one to the end of the next: timelines × steps × figures."""
        chosen, bounds, splits = self.chosen, step_bounds(self.model, self.simulation), list[Split]()
        for number in chosen.timelines:
            timeline = timeline_at(self.model, number, self.times)
            splits.append(split(replace(timeline, windows=replace(timeline.windows, bounds=bounds[number]))))
        return _table(chosen, splits)


def choose(run: Run, whole: Run) -> StepSelection:
    """Choose the steps that all selected ranks have, without one that was cut off.

    Where there is none, a few ranks have others, such as those whose steps are not marked: the steps of the rest count.

    Args:
        run: the run with the ranks and steps that were selected.
        whole: the run that they were selected from.

    Raises:
        DptraceError: no step is on most of the ranks.
    """
    numbers = {(t.rank, t.device): i for i, t in enumerate(whole.timelines)}
    chosen = run.timelines
    steps = _common_steps(chosen)
    if not steps:
        chosen = tuple(run.timelines[number] for number in with_usual_steps(run.timelines))
        steps = _common_steps(chosen)
    if not steps or 2 * len(chosen) <= len(run.timelines):
        every = set.intersection(*({*timeline.windows.names} for timeline in run.timelines))
        cut = cut_files(run.timelines) if every else ""
        why = f"no step has its collectives on all ranks, since {cut}" if cut else "no step is on all ranks"
        raise DptraceError(f"{run.path}: {why}, so their steps can't be compared.")
    timelines = tuple(numbers[t.rank, t.device] for t in chosen)
    walls = recorded_figures(whole, _chosen(whole, timelines, steps))[:, :, WALL].mean(axis=0)
    if len(steps) > 1 and walls[-1] < _CUT_OFF * median(walls[:-1]):
        del steps[-1]
    return _chosen(whole, timelines, steps)


def shared_steps(timelines: Sequence[Timeline]) -> list[str]:
    """Return the steps that all of these have, but for those that have other steps than most."""
    return _common_steps([timelines[number] for number in with_usual_steps(timelines)])


def _common_steps(timelines: Sequence[Timeline]) -> list[str]:
    """Return the steps that all of these have, complete."""
    first, *others = (dict.fromkeys(timeline.windows.names) for timeline in timelines)
    incomplete = {name for timeline in timelines for name in timeline.incomplete_steps}
    return [name for name in first if name not in incomplete and all(name in names for names in others)]


def _chosen(whole: Run, timelines: tuple[int, ...], steps: Sequence[str]) -> StepSelection:
    names = [whole.timelines[number].windows.names for number in timelines]
    return StepSelection(timelines, tuple(steps), tuple(np.array([own.index(name) for name in steps]) for own in names))


def _table(chosen: StepSelection, splits: Sequence[Split]) -> NDArray[np.int64]:
    rows = [
        np.stack([figures.figures[name][places] for name in FIGURES], axis=1)
        for figures, places in zip(splits, chosen.places, strict=True)
    ]
    return chosen.of_all(np.stack(rows).astype(np.int64))


def recorded_figures(whole: Run, chosen: StepSelection) -> NDArray[np.int64]:
    """Return the figures as recorded: timelines × steps × figures, in ns."""
    return _table(chosen, [whole.devices[number].split for number in chosen.timelines])


def simulated_figures(outcome: Outcome, chosen: StepSelection) -> NDArray[np.int64]:
    """Return the figures by their definitions at simulated times: timelines × steps × figures, in ns."""
    return _table(chosen, [split(timeline_at(outcome.model, number, outcome.times)) for number in chosen.timelines])


def simulated_walls(outcome: Outcome, chosen: StepSelection) -> NDArray[np.int64]:
    """Return the lengths of steps by their definition at simulated times: timelines × steps, in ns."""
    rows = [
        _moved(outcome.model, number, outcome.times)[2].wall_by_step[places]
        for number, places in zip(chosen.timelines, chosen.places, strict=True)
    ]
    return chosen.of_all(np.stack(rows).astype(np.int64))


def outcome(model: Model, chosen: StepSelection) -> Outcome:
    """Simulate a model."""
    lengths = step_lengths(model, chosen)
    return Outcome(lengths.simulation, lengths.length_ns, lengths.ended_ns, model, chosen)


def step_lengths(model: Model, chosen: StepSelection) -> StepLengths:
    """Simulate a model; of its steps, only the lengths are computed."""
    simulation = run_of(model.graph)
    bounds = step_bounds(model, simulation)
    own = [
        (bounds[number], model.run.timelines[number].windows.span[places])
        for number, places in zip(chosen.timelines, chosen.places, strict=True)
    ]
    length = np.stack([np.diff(ends)[places] for ends, places in own])
    ended = np.array([ends[places[-1] + 1] for ends, places in own], np.int64)
    return StepLengths(simulation, chosen.of_all(length), chosen.of_all(ended))


def median_range(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the range of the median if other steps of the same kind had been recorded: 5th to 95th percentile."""
    return _range(median(_resampled(values), axis=1))


def mean_range(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the same range of the mean."""
    return _range(_resampled(values).mean(axis=1))


def _resampled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    drawn = np.random.default_rng(0).integers(len(values), size=(_RESAMPLES, len(values)))
    return values[drawn]


def _range(figures: NDArray[np.float64]) -> tuple[float, float]:
    ordered = np.sort(figures)
    low, high = (ordered[round(percent / 100 * (_RESAMPLES - 1))] for percent in _RANGE)
    return float(low), float(high)


def with_times(model: Model, duration_ns: Int64 | None = None, lag_ns: Int64 | None = None) -> Model:
    """Return a model with other durations of tasks or lags of edges."""
    graph = model.graph
    if duration_ns is not None:
        graph = replace(graph, duration_ns=duration_ns)
    if lag_ns is not None:
        graph = replace(graph, edge=replace(graph.edge, lag_ns=lag_ns))
    return replace(model, graph=graph)


def scaled(values: Int64, chosen: NDArray[np.bool_], factor: float) -> Int64:
    """Return the values, the chosen ones multiplied by a factor."""
    result = values.copy()
    result[chosen] = np.rint(values[chosen] * factor).astype(np.int64)
    return result


def without_host(model: Model) -> Model:
    """Return the model with calls and pauses of no length; operators that compute on a CPU remain."""
    return _without(model, (TaskKind.CALL,), (EdgeKind.HOST, EdgeKind.THREAD))


def _without(model: Model, tasks: Sequence[TaskKind], edges: Sequence[EdgeKind]) -> Model:
    """Return the model with tasks and lags of some kinds that take no time."""
    graph, edge = model.graph, model.graph.edge
    durations = np.where(graph.of(*tasks), 0, graph.duration_ns)
    return with_times(model, durations, np.where(edge.of(*edges), 0, edge.lag_ns) if edges else None)


# How long a step takes in the long run: no shorter than the host alone needs, nor than the devices alone.

_FREE = (EdgeKind.SYNCHRONIZE, EdgeKind.HIDDEN, EdgeKind.QUEUE, EdgeKind.PEER)
"""Waits of hosts for devices, and for ranks that were not recorded, whose own pace is unknown."""


class SteadyState(msgspec.Struct, frozen=True):
    """The length of a step in ns that each side sets on its own: the median step of the slowest rank."""

    host_ns: int
    device_ns: int

    @property
    def step_ns(self) -> int:
        """The length of a step in the long run."""
        return max(self.host_ns, self.device_ns)


def steady_state(model: Model, most: SteadyState | None = None) -> SteadyState:
    """Replay the hosts as if they never waited for devices, and the devices as if hosts took no time.

    A recording of a few steps need not be in its steady state: at its start the host may be ahead of the device by
    more than its queue holds later, or behind.

    Args:
        most: what each side needs at most. Where one needs more than the other can, that one is not replayed.
    """
    edge = model.graph.edge
    free = with_times(model, lag_ns=np.where(edge.of(*_FREE), NEVER, edge.lag_ns))

    def host_ns() -> int:
        compute = () if model.run.on_cpu else (TaskKind.COMPUTE,)
        on_device = (*compute, TaskKind.MEMORY, TaskKind.COMMUNICATION, TaskKind.TRANSFER)
        return _host_step(model, run_of(_without(free, on_device, ()).graph))

    def device_ns() -> int:
        on_host = (TaskKind.CALL, TaskKind.MARK), (EdgeKind.HOST, EdgeKind.THREAD)
        return _device_step(model, run_of(_without(free, *on_host).graph))

    if most is None:
        return SteadyState(host_ns(), device_ns())
    if most.host_ns >= most.device_ns:
        host = host_ns()
        return SteadyState(host, most.device_ns if host >= most.device_ns else device_ns())
    device = device_ns()
    return SteadyState(most.host_ns if device >= most.host_ns else host_ns(), device)


def _host_step(model: Model, simulation: Simulation) -> int:
    """Return the median step of the slowest host, from mark to mark; 0 without marks."""
    marked = [process for process in model.processes if len(process.host.marks)]
    complete = _complete(model, [own.step_names for own in marked])
    lengths = (np.diff(simulation.starts(own.mark_tasks)) for own in marked)
    return _slowest([own[chosen] for own, chosen in zip(lengths, complete, strict=True)])


def _complete(model: Model, steps: Sequence[tuple[str, ...]]) -> list[NDArray[np.bool_]]:
    """Return for each rank which of its steps all have recorded whole; all where there are no such."""
    known = set(shared_steps(model.run.timelines))
    found = dict[tuple[str, ...], NDArray[np.bool_]]()
    for names in steps:
        if names not in found:
            shared = np.array([name in known for name in names], np.bool_)
            found[names] = shared if shared.any() else ~shared
    return [found[names] for names in steps]


def _device_step(model: Model, simulation: Simulation) -> int:
    """Return the median step of the slowest device: its work, or from the end of one step's work to that of the next.

    Work that a host without delays launches before the first step is none of the time after it.
    """
    bounds, usual = step_bounds(model, simulation), with_usual_steps(model.run.timelines)
    complete = _complete(model, [model.run.timelines[number].windows.names for number in usual])
    spans = [model.run.timelines[number].windows.span for number in usual]
    steps = [np.diff(bounds[number])[span] for number, span in zip(usual, spans, strict=True)]
    slowest = _slowest([ns[own] for ns, own in zip(steps, complete, strict=True)])
    # One after the other, what a device does takes at least as long.
    for summed in (True, False):
        work = [_own_work(model, number, simulation, summed)[own] for number, own in zip(usual, complete, strict=True)]
        if (longer := _slowest(work)) <= slowest:
            return slowest
    return longer


def _own_work(model: Model, number: int, simulation: Simulation, summed: bool) -> Int64:
    """Return how long compute and copies that each step launched keep a device busy.

    Args:
        summed: what is done at once counts several times, which is quicker to compute.
    """
    timeline, _, tasks = _find(model, number)
    own = np.flatnonzero((timeline.step >= 0) & (timeline.kind != Kind.COMMUNICATION) & (tasks >= 0))
    steps = len(timeline.windows)
    if summed:
        ns = np.maximum(simulation.duration_ns[tasks[own]], 0)
        return np.bincount(timeline.step[own], ns, steps).astype(np.int64)
    if not len(own):
        return np.zeros(steps, np.int64)
    shift = timeline.start_ns[own] - model.graph.start_ns[tasks[own]]
    start, end = simulation.starts(tasks[own]) + shift, simulation.ends(model.over[tasks[own]]) + shift
    # Steps one after the other on one axis, so that the work of one does not cover another's.
    first = start.min()
    span = int(end.max() - first) + 1
    begin = timeline.step[own].astype(np.int64) * span - first
    busy = union(start + begin, end + begin)
    return np.diff(covered(busy, np.arange(steps + 1) * span))


def _slowest(lengths: list[Int64]) -> int:
    steps = min((len(one) for one in lengths), default=0)
    return int(median(np.stack([one[:steps] for one in lengths]).max(axis=0))) if steps else 0


_FEW_STEPS = 3
"""Number of steps up to which none is left out."""


def unexplained_ns(model: Model) -> int:
    """Return how much later than explained the tasks of the worst device start, summed over the recording.

    Of several steps, the worst one is left out: what happens once, as where a thread gets no core, is no dependency.
    """
    late, worst = np.maximum(residuals(model.graph), 0), 0
    for process in model.processes:
        own, marks = process.interval_tasks, model.graph.start_ns[process.mark_tasks]
        by_step = np.bincount(np.searchsorted(marks, model.graph.start_ns[own]), late[own])
        worst = max(worst, int(by_step.sum() - (by_step.max(initial=0) if len(marks) > _FEW_STEPS else 0)))
    return worst

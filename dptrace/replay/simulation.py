"""Run the tasks of a graph: each starts as soon as all that it waits for has happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.split import FIGURES, Split, split
from dptrace.core.intervals import EMPTY, Int64, covered, median, repeated, union, unique
from dptrace.errors import DptraceError
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import NEVER, EdgeKind, Graph, TaskKind
from dptrace.replay.graph.process import Process
from dptrace.replay.representatives import Representatives
from dptrace.run.run import Run
from dptrace.timeline.model import BEFORE_FIRST, NO_ACTIONS, NO_ACTIVITY, UNKNOWN, Kind, Timeline, Windows
from dptrace.timeline.steps import CpuSteps, device_windows


class Times(msgspec.Struct, frozen=True):
    """When each task of a graph starts and ends, in ns on the shared clock."""

    start_ns: Int64
    end_ns: Int64


_MIN_RANKS, _MIN_WIDTH = 32, 16
"""From so many ranks on, and so many joins to a level, joins are visited level by level instead of one by one."""


class Schedule:
    """A graph prepared for many simulations, with other durations and lags of the same tasks and edges.

    ::

        join ──► a ──► b ──► c        each of a, b, c waits for one task: it starts a known time after the join
          └────► d ──► join           only joins, which wait for several tasks, are visited one after the other
    """

    def __init__(self, graph: Graph) -> None:
        order, edge = graph.order, graph.edge
        self.graph = graph
        counts = np.diff(graph.first)
        self._follower = np.flatnonzero(counts == 1)
        self._single = graph.first[self._follower]
        root = np.arange(len(graph))
        root[self._follower] = edge.src[self._single]
        # Each turn looks twice as far ahead: tasks that are not there yet, and what they look at.
        self._turns: list[tuple[Int64, Int64]] = []
        while len(further := np.flatnonzero(root[root] != root)):
            self._turns.append((further, root[further]))
            root[further] = root[root[further]]
        self._root = root
        joins = order[counts[order] > 1]
        self._levels = _levels(graph, joins, root) if int(graph.process.max(initial=0)) + 1 >= _MIN_RANKS else []
        if self._levels:
            joins = np.concatenate(self._levels)
        size = counts[joins]
        # Edges of the joins, in the order of these.
        which, nth = repeated(size)
        self._edges = graph.first[joins[which]] + nth
        self._joins, self._sizes, self._sources = joins, size, root[edge.src[self._edges]]

    def run(self, duration_ns: Int64, lag_ns: Int64) -> Times:
        """Simulate with these durations of the tasks and lags of the edges."""
        graph, edge = self.graph, self.graph.edge
        # From the start of an edge's source to what waits for it.
        along = lag_ns + np.where(edge.from_end, duration_ns[edge.src], 0)
        after = np.zeros(len(graph), np.int64)
        after[self._follower] = along[self._single]
        for further, ahead in self._turns:
            after[further] = np.maximum(after[further] + after[ahead], NEVER)
        since = along[self._edges] + after[edge.src[self._edges]]
        start = self._wide(since) if self._levels else self._narrow(since)
        begun = start[self._root] + after
        return Times(begun, begun + duration_ns)

    def _narrow(self, since: Int64) -> Int64:
        """Return when each join starts; of few ranks, level by level NumPy would have as many calls as joins."""
        start, sources, waited = self.graph.start_ns.tolist(), self._sources.tolist(), since.tolist()
        place = 0
        for join, size in zip(self._joins.tolist(), self._sizes.tolist(), strict=True):
            first, second = start[sources[place]] + waited[place], start[sources[place + 1]] + waited[place + 1]
            latest = first if first > second else second
            for further in range(place + 2, place + size):
                latest = max(latest, start[sources[further]] + waited[further])
            start[join] = latest
            place += size
        return np.array(start, np.int64)

    def _wide(self, since: Int64) -> Int64:
        """Do the same for the joins of a level at once: each rank has one, as a rule."""
        start, place = self.graph.start_ns.copy(), 0
        first = np.cumsum(self._sizes) - self._sizes
        done = 0
        for level in self._levels:
            own = first[done : done + len(level)]
            until = int(own[-1]) + int(self._sizes[done + len(level) - 1])
            came = start[self._sources[place:until]] + since[place:until]
            start[level] = np.maximum.reduceat(came, own - place)
            place, done = until, done + len(level)
        return start


def _levels(graph: Graph, joins: Int64, root: Int64) -> list[Int64]:
    """Return the joins in levels: each waits only for joins of earlier ones; none where a level holds few."""
    count = len(joins)
    place = np.full(len(graph), -1, np.int64)
    place[joins] = np.arange(count)
    of = place[graph.edge.dst]
    before = np.where(of >= 0, place[root[graph.edge.src]], -1)
    inner = np.flatnonzero(before >= 0)
    inner = inner[np.argsort(before[inner], kind="stable")]
    of = of[inner]
    bounds = np.searchsorted(before[inner], np.arange(count + 1))
    waiting = np.bincount(of, minlength=count)
    levels, ready = list[Int64](), np.flatnonzero(waiting == 0)
    while len(ready):
        levels.append(joins[ready])
        which, nth = repeated(bounds[ready + 1] - bounds[ready])
        following = of[bounds[ready[which]] + nth]
        np.subtract.at(waiting, following, 1)
        ready = unique(following[waiting[following] == 0])
    return levels if count >= _MIN_WIDTH * len(levels) else []


def simulate(graph: Graph) -> Times:
    """Simulate a graph once, as it is."""
    return schedule_of(graph).run(graph.duration_ns, graph.edge.lag_ns)


def schedule_of(graph: Graph) -> Schedule:
    """Return the schedule of all graphs with these edges, whatever their durations and lags: it is prepared once."""
    if not graph.prepared:
        graph.prepared.append(Schedule(graph))
    schedule: Schedule = graph.prepared[0]
    return schedule


# From simulated times back to timelines: those of a run that went differently, and the lengths of its steps.


def timeline_at(model: Model, number: int, times: Times) -> Timeline:
    """Return a timeline of the run with simulated times, on its own clock; its steps are those of the definitions.

    What the timeline says about the host is left out, since a simulation does not have it.
    """
    timeline, _, tasks = _find(model, number)
    start, end = timeline.start_ns.copy(), timeline.end_ns.copy()
    placed = np.flatnonzero(tasks >= 0)
    task = tasks[placed]
    shift = timeline.start_ns[placed] - model.graph.start_ns[task]
    start[placed] = times.start_ns[task] + shift
    end[placed] = times.end_ns[model.over[task]] + shift
    marks = _marks(model, number, times)
    windows = timeline.windows
    if len(marks):
        steps = CpuSteps(windows.names, marks[:-1], int(marks[-1]))
        windows = device_windows(steps, start, end, timeline.step)
    elif len(start):
        windows = Windows(windows.names, np.array([start.min(), end.max()], np.int64))
    moved = replace(
        timeline,
        start_ns=start,
        end_ns=end,
        launch_ns=_launches(model, number, times, start),
        windows=windows,
        host=NO_ACTIVITY,
        data_loading=EMPTY,
        parameter_search=EMPTY,
        actions=NO_ACTIONS,
        receiving=EMPTY,
        launching=EMPTY,
        depending=EMPTY,
    )
    order = np.argsort(start, kind="stable")
    # Operators of a collective's own thread are part of it, and have no task.
    return moved.filter(order[(tasks >= 0)[order]] if timeline.on_cpu else order)


def _find(model: Model, number: int) -> tuple[Timeline, Process, Int64]:
    index, tasks = model.place[number]
    return model.run.timelines[number], model.processes[index], tasks


def _shift(model: Model, number: int) -> int:
    """Return what to add to times on the shared clock for those of the timeline's own."""
    timeline, _, tasks = _find(model, number)
    placed = np.flatnonzero(tasks >= 0)[:1]
    return int((timeline.start_ns[placed] - model.graph.start_ns[tasks[placed]]).sum())


def _marks(model: Model, number: int, times: Times) -> Int64:
    """Return the start of each of the timeline's steps on the host, and the end of the last; empty without marks."""
    timeline, process, _ = _find(model, number)
    known = {name: i for i, name in enumerate(process.step_names)}
    places = [known[name] for name in timeline.windows.names if name in known]
    if len(places) != len(timeline.windows):
        return EMPTY[0]
    tasks = process.mark_tasks[[*places, places[-1] + 1]]
    marks: Int64 = times.start_ns[tasks] + _shift(model, number)
    return marks


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


def step_bounds(model: Model, number: int, times: Times, timeline: Timeline) -> Int64:
    """Return when each step of a timeline is over, preceded by when what came before the first one was.

    A step is over when the next begins on the host and all that was launched up to then has ended. In contrast to the
    bounds of the definitions, these never move apart when something gets faster: a device that is further ahead of its
    host starts a step later, not earlier. The first step begins no earlier than in the recording, so that it is no
    longer where what came before it gets faster.

    Args:
        timeline: the timeline at these times.
    """
    marks = _marks(model, number, times)
    if not len(marks):
        first = int(model.run.timelines[number].start_ns.min(initial=np.iinfo(np.int64).max))
        return np.array([first, max(first, int(timeline.end_ns.max(initial=first)))], np.int64)
    last = np.full(len(marks), np.iinfo(np.int64).min)
    counted = timeline.step >= BEFORE_FIRST
    np.maximum.at(last, timeline.step[counted] + 1, timeline.end_ns[counted])
    recorded = model.run.timelines[number]
    last[0] = max(last[0], int(recorded.end_ns[recorded.step == BEFORE_FIRST].max(initial=last[0])))
    bounds: Int64 = np.maximum.accumulate(np.maximum(last, marks))
    return bounds


# Figures of the same steps on all ranks, as recorded and replayed, and the range of their median.

WALL = FIGURES.index("wall_ns")
_CUT_OFF = 0.1
"""A last step shorter than this share of the median was cut off by the end of the recording."""
_RESAMPLES = 400
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

    times: Times
    length_ns: NDArray[np.int64]
    """From the end of one to the end of the next: timelines × steps."""
    ended_ns: NDArray[np.int64]
    """When the last of these steps ends, on each timeline's clock."""


class Outcome(StepLengths, frozen=True):
    """A model that was simulated, with the figures of its steps."""

    model: Model
    by_end: NDArray[np.int64]
    """Figures of each step, from the end of one to the end of the next: timelines × steps × figures."""


def choose(run: Run, whole: Run) -> StepSelection:
    """Choose the steps that all selected ranks have, without one that was cut off.

    Args:
        run: the run with the ranks and steps that were selected.
        whole: the run that they were selected from.

    Raises:
        DptraceError: no step is on all ranks.
    """
    numbers = {(t.rank, t.device): i for i, t in enumerate(whole.timelines)}
    own = [timeline.windows.names for timeline in run.timelines]
    steps = [name for name in own[0] if all(name in names for names in own)]
    if not steps:
        raise DptraceError(f"{run.path}: no step is on all ranks, so their steps can't be compared.")
    timelines = tuple(numbers[t.rank, t.device] for t in run.timelines)
    walls = recorded_figures(whole, _chosen(whole, timelines, steps))[:, :, WALL].mean(axis=0)
    if len(steps) > 1 and walls[-1] < _CUT_OFF * median(walls[:-1]):
        del steps[-1]
    return _chosen(whole, timelines, steps)


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


def _timelines(model: Model, chosen: StepSelection, times: Times) -> Iterator[tuple[Timeline, Int64, Int64]]:
    """Yield each chosen timeline at these times, the ends of its steps, and the places of those that are chosen."""
    for number, places in zip(chosen.timelines, chosen.places, strict=True):
        timeline = timeline_at(model, number, times)
        yield timeline, step_bounds(model, number, times, timeline), places


def outcome(model: Model, chosen: StepSelection) -> Outcome:
    """Simulate a model."""
    times = simulate(model.graph)
    by_end, ended = [], []
    for timeline, bounds, places in _timelines(model, chosen, times):
        figures = split(replace(timeline, windows=Windows(timeline.windows.names, bounds))).figures
        by_end.append(np.stack([figures[name] for name in FIGURES], axis=1)[places])
        ended.append(bounds[places[-1] + 1])
    table = chosen.of_all(np.stack(by_end))
    return Outcome(times, table[:, :, WALL], chosen.of_all(np.array(ended, np.int64)), model, table)


def step_lengths(model: Model, chosen: StepSelection) -> StepLengths:
    """Simulate a model; of its steps, only the lengths are computed."""
    times = simulate(model.graph)
    steps = [
        (np.diff(bounds)[places], bounds[places[-1] + 1]) for _, bounds, places in _timelines(model, chosen, times)
    ]
    length, ended = zip(*steps, strict=True)
    return StepLengths(times, chosen.of_all(np.stack(length)), chosen.of_all(np.array(ended, np.int64)))


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
    graph = model.graph
    durations = scaled(graph.duration_ns, graph.of(TaskKind.CALL), 0)
    return with_times(model, durations, scaled(graph.edge.lag_ns, graph.edge.of(EdgeKind.HOST, EdgeKind.THREAD), 0))


# How long a step takes in the long run: no shorter than the host alone needs, nor than the devices alone.

_HOST_WAITS = (EdgeKind.SYNCHRONIZE, EdgeKind.HIDDEN, EdgeKind.QUEUE)


class SteadyState(msgspec.Struct, frozen=True):
    """The length of a step in ns that each side sets on its own: the median step of the slowest rank."""

    host_ns: int
    device_ns: int

    @property
    def step_ns(self) -> int:
        """The length of a step in the long run."""
        return max(self.host_ns, self.device_ns)


def steady_state(model: Model) -> SteadyState:
    """Replay the hosts as if they never waited for devices, and the devices as if hosts took no time.

    A recording of a few steps need not be in its steady state: at its start the host may be ahead of the device by
    more than its queue holds later, or behind.
    """
    edge = model.graph.edge
    free = with_times(model, lag_ns=np.where(edge.of(*_HOST_WAITS), NEVER, edge.lag_ns))
    graph = free.graph
    on_device = graph.of(TaskKind.MEMORY, TaskKind.COMMUNICATION, TaskKind.TRANSFER)
    if not model.run.on_cpu:
        on_device |= graph.of(TaskKind.COMPUTE)
    hosts = with_times(free, np.where(on_device, 0, graph.duration_ns))
    devices = without_host(with_times(free, np.where(graph.of(TaskKind.MARK), 0, graph.duration_ns)))
    host, device = simulate(hosts.graph), simulate(devices.graph)
    return SteadyState(_host_step(model, host), _device_step(model, device))


def _host_step(model: Model, times: Times) -> int:
    """Return the median step of the slowest host, from mark to mark; 0 without marks."""
    lengths = [np.diff(times.start_ns[process.mark_tasks]) for process in model.processes if len(process.host.marks)]
    return _slowest(lengths)


def _device_step(model: Model, times: Times) -> int:
    """Return the median step of the slowest device: its work, or from the end of one step's work to that of the next.

    Work that a host without delays launches before the first step is none of the time after it.
    """
    lengths, work = [], []
    for number in range(len(model.run.timelines)):
        timeline = timeline_at(model, number, times)
        lengths.append(np.diff(step_bounds(model, number, times, timeline)))
        work.append(_own_work(timeline))
    return max(_slowest(lengths), _slowest(work))


def _own_work(timeline: Timeline) -> Int64:
    """Return how long compute and copies that each step launched keep a device busy."""
    own = (timeline.step >= 0) & (timeline.kind != Kind.COMMUNICATION)
    steps = len(timeline.windows)
    if not own.any():
        return np.zeros(steps, np.int64)
    # Steps one after the other on one axis, so that the work of one does not cover another's.
    first = timeline.start_ns[own].min()
    span = int(timeline.end_ns[own].max() - first) + 1
    begin = timeline.step[own].astype(np.int64) * span - first
    busy = union(timeline.start_ns[own] + begin, timeline.end_ns[own] + begin)
    return np.diff(covered(busy, np.arange(steps + 1) * span))


def _slowest(lengths: list[Int64]) -> int:
    steps = min((len(one) for one in lengths), default=0)
    return int(median(np.stack([one[:steps] for one in lengths]).max(axis=0))) if steps else 0

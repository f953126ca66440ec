"""From simulated times back to timelines: those of a run that went differently, and the lengths of its steps."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from dptrace.analysis.per_gpu.split import FIGURES, split
from dptrace.core.intervals import EMPTY, Int64
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.per_rank.process import Process
from dptrace.replay.simulation.simulate import Times
from dptrace.timeline.model import BEFORE_FIRST, NO_ACTIONS, NO_ACTIVITY, UNKNOWN, Timeline, Windows
from dptrace.timeline.steps import CpuSteps, device_windows

__all__ = ["parts_by_end", "step_bounds", "timeline_at"]


def timeline_at(model: Model, number: int, times: Times) -> Timeline:
    """Return a timeline of the run with simulated times, on its own clock; its steps are those of the definitions.

    What the timeline says about the host is left out, since a simulation does not have it.
    """
    timeline, process, tasks = _find(model, number)
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
        launch_ns=_launches(timeline, process, tasks, times, start),
        windows=windows,
        host=NO_ACTIVITY,
        data_loading=EMPTY,
        parameter_search=EMPTY,
        actions=NO_ACTIONS,
        receiving=EMPTY,
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
    known = {name: i for i, name in enumerate(process.events.step_names)}
    places = [known[name] for name in timeline.windows.names if name in known]
    if len(places) != len(timeline.windows):
        return EMPTY[0]
    tasks = process.mark_tasks[[*places, places[-1] + 1]]
    marks: Int64 = times.start_ns[tasks] + _shift(model, number)
    return marks


def _launches(timeline: Timeline, process: Process, tasks: Int64, times: Times, start: Int64) -> Int64:
    """Return when each interval was launched, on the timeline's clock; *start* is when it starts."""
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
    launch[operator] += times.start_ns[tasks[operator]] - process.start_ns[tasks[operator] - process.first_task]
    return launch


def step_bounds(model: Model, number: int, times: Times, timeline: Timeline) -> Int64:
    """Return when each step of a timeline is over, preceded by when what came before the first one was.

    A step is over when the next begins on the host and all that was launched up to then has ended. In contrast to the
    bounds of the definitions, these never move apart when something gets faster: a device that is further ahead of its
    host starts a step later, not earlier.

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
    bounds: Int64 = np.maximum.accumulate(np.maximum(last, marks))
    return bounds


def parts_by_end(model: Model, number: int, times: Times) -> tuple[Int64, Int64]:
    """Return these bounds, and the figures of each step between them: steps × figures, in the order of FIGURES."""
    timeline = timeline_at(model, number, times)
    bounds = step_bounds(model, number, times, timeline)
    figures = split(replace(timeline, windows=Windows(timeline.windows.names, bounds))).figures
    return bounds, np.stack([figures[name] for name in FIGURES], axis=1)

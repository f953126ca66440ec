"""Steps and phases: which step an interval belongs to, and whether it is forward, backward or optimizer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import EMPTY, Int64, IntervalSet, covered, mask_of, median, subtract, union
from dptrace.core.notes import Note
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.collectives import last_enclosing
from dptrace.timeline.model import (
    AFTER_LAST,
    BEFORE_FIRST,
    BETWEEN,
    NO_ACTIONS,
    Action,
    Actions,
    Kind,
    Phase,
    Timeline,
    Windows,
)
from dptrace.timeline.phase_labels import UNLABELED

# Where steps start and end: on the CPU by the profiler's marks, on each device by what was launched.
#
# Also the selection of steps of a timeline, whose figures do not change.

WHOLE_TRACE = "whole trace"
"""Name of the only window of a trace without step marks."""


class CpuSteps(msgspec.Struct, frozen=True):
    """The steps on the CPU; empty if the trace has no marks."""

    names: tuple[str, ...]
    start_ns: Int64
    end_ns: int
    """End of the last step's mark."""
    notes: tuple[Note, ...] = ()
    """Which marks do not count."""
    goes_on: bool = False
    """Whether a step whose end is not known comes after them."""

    def __len__(self) -> int:
        return len(self.names)

    def index_at(self, times: Int64) -> NDArray[np.int32]:
        """Return the step of each time; BEFORE_FIRST or AFTER_LAST outside all steps."""
        if not len(self):
            return np.zeros(len(times), np.int32)
        step = np.searchsorted(self.start_ns, times, side="right") - 1
        return np.where(times >= self.end_ns, AFTER_LAST, np.where(step < 0, BEFORE_FIRST, step)).astype(np.int32)


_PROFILER_STEP = "ProfilerStep#"


def cpu_steps(trace: Trace) -> CpuSteps:
    """Find the ``ProfilerStep#k`` marks on the CPU; their copies on a GPU follow other clocks and are not used.

    Of a trace of several windows, the time between two is a step whose name begins with BETWEEN.
    """
    if trace.later_ns:
        return _joined_steps([steps for steps in map(cpu_steps, trace.windows) if len(steps)])
    on_cpu = (trace.category == Category.ANNOTATION) | (trace.category == Category.CPU_OP)
    marks = np.flatnonzero(on_cpu & trace.named(_PROFILER_STEP))
    if not len(marks):
        return CpuSteps((), EMPTY[0], 0)
    marks, series = _one_series(trace, marks)
    # A profiler started twice in one process marks a step on two threads: the first to start counts.
    _, first = np.unique(trace.name[marks], return_index=True)
    marks = marks[np.sort(first)]
    marks, end, last = _ended(trace, marks)
    work = trace.start_ns[trace.category >= Category.LAUNCH]
    if len(work) and not ((work >= trace.start_ns[marks].min(initial=end)) & (work < end)).any():
        text = "no work was launched in its ProfilerStep marks, which are of another clock or process."
        return CpuSteps((), EMPTY[0], 0, (Note(text, file=Path(trace.path).name),))
    names, start, lost = _with_lost(trace, marks)
    notes = tuple(note for note in (series, last, lost) if note is not None)
    return CpuSteps(names, start, end, notes, last is not None)


def _joined_steps(windows: Sequence[CpuSteps]) -> CpuSteps:
    if not windows:
        return CpuSteps((), EMPTY[0], 0)
    names, start = list(windows[0].names), [windows[0].start_ns]
    for before, own in pairwise(windows):
        names += [f"{BETWEEN}{before.names[-1]}", *own.names]
        start += [np.array([before.end_ns]), own.start_ns]
    notes = tuple(note for own in windows for note in own.notes)
    return CpuSteps(tuple(names), np.concatenate(start), windows[-1].end_ns, notes, windows[-1].goes_on)


_TOUCHING_NS, _TOUCHING = 1_000, 0.25
"""Marks of one profiler overlap by less than this, or this share of a mark whose end is wrong."""
_TINY = 0.02
"""Share of the usual step below which the last mark has not ended, or holds no step."""
_LITTLE = 0.1
"""Share of the work of the usual step below which the last mark holds no step."""


def _work_times(trace: Trace) -> Int64:
    """Return when a rank's work was launched, ascending, or began where that is not known; on a CPU, operators."""
    device = trace.category >= Category.KERNEL
    launch = trace.launch[trace.launch >= 0] if len(trace.launch) else EMPTY[0]
    if len(launch):
        return np.sort(trace.start_ns[launch])
    return trace.start_ns[device] if device.any() else trace.start_ns[trace.category == Category.CPU_OP]


def _one_series(trace: Trace, marks: Int64) -> tuple[Int64, Note | None]:
    """Return the marks of one profiler: of several, those of the one with most work in its marks."""
    series: list[list[int]] = []
    ends: list[int] = []
    for mark in marks.tolist():
        start, end = int(trace.start_ns[mark]), int(trace.end_ns[mark])
        room = max(_TOUCHING_NS, _TOUCHING * (end - start))
        free = next((i for i, last in enumerate(ends) if start > last - room), len(ends))
        if free == len(ends):
            series.append([])
            ends.append(0)
        series[free].append(mark)
        ends[free] = end
    if len(series) == 1:
        return marks, None
    work = _work_times(trace)

    def held(chosen: list[int]) -> tuple[int, int]:
        start, end = trace.start_ns[chosen], trace.end_ns[chosen]
        return int(np.diff(np.searchsorted(work, np.stack((start, end), axis=1))).sum()), int((end - start).sum())

    best = max(series, key=held)
    if len({trace.names[number] for number in trace.name[marks].tolist()}) == len(best):
        return marks, None  # the same steps, marked on several threads
    text = (
        "steps are marked {}, since several profilers recorded at once: those of the profiler with most work in its "
        "marks count ({})."
    )
    names = f"{trace.names[trace.name[best[0]]]} to {trace.names[trace.name[best[-1]]]}"
    how = "twice" if len(series) == 2 else f"{len(series)} times"
    return np.array(best, np.int64), Note(text, (how, names), Path(trace.path).name)


def _ended(trace: Trace, marks: Int64) -> tuple[Int64, int, Note | None]:
    """Return the marks that are steps, when the last one ends, and a note on a last mark that is none.

    A mark that the profiler has not ended has no length, or nearly none, as has one that holds no step. When its step
    ends is not known.
    """
    start, end = trace.start_ns[marks], trace.end_ns[marks]
    usual = float(median(np.diff(start))) if len(marks) > 1 else 0.0
    if end[-1] - start[-1] > _TINY * usual or (end[-1] > start[-1] and _holds_work(trace, marks)):
        # A mark that ends long after all else is wrong there.
        rest = trace.end_ns[~trace.named(_PROFILER_STEP)].max(initial=0)
        return marks, int(min(end[-1], rest + usual) if rest > start[-1] and usual else end.max()), None
    text = "{} left out: its mark has not ended, or holds no step, so how long it took is unknown."
    note = Note(text, (trace.names[trace.name[marks[-1]]],), Path(trace.path).name)
    return marks[:-1], int(max(end[:-1].max(initial=0), start[-1])), note


_HOLE = 0.5
"""Share of the usual step from which the time between two marks is that of a step whose mark was lost."""


def _with_lost(trace: Trace, marks: Int64) -> tuple[tuple[str, ...], Int64, Note | None]:
    """Return names and starts of the steps, with those whose mark alone is missing between their neighbours' marks."""
    names, start, end = [trace.names[i] for i in trace.name[marks]], trace.start_ns[marks], trace.end_ns[marks]
    numbers = [int(text) if (text := name.removeprefix(_PROFILER_STEP)).isdecimal() else -1 for name in names]
    usual = float(median(end - start)) if len(marks) else 0.0
    holes = [k for k in range(len(marks) - 1) if numbers[k + 1] == numbers[k] + 2 and numbers[k] >= 0]
    holes = [k for k in holes if start[k + 1] - end[k] > _HOLE * usual]
    if not holes:
        return tuple(names), start, None
    work = _work_times(trace)
    lost = [k for k in holes if np.searchsorted(work, start[k + 1]) > np.searchsorted(work, end[k])]
    found = [f"{_PROFILER_STEP}{numbers[k] + 1}" for k in lost]
    for k, name in zip(reversed(lost), reversed(found), strict=True):
        names.insert(k + 1, name)
    text = "the mark of {} is missing: the step is the time between the marks of its neighbours."
    note = Note(text, (" and ".join(found[:3]),), Path(trace.path).name) if lost else None
    return tuple(names), np.insert(start, [k + 1 for k in lost], end[lost]), note


def _holds_work(trace: Trace, marks: Int64) -> bool:
    """Return whether the last mark holds a notable part of the work that each of the others does."""
    work = _work_times(trace)
    held = np.diff(np.searchsorted(work, np.stack((trace.start_ns[marks], trace.end_ns[marks]), axis=1)))[:, 0]
    return bool(held[-1] > _LITTLE * median(held[:-1]))


def device_windows(cpu: CpuSteps, start: Int64, end: Int64, step: NDArray[np.int32]) -> Windows:
    """Divide one device's time into steps, without gap or overlap.

    Window k starts at b_k = min(first start of k's intervals, max(CPU start of k, last end of what was launched
    before k)), never before b_{k-1}; the last ends at max(CPU end of the last step, last end of its intervals).
    So work that runs behind the CPU counts for the step that launched it.

    Args:
        cpu: the steps on the CPU; without any, the whole trace is one window.
        start, end: the device's intervals in ns, in any order.
        step: the step that launched each.
    """
    if not len(cpu):
        return Windows((WHOLE_TRACE,), np.array([start.min(), end.max()], np.int64))
    count = len(cpu)
    never = np.iinfo(np.int64)
    first = np.full(count, never.max, np.int64)
    last = np.full(count + 1, never.min, np.int64)
    inside = step >= 0
    np.minimum.at(first, step[inside], start[inside])
    known = step != AFTER_LAST
    np.maximum.at(last, step[known] + 1, end[known])
    before = np.maximum.accumulate(last)[:-1]
    bounds = np.maximum.accumulate(np.minimum(first, np.maximum(cpu.start_ns, before)))
    final = max(cpu.end_ns, int(last[-1]), int(bounds[-1]))
    if cpu.goes_on and (after := start[step == AFTER_LAST]).size:
        final = max(min(final, int(after.min())), int(bounds[-1]))
    return Windows(cpu.names, np.append(bounds, final))


def moved_steps(step: NDArray[np.int32], by: int) -> NDArray[np.int32]:
    """Return indices of steps, or of what else steps have, as where others come before them; negative ones stay."""
    return np.where(step >= 0, step + by, step).astype(np.int32)


def select_steps(timeline: Timeline, low: int, high: int) -> tuple[Timeline, NDArray[np.bool_]]:
    """Keep the steps from index *low* to *high*, inclusive, and the intervals that affect them; also return their mask.

    These are the steps' own intervals, and any that overlap the steps or their intervals: a collective that runs into
    the next step may be overlapped by that step's compute.
    """
    windows = timeline.windows.part(low, high)
    step = timeline.step
    moved = np.where(step > high, AFTER_LAST, np.where((step >= 0) & (step < low), BEFORE_FIRST, step))
    moved = np.where(moved >= 0, moved - low, moved).astype(np.int32)
    own = moved >= 0
    begin = min([int(windows.bounds[0]), *timeline.start_ns[own][:1].tolist()])
    end = max(int(windows.bounds[-1]), int(timeline.end_ns[own].max(initial=windows.bounds[-1])))
    chosen = own | ((timeline.start_ns < end) & (timeline.end_ns > begin))
    actions = timeline.actions.take((timeline.actions.step >= low) & (timeline.actions.step <= high))
    actions = replace(actions, step=(actions.step - low).astype(np.int32))
    host = replace(timeline.host, step_ns=timeline.host.step_ns[low : high + 1])
    products = None if timeline.products is None else timeline.products.steps(low, high)
    parts = {"windows": windows, "step": moved, "actions": actions, "host": host, "products": products}
    return replace(timeline, **parts).take(chosen), chosen


# The pipeline schedule as one GPU ran it: forward and backward of each stage and micro-batch.
#
# The host labels what it launches: ``PP:0F1`` (torch's schedules: stage 0, forward of micro-batch 1), or ``Forward 1``
# (GPipe's, without a stage). An action is the work launched during such a label, on any thread: the autograd engine's
# threads, which have no label, launch backward's kernels while the labelled thread waits.

MESSAGES = ("send", "recv", "send_recv")
"""Kinds of collectives between two stages."""

_ACTION = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})(?![\w])")
_RUNTIME = "PP:"
_PLAIN = re.compile(r"(Forward|Backward) (\d{1,6})")


class _LabeledAction(NamedTuple):
    """One action that a label names."""

    stage: int
    kind: Action
    micro_batch: int


def _read(name: str) -> tuple[_LabeledAction, ...]:
    """Parse the actions of a label: one, or a forward and a backward that overlap; else none.

    >>> _read("PP:0F1")
    (_LabeledAction(stage=0, kind=<Action.F: 0>, micro_batch=1),)
    """
    if name.startswith(_RUNTIME):
        return tuple(_LabeledAction(int(s), Action[kind], int(m)) for s, kind, m in _ACTION.findall(name))
    if plain := _PLAIN.fullmatch(name):
        return (_LabeledAction(-1, Action[plain[1][0]], int(plain[2])),)
    return ()


def _labels(trace: Trace) -> dict[int, tuple[_LabeledAction, ...]]:
    """Return the actions of the labels in the string table; labels without a stage only if none has one."""
    found = {i: labeled for i, labeled in enumerate(map(_read, trace.names)) if labeled}
    named = {i: labeled for i, labeled in found.items() if labeled[0].stage >= 0}
    return named or found


def _marks(trace: Trace, names: list[int]) -> NDArray[np.bool_]:
    on_cpu = (trace.category == Category.ANNOTATION) | (trace.category == Category.CPU_OP)
    marks: NDArray[np.bool_] = on_cpu & np.isin(trace.name, names)
    return marks


def with_actions(trace: Trace, timeline: Timeline) -> Timeline:
    """Add the actions of a pipeline schedule to a timeline, if there is one."""
    actions = actions_of(trace, timeline)
    if not len(actions):
        return timeline
    received = (trace.category <= Category.ANNOTATION) & trace.named("gloo:recv", "c10d::recv")
    return replace(timeline, actions=actions, receiving=union(trace.start_ns[received], trace.end_ns[received]))


def actions_of(trace: Trace, timeline: Timeline) -> Actions:
    """Return the actions of the schedule on one device; none where the file has no labels.

    An action starts with the first and ends with the last compute launched under its label; the receive before and the
    send after are not part of it. Under a label of two actions, compute in the backward phase belongs to the backward.
    """
    labels = _labels(trace)
    named = any(labeled[0].stage >= 0 for labeled in labels.values())
    if not labels or not (named or any(c.kind in MESSAGES for c in timeline.collectives)):
        return NO_ACTIONS
    events = np.flatnonzero(_marks(trace, list(labels)))
    labeled = [(event, action) for event in events.tolist() for action in labels[int(trace.name[event])]]
    owner = _owners(trace, timeline, labeled)
    used, action = np.unique(owner[owner >= 0], return_inverse=True)
    compute = owner >= 0
    start, end = timeline.start_ns[compute], timeline.end_ns[compute]
    low, high = np.full(len(used), np.iinfo(np.int64).max), np.zeros(len(used), np.int64)
    np.minimum.at(low, action, start)
    np.maximum.at(high, action, end)
    step = np.zeros(len(used), np.int32)
    step[action] = timeline.step[compute]
    chosen = [labeled[i] for i in used.tolist()]
    kind = np.array([action.kind for _, action in chosen], np.uint8)
    label_events = np.array([event for event, _ in chosen], np.int64)
    table = Actions(
        stage=np.array([action.stage for _, action in chosen], np.int32),
        micro_batch=np.array([action.micro_batch for _, action in chosen], np.int32),
        kind=kind,
        step=step,
        start_ns=low,
        end_ns=high,
        busy_ns=_busy(low, high, kind, (start, end), kind[action] != Action.F),
        called_ns=trace.start_ns[label_events],
        returned_ns=trace.end_ns[label_events],
    )
    return table.take(np.lexsort((high, low)))


def _owners(trace: Trace, timeline: Timeline, labeled: list[tuple[int, _LabeledAction]]) -> Int64:
    """Return for each interval the index in *labeled* of the action that launched it, or -1.

    Only compute belongs to actions. Labels of one process do not overlap: the last that started counts.
    """
    called = trace.start_ns[[event for event, _ in labeled]]
    returned = trace.end_ns[[event for event, _ in labeled]]
    begun = np.searchsorted(called, timeline.launch_ns, side="right")
    place = np.maximum(begun - 1, 0)
    forward = np.array([action.kind == Action.F for _, action in labeled], np.bool_)
    # A label of two actions is listed twice, and the search finds the second.
    twin = np.append(False, called[1:] == called[:-1])[place]
    backward = timeline.phase == Phase.BACKWARD
    other = twin & (forward[place] == backward) & (forward[np.maximum(place - 1, 0)] != backward)
    place = np.where(other, place - 1, place)
    inside = (begun > 0) & (timeline.launch_ns < returned[place]) & (timeline.kind == Kind.COMPUTE)
    return np.where(inside, place, -1)


def _busy(
    start: Int64, end: Int64, kind: NDArray[np.uint8], compute: IntervalSet, backward: NDArray[np.bool_]
) -> Int64:
    """Compute the busy time of each action; time under a backward's compute does not count for a forward."""
    first, last = compute
    behind = union(first[backward], last[backward])
    ahead = subtract(union(first[~backward], last[~backward]), behind)
    inside = [covered(when, end) - covered(when, start) for when in (ahead, behind)]
    busy: Int64 = np.where(kind == Action.F, *inside)
    return busy


# Forward, backward, optimizer or other: derived from how work was launched, never from its name.

MARK = "dptrace::"
"""Start of the labels that dptrace's recorder puts around a phase: ``dptrace::forward`` …"""
WRAPPER = "autograd::engine::evaluate_function"
"""Start of the name of the event in which the autograd engine runs one node."""

_SHARDS_BACKWARD = (
    # Labels of the hooks of fully_shard and FSDP1; the last of them run after autograd's last node.
    *("FSDP::pre_backward", "FSDP::post_backward", "FSDP::root_post_backward"),
    *("FullyShardedDataParallel._pre_backward", "FullyShardedDataParallel._post_backward"),
)
_OPTIMIZER, _OPTIMIZER_STEP = "Optimizer.", "Optimizer.step"
"""Starts of the labels that torch puts around all that an optimizer does, and around its step."""
_MARKED = {f"{MARK}{phase.name.lower()}": phase for phase in Phase} | {f"{MARK}evaluation": Phase.OTHER}
_CLOSURE = f"{MARK}closure"
"""The recorder's mark around each call of a closure by ``Optimizer.step``: the code inside is like the loop's own."""
_NODE = re.compile(r"(?:Backward\d*|^torch::autograd::AccumulateGrad)$")


def phases(
    trace: Trace,
    steps: CpuSteps,
    thread: NDArray[np.int32],
    time: Int64,
    said: NDArray[np.uint8],
    replayed: NDArray[np.bool_] | None = None,
) -> NDArray[np.uint8]:
    """Return the phase of the work launched at each (thread, time); UNLABELED for graphs of which nothing tells it.

    The first match counts:

    1. a mark of dptrace's recorder;
    2. of a node of the autograd engine, a label that says backward, optimizer or other, FSDP's backward labels,
       ``Optimizer.*``, and the mark of a closure that ``Optimizer.step`` calls, the innermost; directly inside a
       closure, rules 4 to 6 decide;
    3. inside an ``Optimizer.step`` whose closures are not marked, but before the end of the last backward function
       that began within it: forward, by the closure that the step calls;
    4. inside a label that says forward: forward; so what backward recomputes under such a label stays backward;
    5. in a step with backward work: forward if launched before the step's last backward function ended, else other;
    6. in a trace without backward: forward, but nothing tells the phase of a graph that no operator launched.

    Args:
        said: the phase that each event's label says (:func:`~dptrace.timeline.phase_labels.labeled_phases`).
        replayed: what CUDA graphs launched; they may hold any phase, backward too.
    """
    # From the last rule to the first: each sets what it matches over what later rules have set.
    functions = _backward_functions(trace)
    phase = _by_order(trace, steps, np.flatnonzero(functions), time)
    if replayed is not None and replayed.any() and not functions.any():
        # A compiled module, and a callable made of graphs, launch those of their forward in an operator.
        operators = (trace.category == Category.CPU_OP) & ~trace.named(_PROFILER_STEP)
        if operators.any():
            phase[replayed & (last_enclosing(trace, operators, thread, time) < 0)] = UNLABELED
    phase[last_enclosing(trace, said == Phase.FORWARD, thread, time) >= 0] = Phase.FORWARD
    on_cpu = (trace.category == Category.ANNOTATION) | (trace.category == Category.CPU_OP)
    backward = functions | (said == Phase.BACKWARD) | (on_cpu & trace.named(*_SHARDS_BACKWARD))
    optimizer = (said == Phase.OPTIMIZER) | (on_cpu & trace.named(_OPTIMIZER) & (said == UNLABELED))
    closure = on_cpu & trace.named(_CLOSURE)
    other = said == Phase.OTHER
    innermost = last_enclosing(trace, backward | optimizer | closure | other, thread, time)
    found = (innermost >= 0) & ~closure[innermost]
    in_optimizer = found & optimizer[innermost]
    in_closure = in_optimizer & (time < _closure_end(trace, functions, backward, optimizer, closure)[innermost])
    phase[found & ~in_optimizer] = Phase.BACKWARD
    phase[in_optimizer] = Phase.OPTIMIZER
    phase[in_closure] = Phase.FORWARD
    phase[found & other[innermost]] = Phase.OTHER
    marks = on_cpu & trace.matching(_MARKED.__contains__)
    mark = last_enclosing(trace, marks, thread, time)
    marked = np.flatnonzero(mark >= 0)
    meaning = np.array([_MARKED.get(name, Phase.OTHER) for name in trace.names], np.uint8)
    phase[marked] = meaning[trace.name[mark[marked]]]
    return phase


def _closure_end(
    trace: Trace,
    functions: NDArray[np.bool_],
    backward: NDArray[np.bool_],
    optimizer: NDArray[np.bool_],
    closure: NDArray[np.bool_],
) -> Int64:
    """Return for each event when the closure that it calls ends its last backward function, in ns.

    The functions may run on the engine's own threads, so time alone shows which began within an ``Optimizer.step``.
    Events that are no ``Optimizer.step``, or call no closure, have the smallest time. So do steps whose closures are
    marked, and those that run inside backward: they are in a gradient hook, and other threads of the engine go on.
    """
    until = np.full(len(trace), np.iinfo(np.int64).min)
    begun = np.flatnonzero(functions)
    steps = np.flatnonzero(optimizer & trace.named(_OPTIMIZER_STEP))
    if not len(begun) or not len(steps):
        return until
    steps = steps[last_enclosing(trace, backward, trace.thread[steps], trace.start_ns[steps]) < 0]
    marks = np.flatnonzero(closure)
    around_marks = last_enclosing(trace, optimizer, trace.thread[marks], trace.start_ns[marks])
    steps = steps[~mask_of(around_marks, len(trace))[steps]]
    first = np.searchsorted(trace.start_ns[begun], trace.start_ns[steps])
    last = np.searchsorted(trace.start_ns[begun], trace.end_ns[steps], side="right")
    # The latest end of those within; one entry beyond all for reduceat, which returns it where there is none.
    ends = np.append(trace.end_ns[begun], until[:1])
    latest = np.maximum.reduceat(ends, np.stack((first, last), axis=1).reshape(-1))[::2]
    until[steps[last > first]] = latest[last > first]
    return until


def _backward_functions(trace: Trace) -> NDArray[np.bool_]:
    ops: NDArray[np.bool_] = trace.category == Category.CPU_OP
    wrapped = ops & trace.named(WRAPPER)
    if wrapped.any():
        return wrapped
    # Before torch 1.9 the engine had no event of its own: the nodes' operators replace it.
    return ops & trace.matching(_NODE.search)


def backward_starts(trace: Trace) -> Int64:
    """Return when each backward function began, ascending."""
    return trace.start_ns[_backward_functions(trace)]


def _by_order(trace: Trace, steps: CpuSteps, backward: Int64, time: Int64) -> NDArray[np.uint8]:
    """Separate forward from other by launch time, for work without other evidence."""
    if not len(backward):
        return np.full(len(time), Phase.FORWARD, np.uint8)
    # The times before the first step and after the last are two more steps, last and second to last.
    last_end = np.full(len(steps) + 2, np.iinfo(np.int64).min, np.int64)
    np.maximum.at(last_end, steps.index_at(trace.start_ns[backward]), trace.end_ns[backward])
    return np.where(time < last_end[steps.index_at(time)], Phase.FORWARD, Phase.OTHER).astype(np.uint8)


# Forward work repeated in backward since its results were discarded: activation checkpointing.
#
# Reentrant checkpointing repeats it in an autograd function, ``CheckpointFunctionBackward``, and runs its backward in
# nodes nested in that. Otherwise it is repeated where the first discarded tensor is needed: at the start of an ordinary
# node, such as ``ReluBackward0``, before the node's own work. Operators that modules call and derivatives do not show
# it.

_REENTRANT = re.compile("CheckpointFunctionBackward$")
# torch numbers the nodes that it generates. A node without a number is a user's autograd function, whose backward may
# call linear() for its own purpose, so it is not classified.
_GENERATED = re.compile(r"Backward\d+$")
# Derivatives, second ones too, use the operators below these (convolution, mm, native_layer_norm).
_FORWARD = {
    *(f"aten::conv{kind}{d}d" for kind in ("", "_transpose") for d in (1, 2, 3)),
    *(f"aten::{kind}_norm" for kind in ("batch", "layer", "group", "instance", "rms")),
    *(f"aten::{name}" for name in ("linear", "bilinear", "embedding", "embedding_bag", "lstm", "gru")),
    *(f"aten::{name}" for name in ("relu", "relu_", "gelu", "silu", "silu_", "dropout", "dropout_")),
    *(f"aten::{name}" for name in ("scaled_dot_product_attention", "max_pool1d", "max_pool2d", "max_pool3d")),
}
_COMPILED = "CompiledFunction"
"""The forward graph of a compiled module."""


def is_recomputed(trace: Trace, thread: NDArray[np.int32], time: Int64) -> NDArray[np.bool_]:
    """Return whether the work launched at each (thread, time) is forward work repeated in backward.

    Errs on the side of too little: work of a block after the last operator that shows it is not counted, nor is what a
    compiled backward graph repeats within itself.
    """
    ops = trace.category == Category.CPU_OP
    nodes = ops & trace.named(WRAPPER)
    checkpoint = nodes & trace.matching(_REENTRANT.search)
    again = np.flatnonzero(ops & trace.matching((_FORWARD | {_COMPILED}).__contains__))
    inside = last_enclosing(trace, nodes, trace.thread[again], trace.start_ns[again])
    shown = (inside >= 0) & (trace.matching(_GENERATED.search)[inside] | trace.named(_COMPILED)[again])
    if not (checkpoint.any() or shown.any()):
        return np.zeros(len(time), np.bool_)
    until = np.full(len(trace), np.iinfo(np.int64).min)
    until[checkpoint] = trace.end_ns[checkpoint]
    np.maximum.at(until, inside[shown], trace.end_ns[again[shown]])
    node = last_enclosing(trace, nodes, thread, time)
    return (node >= 0) & (time <= until[node])


def with_usual_steps(timelines: Sequence[Timeline]) -> list[int]:
    """Return the numbers of the timelines that have steps of the run, not others, as one has whose steps are unmarked.

    Where most timelines share steps, these are the run's.
    """
    names = [timeline.windows.names for timeline in timelines]
    usual = set(max(Counter(names).items(), key=lambda pair: pair[1])[0]) if names else set[str]()
    return [number for number, own in enumerate(names) if usual.intersection(own)]

"""Build a rank's timelines from its columns: one per GPU in the file, or one for a run on CPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, IntervalSet, mask_of, subtract, union, unique
from dptrace.core.notes import (
    ALL_STEPS,
    COLLECTIVES,
    GPU_EVENTS,
    LAUNCHES,
    MARKS,
    OPERATORS,
    PHASES_NEED,
    RECORDS,
    Note,
)
from dptrace.core.patterns import Patterns
from dptrace.core.units import plural, share
from dptrace.errors import TraceError
from dptrace.readers.communication import GLOO_MESSAGES, GLOO_PREFIX, is_communication
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.collectives import (
    WAITS,
    collectives_of,
    enqueuing_operator,
    holding,
    labels_of,
    last_enclosing,
    launches,
    outermost,
    requested_collectives,
)
from dptrace.timeline.host_events import DeviceWork, host_activity
from dptrace.timeline.launch_calls import late_starts
from dptrace.timeline.model import BEFORE_FIRST, UNKNOWN, Collective, HostActivity, Kind, Phase, Products, Timeline
from dptrace.timeline.phase_labels import UNLABELED, Work, label_notes, labeled_phases
from dptrace.timeline.steps import (
    WHOLE_TRACE,
    WRAPPER,
    CpuSteps,
    cpu_steps,
    device_windows,
    is_recomputed,
    phases,
    with_actions,
)

_HIDES_PRODUCTS = re.compile("GraphLaunch|triton_tem_")
"""In the names of calls and kernels in place of products of matrices, whose operators are not recorded."""
_GRAPH = re.compile("GraphLaunch")
"""In the names of the calls that launch a graph: cudaGraphLaunch, cuGraphLaunch, hipGraphLaunch."""

# Events that only wrap operators, enqueue a collective or wait for one, and labels that older torch records as
# operators.
_NO_COMPUTE = (
    *(WRAPPER, "c10d::", "c10d_functional::", "_c10d_functional::", "_c10d_functional_autograd::", *WAITS),
    *("ProfilerStep#", "Optimizer.", "DistributedDataParallel."),
)
_DDP_LABELS = (
    "DistributedDataParallel.",
    "torch::distributed::reducer",
    "torch.distributed.ddp",
    "torch::distributed::ddp",
)
_REQUESTS = ("c10d::allreduce_", "c10d::_allgather", "c10d::allgather", "c10d::reduce_scatter", "c10d::_reduce_scatter")
"""Operators that request the collectives of a training's gradients and parameters, which gloo annotates."""
CPU = -1
"""Device index of a run without a GPU."""
_MAX_LACKING = 0.1
"""Share of operators without records of the GPU from which a file that is cut gives no figures."""
_STRETCHES, _MIN_OPERATORS = 50, 1000
"""With fewer operators, a stretch may well hold none that launches a kernel."""


def build_timelines(
    trace: Trace, rank: int, patterns: Sequence[str] = (), phase_labels: Sequence[str] = ()
) -> tuple[Timeline, ...]:
    """Build the timelines of one rank.

    Args:
        patterns: regular expressions of further communication kernels.
        phase_labels: ``REGEX=PHASE``, the phase of work under labels that match.

    Raises:
        TraceError: the file has GPU calls without GPU events, or neither GPU events nor operators.
    """
    on_device = (trace.category == Category.KERNEL) | (trace.category == Category.MEMORY)
    lacking = _share_without_gpu(trace) if trace.cut and (trace.gpus or on_device.any()) else 0.0
    if lacking > _MAX_LACKING:
        raise TraceError(
            f"{trace.path}: it ends in the middle, and torch.profiler writes a GPU's records last: those of "
            f"{100 * lacking:.0f} % of the operators are missing, and idle time would be wrong. Copy the file again, "
            "or record again."
        )
    steps = cpu_steps(trace)
    notes = [*trace.notes, *steps.notes]
    if not len(steps):
        text = (
            f"no ProfilerStep marks{' that count' * bool(steps.notes)}, so the whole trace counts as one step (call "
            "profiler.step() after each step, or name the range of a step with --step-range)."
        )
        notes.append(Note(text, file=Path(trace.path).name, kind=MARKS))
    if on_device.any():
        found = _on_gpus(trace, rank, steps, np.flatnonzero(on_device), Patterns(patterns, phase_labels), notes)
        return _with_premises(trace, found, notes)
    calls = int((trace.category == Category.LAUNCH).sum())
    if (calls or trace.lost) and not trace.unread_device:
        raise _without_kernels(trace, calls)
    return _with_premises(trace, (with_actions(trace, _on_cpu(trace, rank, steps, phase_labels, notes)),), notes)


def _with_premises(trace: Trace, timelines: tuple[Timeline, ...], notes: Sequence[Note]) -> tuple[Timeline, ...]:
    lacks = tuple(dict.fromkeys(note.kind for note in (*trace.damage, *notes) if note.kind))
    return tuple(replace(timeline, lacks=lacks) for timeline in timelines) if lacks else timelines


def _without_kernels(trace: Trace, calls: int) -> TraceError:
    """Return the error on a file whose device worked, by its calls or what is left of its records, without a kernel."""
    what = f"{trace.path}: {plural(calls, 'call')} to the GPU's runtime but no"
    if trace.lost or trace.undecoded:
        why = "readable kernel: records of the GPU are damaged or lost. Copy the file again, or record again."
    elif trace.out_of_window:
        why = (
            f"kernel: Kineto left out {trace.out_of_window:,} records, whose times it took for outside the recording "
            "(Out-of-range in its log). Let the profiler's schedule warm up for a step, and record again."
        )
    else:
        why = (
            "kernel: the recording failed. CUPTI could not record (another profiler was attached, a permission is "
            "missing, or the trace was cut before the GPU's records arrived). Record again; `dptrace doctor` checks "
            "the machine."
        )
    return TraceError(" ".join((f"{what} {why}", *map(str, trace.damage))))


def _products(trace: Trace, steps: CpuSteps) -> Products | None:
    """Count the calls whose FLOPs are known, by step, of which nested ones count once.

    Return None where they are not all of a step: the file records no inputs, or graphs or Triton's own products of
    matrices take the place of operators.
    """
    if not trace.products or trace.matching(_HIDES_PRODUCTS.search).any():
        return None
    events = outermost(trace, np.sort(np.fromiter(trace.products, np.int64, len(trace.products))))
    start = trace.start_ns[events]
    columns = (trace.name[events], steps.index_at(start), is_recomputed(trace, trace.thread[events], start))
    inputs = [trace.products[event] for event in events.tolist()]
    groups = Counter(zip(inputs, *(column.tolist() for column in columns), strict=True))
    return Products(
        tuple((trace.names[name], inputs) for inputs, name, _, _ in groups),
        np.array([step for _, _, step, _ in groups], np.int32),
        np.array([again for _, _, _, again in groups], np.bool_),
        np.array(list(groups.values()), np.int64),
    )


def _share_without_gpu(trace: Trace) -> float:
    """Return the share of operators after the last call to the GPU's runtime, or in stretches without any such call.

    A whole recording has such calls wherever it has operators; in one that is cut, they end before the operators do.
    """
    starts = trace.start_ns[trace.category == Category.CPU_OP]
    if not len(starts):
        return 0.0
    called = trace.start_ns[trace.category == Category.LAUNCH]
    after = float((starts > called.max(initial=np.iinfo(np.int64).min)).mean())
    if len(starts) < _MIN_OPERATORS:
        return after
    edges = np.linspace(starts.min(), starts.max() + 1, _STRETCHES + 1)
    operators = np.histogram(starts, edges)[0]
    calls = np.histogram(called, edges)[0]
    return max(after, float(operators[calls == 0].sum() / len(starts)))


def _on_gpus(
    trace: Trace, rank: int, steps: CpuSteps, events: Int64, patterns: Patterns, notes: list[Note]
) -> tuple[Timeline, ...]:
    launch = launches(trace, events)
    known = launch >= 0
    time, thread = trace.start_ns[launch], trace.thread[launch]
    launched = np.where(known, time, UNKNOWN)
    step = np.where(known | (len(steps) == 0), steps.index_at(time), BEFORE_FIRST).astype(np.int32)
    if any(note.kind == LAUNCHES for note in notes):
        step = steps.index_at(trace.start_ns[events])
    again = known & is_recomputed(trace, thread, time)
    kernel = trace.category[events] == Category.KERNEL
    comm = is_communication(trace.names, trace.name[events], kernel, patterns.comm)
    comm |= kernel & mask_of(list(trace.comm), len(trace))[events]
    kind = np.where(comm, Kind.COMMUNICATION, np.where(kernel, Kind.COMPUTE, Kind.MEMORY)).astype(np.uint8)
    notes += _launch_notes(trace, known)
    phase = np.full(len(events), Phase.OTHER, np.uint8)
    computed = np.where(kind == Kind.COMPUTE, trace.end_ns[events] - trace.start_ns[events], 0)
    phase[known] = _phases(trace, steps, launch[known], computed[known], patterns.phase_labels, notes)
    if not {note.kind for note in notes}.isdisjoint(PHASES_NEED):
        phase[:] = Phase.OTHER
    columns = (kind, phase, step, trace.stream[events], launched)
    timelines: list[Timeline] = []
    # A device event without a device id belongs to the process's only device: 0, as torch numbers them.
    devices = np.maximum(trace.device[events], 0)
    for device in unique(devices):
        chosen = np.flatnonzero(devices == device)
        timeline = _timeline(
            trace,
            rank,
            int(device),
            trace.device_names.get(int(device), "").strip() or "GPU",
            events[chosen],
            tuple(column[chosen] for column in columns),
            collectives_of(trace, events[chosen][comm[chosen]], launch[chosen][comm[chosen]]),
            steps,
            notes if not timelines else [],
        )
        recompute = (again & (kind == Kind.COMPUTE))[chosen]
        host = _host_of(trace, steps, launch[chosen], timeline)
        gpu = trace.gpus.get(int(device))
        launching, depending = late_starts(trace, events[chosen], launch[chosen])
        timeline = replace(timeline, recompute=recompute, host=host, gpu=gpu, launching=launching, depending=depending)
        timelines.append(with_actions(trace, timeline))
    if len(timelines) == 1:  # of several, operators do not say which one computes
        timelines[0] = replace(timelines[0], products=_products(trace, steps))
    return tuple(timelines)


def _phases(
    trace: Trace, steps: CpuSteps, launch: Int64, compute_ns: Int64, phase_labels: Sequence[str], notes: list[Note]
) -> NDArray[np.uint8]:
    """Return the phase of what each event launched, and note where labels and launches contradict each other."""
    thread, time = trace.thread[launch], trace.start_ns[launch]
    said, replayed = labeled_phases(trace, phase_labels), trace.matching(_GRAPH.search)[launch]
    if (said == UNLABELED).all() and not (trace.category == Category.CPU_OP).any():
        text = "no CPU operators and no labels of phases, so phases are unknown."
        notes.append(Note(text, file=Path(trace.path).name, kind=OPERATORS))
        return np.full(len(launch), Phase.OTHER, np.uint8)
    phase = unlabeled = phases(trace, steps, thread, time, said, replayed)
    if (said != UNLABELED).any():
        unlabeled = phases(trace, steps, thread, time, np.full_like(said, UNLABELED), replayed)
    notes += _graph_notes(trace, int(compute_ns[phase == UNLABELED].sum()) / max(int(compute_ns.sum()), 1))
    phase, unlabeled = (np.where(of == UNLABELED, np.uint8(Phase.OTHER), of) for of in (phase, unlabeled))
    notes += label_notes(trace, Work(thread, time, compute_ns, phase, unlabeled), said, phase_labels)
    return phase


def _graph_notes(trace: Trace, fraction: float) -> Iterator[Note]:
    """Report the share of compute that CUDA graphs replay in a phase that nothing tells."""
    if fraction > 0:
        text = (
            "{} of compute is replayed by CUDA graphs. Nothing in the trace tells their forward from their backward, "
            "so it counts as other. If a graph holds one phase, launch it under record_function('NAME'), and add "
            "--phase-labels 'NAME=PHASE'."
        )
        yield Note(text, (share(fraction),), Path(trace.path).name)


def _launch_notes(trace: Trace, known: NDArray[np.bool_]) -> Iterator[Note]:
    """Report the work that was launched before the recording began."""
    name = Path(trace.path).name
    if known.any() and (orphans := int((~known).sum())):
        text = (
            "{} of {} device events have no launch in the file (launched before recording began); their phase is other."
        )
        yield Note(text, (f"{orphans:,}", f"{len(known):,}"), name)


def _timeline(
    trace: Trace,
    rank: int,
    device: int,
    device_name: str,
    events: Int64,
    columns: tuple[NDArray[Any], ...],
    collectives: tuple[Collective, ...],
    steps: CpuSteps,
    notes: list[Note],
) -> Timeline:
    """Assemble the timeline of one device.

    Args:
        columns: kind, phase, step, lane and launch of each event.
        collectives: those of its communication, in order.
    """
    kind, phase, step, lane, launch = columns
    start, end = trace.start_ns[events], trace.end_ns[events]
    used, name = np.unique(trace.name[events], return_inverse=True)
    comm = kind == Kind.COMMUNICATION
    return Timeline(
        rank=rank,
        device=device,
        device_name=device_name,
        start_ns=start,
        end_ns=end,
        name=name.astype(np.int32),
        names=tuple(trace.names[i] for i in used),
        kind=kind,
        phase=phase,
        step=step,
        lane=lane,
        collective=np.where(comm, np.cumsum(comm) - 1, -1).astype(np.int32),
        collectives=collectives,
        windows=device_windows(steps, start, end, step),
        path=trace.path,
        host_name=trace.host_name,
        notes=tuple(notes),
        launch_ns=launch,
        data_loading=_host_intervals(trace, "enumerate(DataLoader)"),
        uses_ddp=any(name.startswith(_DDP_LABELS) for name in trace.names),
        parameter_search=_host_intervals(trace, "torch.distributed.ddp.reducer::search_unused_parameters"),
    )


def _host_of(trace: Trace, steps: CpuSteps, launch: Int64, timeline: Timeline) -> HostActivity:
    """Return what the threads that launched a device's work did; *launch* are the launching calls, or -1."""
    start, end, comm = timeline.start_ns, timeline.end_ns, timeline.kind == Kind.COMMUNICATION
    compute = timeline.kind == Kind.COMPUTE
    communicating = subtract(union(start[comm], end[comm]), union(start[compute], end[compute]))
    chosen = comm if timeline.on_cpu else np.ones(len(timeline), np.bool_)
    message = np.array([name.startswith(GLOO_MESSAGES) for name in timeline.names], np.bool_)[timeline.name]
    columns = (start, end, timeline.launch_ns, timeline.lane, message, comm)
    work = DeviceWork(*(column[chosen] for column in columns))
    return host_activity(trace, steps, launch, communicating, np.sort(end[comm]), work, on_cpu=timeline.on_cpu)


def _host_intervals(trace: Trace, prefix: str) -> IntervalSet:
    """Return when the host was in events whose name starts with *prefix*."""
    on_cpu = (trace.category == Category.ANNOTATION) | (trace.category == Category.CPU_OP)
    named = trace.named(prefix) & on_cpu
    return union(trace.start_ns[named], trace.end_ns[named])


def _waiting(trace: Trace, ops: Int64, comm: Int64, operator: Int64) -> NDArray[np.bool_]:
    """Return which operators wait for a collective: those inside them may be compute, but they are not.

    They request one and end after it, such as a user's autograd function, or they contain an event that waits.

    Args:
        ops: indices of operators.
        comm, operator: gloo's events, and the operator that requested each, or the event itself.
    """
    known = operator != comm
    waits = np.flatnonzero((trace.category == Category.CPU_OP) & trace.named(*WAITS))
    inner = np.concatenate((operator[known], waits))
    return holding(trace, ops, inner, np.concatenate((trace.end_ns[comm[known]], trace.end_ns[waits])))


def _steps_inside(trace: Trace) -> NDArray[np.bool_]:
    """Return which operators accumulate a gradient whose hook lets an optimizer step: that is not backward's work."""
    accumulating = (trace.category == Category.CPU_OP) & trace.named("torch::autograd::AccumulateGrad")
    marks = (trace.category <= Category.ANNOTATION) & trace.named("Optimizer.step")
    around = last_enclosing(trace, accumulating, trace.thread[marks], trace.start_ns[marks])
    return mask_of(around, len(trace))


def _on_cpu(trace: Trace, rank: int, steps: CpuSteps, phase_labels: Sequence[str], notes: list[Note]) -> Timeline:
    """Build the timeline of a run on CPU: operators are compute, gloo's annotations communication."""
    comm = np.flatnonzero((trace.category == Category.ANNOTATION) & trace.named(GLOO_PREFIX))
    operator = enqueuing_operator(trace, comm)
    ops = np.flatnonzero((trace.category == Category.CPU_OP) & ~trace.named(*_NO_COMPUTE) & ~_steps_inside(trace))
    compute = outermost(trace, ops[~_waiting(trace, ops, comm, operator)])
    events = np.sort(np.concatenate((compute, comm)))
    if not len(events):
        raise TraceError(f"{trace.path}: has neither GPU work nor operators: there is nothing to split.")
    is_comm = mask_of(comm, len(trace))[events]
    launch = events.copy()
    launch[is_comm] = operator
    time, thread = trace.start_ns[launch], trace.thread[launch]
    if trace.device_names and not trace.unread_device:
        text = (
            "the machine has a {} but the trace has no GPU events (recorded without CUDA activity?): the figures are "
            "the CPU's."
        )
        gpu = next((f"GPU ({name})" for name in trace.device_names.values() if name.strip()), "GPU")
        notes.append(Note(text, (gpu,), Path(trace.path).name, GPU_EVENTS))
    if not len(compute):
        text = "no operators, so what the CPU computed is unknown."
        notes.append(Note(text, file=Path(trace.path).name, kind=RECORDS))
    incomplete = _without_records(trace, steps, operator) if trace.cut else ()
    if not len(comm) and ((trace.category == Category.CPU_OP) & trace.named(*_REQUESTS)).any():
        text = "operators request collectives, but the trace does not show them: their time is unknown."
        notes.append(Note(text, file=Path(trace.path).name, kind=COLLECTIVES))
    elif incomplete:
        text = (
            "collectives that are requested in {} are in the missing part: these steps are not compared with others'."
        )
        notes.append(Note(text, (plural(len(incomplete), "step"),), Path(trace.path).name, ALL_STEPS))
    computed = np.where(is_comm, 0, trace.end_ns[events] - trace.start_ns[events])
    timeline = _timeline(
        trace,
        rank,
        CPU,
        f"host of {trace.unread_device}" if trace.unread_device else "CPU",
        events,
        (
            np.where(is_comm, Kind.COMMUNICATION, Kind.COMPUTE).astype(np.uint8),
            _phases(trace, steps, launch, computed, phase_labels, notes),
            steps.index_at(time),
            trace.thread[events].astype(np.int64),
            time,
        ),
        requested_collectives(trace, events[is_comm], launch[is_comm], labels_of(trace, launch[is_comm])),
        steps,
        notes,
    )
    host = _host_of(trace, steps, launch, timeline)
    again = ~is_comm & is_recomputed(trace, thread, time)
    return replace(
        timeline,
        recompute=again,
        host=host,
        products=_products(trace, steps),
        host_of=trace.unread_device,
        incomplete_steps=incomplete,
    )


def _without_records(trace: Trace, steps: CpuSteps, requested: Int64) -> tuple[str, ...]:
    """Return the steps that request collectives without a record; *requested* are the operators of those with one."""
    named = trace.named(*_REQUESTS) | np.isin(trace.name, trace.name[requested])
    wanted = np.flatnonzero((trace.category == Category.CPU_OP) & named)
    step, names = steps.index_at(trace.start_ns[np.setdiff1d(wanted, requested)]), steps.names or (WHOLE_TRACE,)
    return tuple(names[number] for number in unique(step[step >= 0]).tolist())

"""What a recording must hold for its figures: each premise is examined once, where a rank's trace is read.

A premise that fails is a note whose *kind* names it. A figure that needs it is then unknown, or a bound
(:mod:`dptrace.analysis.per_gpu.split` says which figure needs what), and no finding is made of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, union, unique
from dptrace.core.notes import LABELS, LAUNCHES, RECORDS, Note
from dptrace.core.units import listed, plural, share
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.collectives import launches
from dptrace.timeline.model import Timeline
from dptrace.timeline.steps import backward_starts

_EARLY_NS = 1_000_000
"""No work begins this much before the call that launches it; clocks of host and GPU differ by 0.1 ms at most."""
_LONG_NS = 1_000_000_000
"""Events of this length are looked at, and none ends that long after the host's last."""
_WITHIN, _NEAR = 3, 8
"""An event is too long if so many of the next ones on its stream lie within it."""
_MISSING = 0.005
"""Share of the work that begins after launched work, or of calls, from which launches are said to be missing."""
_IDLE_NS = 50_000
"""From this length on a pause shows that nothing is left to run: launched work begins within 20 µs."""
_MANY = 0.01
"""Share of the calls that copy memory without a record from which records are missing."""
_KERNEL_CALL = re.compile(r"(cuda|hip|cu)(Ext|Module)*Launch(Cooperative)?Kernel")
_COPY_CALL = re.compile(r"(cuda|hip)Memcpy|cuMemcpy")
_CAPTURE_BEGINS = re.compile(r"StreamBeginCapture")
_CAPTURE_ENDS = re.compile(r"StreamEndCapture")


def examined(trace: Trace) -> Trace:
    """Return the trace with its launches, without work that cannot be, and with a note on each premise that fails."""
    device = trace.category >= Category.KERNEL
    if not device.any():
        return _noted(trace, _labels(trace))
    trace = _with_launches(trace)
    long = _too_long(trace)
    trace = _left_out(trace, long, "{} left out with a duration of seconds over later work of its stream.")
    early = trace.launch >= 0
    early[early] = trace.start_ns[early] < trace.start_ns[trace.launch[early]] - _EARLY_NS
    trace = _left_out(trace, early, "{} left out with a start before the call that launches it: the times are wrong.")
    host = trace.category < Category.KERNEL
    late = ~host & (trace.end_ns > trace.end_ns[host].max(initial=0) + _LONG_NS) & host.any()
    trace = _left_out(trace, late, "{} left out with an end seconds after all else: the durations are wrong.")
    noted = _noted(trace, _launches(trace), *_records(trace), _labels(trace))
    if any(note.kind == LAUNCHES for note in noted.notes):
        noted = replace(noted, launch=np.full(len(trace), -1, np.int64))
    return noted


def _left_out(trace: Trace, impossible: NDArray[np.bool_], text: str) -> Trace:
    if not impossible.any():
        return trace
    note = Note(text, (plural(int(impossible.sum()), "event"),), Path(trace.path).name, RECORDS)
    lost = trace.lost + int(impossible.sum())
    return _with_launches(replace(trace.without(impossible), damage=(*trace.damage, note), lost=lost))


def _too_long(trace: Trace) -> NDArray[np.bool_]:
    """Return which device events are a second and longer although the next ones on their stream run within them."""
    found = np.zeros(len(trace), np.bool_)
    length = trace.end_ns - trace.start_ns
    on_stream = (trace.category >= Category.KERNEL) & (trace.stream >= 0)
    if not (on_stream & (length >= _LONG_NS)).any():
        return found
    events = np.flatnonzero(on_stream)
    order = events[np.lexsort((trace.start_ns[events], trace.stream[events], trace.device[events]))]
    start, end, stream, device = (of[order] for of in (trace.start_ns, trace.end_ns, trace.stream, trace.device))
    within = np.zeros(len(order), np.int64)
    for k in range(1, min(_NEAR, len(order) - 1) + 1):
        same = (stream[k:] == stream[:-k]) & (device[k:] == device[:-k])
        within[:-k] += same & (start[k:] > start[:-k]) & (end[k:] <= end[:-k])
    found[order] = (within >= _WITHIN) & (length[order] >= _LONG_NS)
    return found


def _with_launches(trace: Trace) -> Trace:
    events = np.flatnonzero(trace.category >= Category.KERNEL)
    launch = np.full(len(trace), -1, np.int64)
    launch[events] = launches(trace, events)
    return replace(trace, launch=launch)


def _noted(trace: Trace, *notes: Note | None) -> Trace:
    found = tuple(note for note in notes if note is not None)
    return replace(trace, notes=(*trace.notes, *found)) if found else trace


def _launches(trace: Trace) -> Note | None:
    """Return a note if it is not known what launched the device's work.

    Work of before the recording has no launch either, but it runs before all that the recording saw launched.
    """
    name = Path(trace.path).name
    device = trace.category >= Category.KERNEL
    known = trace.launch >= 0
    if not known.any():
        text = (
            "the calls that launch work on the GPU are missing: work counts for the step in which it begins, and its "
            "phase, and why the GPU was idle, are unknown. Record them too (torch.profiler: activities CPU and CUDA)."
        )
        return Note(text, (), name, LAUNCHES)
    calls = np.flatnonzero((trace.category == Category.LAUNCH) & (trace.correlation > 0))
    if (repeated := _repeated(trace, calls)) > _MISSING:
        text = (
            "{} of the calls that launch work have the correlation id of another call, so which work they launched, "
            "its phase, and why the GPU was idle, are unknown."
        )
        return Note(text, (share(repeated),), name, LAUNCHES)
    if (missing := float(_orphans(trace, device).sum() / device.sum())) > _MISSING:
        text = (
            "{} of the GPU's work has no launch in the file, although earlier work has one: its phase, and why the "
            "GPU was idle, are unknown."
        )
        return Note(text, (share(missing),), name, LAUNCHES)
    return None


def _orphans(trace: Trace, device: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which work without a launch begins after work on its stream that has one: streams keep their order."""
    events = np.flatnonzero(device)
    _, stream = np.unique(trace.stream[events] * (1 << 16) + trace.device[events], return_inverse=True)
    known = trace.launch[events] >= 0
    first = np.full(len(events), np.iinfo(np.int64).max)
    np.minimum.at(first, stream[known], trace.start_ns[events[known]])
    return ~known & (trace.start_ns[events] > first[stream])


def _repeated(trace: Trace, calls: Int64) -> float:
    """Return the share of calls whose correlation id another call has that does not contain them."""
    if not len(calls):
        return 0.0
    order = calls[np.argsort(trace.correlation[calls], kind="stable")]
    same = trace.correlation[order[1:]] == trace.correlation[order[:-1]]
    # The driver's call within the runtime's has its id; ids wrap at 2^32, a long time later.
    apart = trace.start_ns[order[1:]] >= trace.end_ns[order[:-1]]
    return float((same & apart).sum() / len(calls))


def _records(trace: Trace) -> Iterator[Note]:
    """Yield a note if calls that launch work have no record of it: the profiler has lost records of the GPU."""
    on_device = trace.category >= Category.KERNEL
    used = unique(trace.correlation[on_device])
    launching = (trace.category == Category.LAUNCH) & (trace.correlation > 0)
    # Once the device has been idle, all that was launched before has run: it does not wait beyond the file's end.
    start, end = union(trace.start_ns[on_device], trace.end_ns[on_device])
    idle = start[1:][start[1:] - end[:-1] > _IDLE_NS]
    candidates = launching & (trace.end_ns < idle.max(initial=0) - _IDLE_NS)
    if not (trace.category == Category.KERNEL).any():
        candidates = launching.copy()
    candidates[candidates] = ~np.isin(trace.correlation[candidates], used)
    for pattern, least, what in ((_KERNEL_CALL, 0.0, "kernel"), (_COPY_CALL, _MANY, "copy")):
        calls = launching & trace.matching(pattern.match)
        lost = np.flatnonzero(calls & candidates)
        lost = lost[~_captured(trace, lost)]
        if len(lost) > least * calls.sum():
            text = (
                f"{{}} to launch a {what} without a readable record of it: records of the GPU were lost or damaged, "
                "so idle time is at most, and compute at least, what is shown."
            )
            if trace.out_of_window:
                text += f" Kineto took {trace.out_of_window:,} records for outside the recording (Out-of-range)."
            yield Note(text, (plural(len(lost), "call"),), Path(trace.path).name, RECORDS)


def _captured(trace: Trace, calls: Int64) -> NDArray[np.bool_]:
    """Return which calls run while a graph is captured: they launch nothing."""
    begun = np.sort(trace.start_ns[trace.matching(_CAPTURE_BEGINS.search) & (trace.category == Category.LAUNCH)])
    ended = np.sort(trace.start_ns[trace.matching(_CAPTURE_ENDS.search) & (trace.category == Category.LAUNCH)])
    time = trace.start_ns[calls]
    return np.searchsorted(begun, time, side="right") > np.searchsorted(ended, time, side="right")


def _labels(trace: Trace) -> Note | None:
    """Return a note if a training has no label at all: torch puts one around each optimizer's step."""
    if not len(backward_starts(trace)) or (trace.category == Category.ANNOTATION).any():
        return None
    if (trace.named("Optimizer.", "ProfilerStep#") & (trace.category == Category.CPU_OP)).any():
        return None
    text = (
        "no labels, although torch puts one around each step of an optimizer: they were not recorded or were removed, "
        "and phases are unknown."
    )
    return Note(text, (), Path(trace.path).name, LABELS)


def cut_files(timelines: Iterable[Timeline]) -> str:
    """Say which files are cut, so that they lack collectives of steps; empty where none is."""
    names = list(dict.fromkeys(Path(one.path).name for one in timelines if one.incomplete_steps))
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'} cut" if names else ""

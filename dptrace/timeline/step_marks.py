"""The steps of a trace, marked: by the profiler, by a range that the user names, or inferred.

torch.profiler marks steps with ``ProfilerStep#k``. Where a file has other ranges, such as those of NVTX, those that
``--step-range`` names are the steps; in an export of Nsight Systems without it, they are inferred from what repeats.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from dptrace.core.intervals import Int64, unique
from dptrace.core.notes import Note
from dptrace.core.units import listed, plural, sanitize
from dptrace.readers.trace import Category, EventDetails, Trace
from dptrace.timeline.collectives import last_enclosing, launches, outermost
from dptrace.timeline.premises import examined
from dptrace.timeline.steps import WRAPPER

MARK = "ProfilerStep#"
"""Start of the names of torch.profiler's marks."""
_OPTION = "--step-range"
_NUMBERED = re.compile(r"[\s_:#.=/-]*\d+$")
"""The number at the end of a range's name: "iteration 12", "step_3"."""


def with_steps(trace: Trace, step_range: str = "") -> Trace:
    """Return a trace with its steps marked, and then its premises examined.

    Args:
        step_range: name of the user's ranges that are steps; empty for the profiler's marks.
    """
    if step_range:
        trace = _named(trace, step_range)
    elif not trace.named(MARK).any():
        trace = _of_engine(trace) if trace.steps_marked else _inferred(trace)
    return examined(trace)


def _named(trace: Trace, name: str) -> Trace:
    """Mark the ranges that the user names, with or without a number, instead of the profiler's own steps."""
    fits = trace.matching(lambda text: text == name or _NUMBERED.sub("", text) == name)
    events = _outermost(trace, np.flatnonzero(fits & (trace.category <= Category.ANNOTATION)))
    if len(events):
        texts = [trace.names[number] for number in trace.name[events].tolist()]
        return _marked(trace, trace.start_ns[events], trace.end_ns[events], int(trace.thread[events[0]]), texts)
    used = unique(trace.name[trace.category == Category.ANNOTATION]).tolist()
    texts = [trace.names[number] for number in used if not _NO_STEP.match(trace.names[number])]
    known = [*dict.fromkeys(sanitize(_NUMBERED.sub("", text)) for text in texts)]
    there = f"it has {listed(known, 5)}" if known else "it has none that could be steps"
    return _with_note(trace, f"{_OPTION} {sanitize(name)!r} fits no range of the file: {there}.")


def _outermost(trace: Trace, events: Int64) -> Int64:
    """Return the outermost of these ranges on the thread where they take most time: no step is in another."""
    if not len(events):
        return events
    ns = np.bincount(trace.thread[events], trace.end_ns[events] - trace.start_ns[events])
    return outermost(trace, events[trace.thread[events] == ns.argmax()])


def _with_note(trace: Trace, text: str, *numbers: str) -> Trace:
    return dataclasses.replace(trace, notes=(*trace.notes, Note(text, numbers, Path(trace.path).name)))


def _marked(trace: Trace, start: Int64, end: Int64, thread: int, texts: Sequence[str] = ()) -> Trace:
    """Add marks of steps, as the profiler would have written them, and turn those that it wrote into labels.

    Args:
        texts: names of the steps, which are numbered as in these if all have numbers of their own, else from 0.
    """
    numbers = [int(match[1]) if (match := re.search(r"(\d{1,9})$", text)) else -1 for text in texts]
    if -1 in numbers or len(set(numbers)) < len(start):
        numbers = [*range(len(start))]
    names = [f"profiled step {text.removeprefix(MARK)}" if text.startswith(MARK) else text for text in trace.names]
    count, more = len(trace), len(start)
    # Marks come before what starts with them: all of a step is after its mark.
    order = np.argsort(np.append(start, trace.start_ns), kind="stable")
    order = np.where(order < more, count + order, order - more)
    place = np.empty(count + more, np.int64)
    place[order] = np.arange(count + more)

    def with_marks(column: NDArray[Any], of_marks: ArrayLike) -> NDArray[Any]:
        filled = np.broadcast_to(np.asarray(of_marks, column.dtype), more)
        return np.append(column, filled)[order]

    operators = trace.operators and replace(
        trace.operators,
        inputs=with_marks(trace.operators.inputs, -1),
        sequence=with_marks(trace.operators.sequence, -1),
        forward_thread=with_marks(trace.operators.forward_thread, 0),
    )
    has_details = len(trace.detail) > 0
    return dataclasses.replace(
        trace,
        start_ns=with_marks(trace.start_ns, start),
        end_ns=with_marks(trace.end_ns, end),
        category=with_marks(trace.category, int(Category.ANNOTATION)),
        name=with_marks(trace.name, np.arange(len(names), len(names) + more)),
        names=(*names, *(f"{MARK}{number}" for number in numbers)),
        thread=with_marks(trace.thread, thread),
        correlation=with_marks(trace.correlation, -1),
        device=with_marks(trace.device, -1),
        stream=with_marks(trace.stream, -1),
        comm={int(place[event]): args for event, args in trace.comm.items()},
        detail=with_marks(trace.detail, len(trace.details)) if has_details else trace.detail,
        details=(*trace.details, EventDetails()) if has_details else trace.details,
        operators=operators,
    )


# Steps of a trace without marks, from what repeats; a note says how.

_MIN_STEPS = 3
"""Repetitions from which a pattern counts as steps."""
_MOST_WORK = 0.8
"""Share of launches from which ranges are said to hold the work."""
_MAX_KINDS = 64
"""Kinds of ranges, those that take most time, and of kernels, the rarest, that are looked at."""
_NO_STEP = re.compile(r"p?nccl|FSDP::|FullyShardedDataParallel\.|Optimizer\.|c10d::")
"""Starts of the names of labels that stand for a part of a step."""


class _Steps(NamedTuple):
    """Steps that were inferred."""

    start: Int64
    end: Int64
    thread: int
    why: str
    texts: Sequence[str] = ()


class _Launched(NamedTuple):
    """A trace's launches of GPU work, by time."""

    call: Int64
    """Index of each call, in the order of time."""
    event: Int64
    """Index of what it launched."""


_ENGINE = re.compile(r"step\[|execute_")
"""Starts of the labels that SGLang and vLLM put around each step of their engines."""


def _of_engine(trace: Trace) -> Trace:
    """Mark the steps of an inference engine by its labels; the same trace where there are none."""
    labels = np.flatnonzero(trace.matching(_ENGINE.match) & (trace.category == Category.ANNOTATION))
    events = _outermost(trace, labels)
    if len(events) < _MIN_STEPS:
        return trace
    texts = {trace.names[number] for number in trace.name[events].tolist()}
    marked = _marked(trace, trace.start_ns[events], trace.end_ns[events], int(trace.thread[events[0]]))
    text = f"{{}} inferred from the ranges {{}}; if that is wrong, name the range of a step with {_OPTION}."
    return _with_note(marked, text, plural(len(events), "step"), repr(sanitize(min(texts))))


def _inferred(trace: Trace) -> Trace:
    """Mark the steps that ranges, optimizer or kernels show; the same trace where they show none."""
    event = np.flatnonzero(trace.category >= Category.KERNEL)
    call = launches(trace, event)
    call, event = call[call >= 0], event[call >= 0]
    by_time = np.argsort(call, kind="stable")  # indices are in order of time
    launched = _Launched(call[by_time], event[by_time])
    if not len(call):
        return trace
    kinds = [*_kinds_of_ranges(trace)]
    for find in (_around_work, _by_optimizer, _between_ranges, _by_kernel):
        if (steps := find(trace, launched, kinds)) is not None:
            marked = _marked(trace, steps.start, steps.end, steps.thread, steps.texts)
            text = f"{{}} inferred from {steps.why}; if that is wrong, name the range of a step with {_OPTION}."
            return _with_note(marked, text, plural(len(steps.start), "step"))
    return trace


def _kinds_of_ranges(trace: Trace) -> Iterator[tuple[str, Int64]]:
    """Yield the ranges of users that repeat, by their names without numbers, the rarest first."""
    ranges = np.flatnonzero(trace.category == Category.ANNOTATION)
    kinds: dict[str, int] = {}
    kind_of = np.full(len(trace.names), -1, np.int64)
    for number in unique(trace.name[ranges]).tolist():
        if not _NO_STEP.match(trace.names[number]):
            kind_of[number] = kinds.setdefault(_NUMBERED.sub("", trace.names[number]), len(kinds))
    kind = kind_of[trace.name[ranges]]
    ranges, kind = ranges[kind >= 0], kind[kind >= 0]
    counts = np.bincount(kind, minlength=len(kinds))
    ns = np.bincount(kind, trace.end_ns[ranges] - trace.start_ns[ranges], len(kinds))
    longest = [number for number in np.argsort(-ns, kind="stable").tolist() if counts[number] >= _MIN_STEPS]
    texts = [*kinds]
    for number in sorted(longest[:_MAX_KINDS], key=lambda number: int(counts[number])):
        events = _outermost(trace, ranges[kind == number])
        if len(events) >= _MIN_STEPS and (trace.start_ns[events][1:] >= trace.end_ns[events][:-1]).all():
            yield texts[number], events


def _work_in(trace: Trace, launched: _Launched, start: Int64, end: Int64) -> float:
    """Return the share of launches in disjoint intervals."""
    time = trace.start_ns[launched.call]
    inside = np.searchsorted(start, time, side="right") > np.searchsorted(end, time, side="left")
    return float(inside.mean())


def _around_work(trace: Trace, launched: _Launched, kinds: Sequence[tuple[str, Int64]]) -> _Steps | None:
    """Return the ranges, as few as may be, that nearly all work is launched in."""
    for name, events in kinds:
        start, end = trace.start_ns[events], trace.end_ns[events]
        if _work_in(trace, launched, start, end) >= _MOST_WORK:
            texts = [trace.names[number] for number in trace.name[events].tolist()]
            why = f"the ranges {sanitize(name)!r}"
            return _Steps(start, end, int(trace.thread[events[0]]), why, texts)
    return None


def _by_optimizer(trace: Trace, launched: _Launched, kinds: Sequence[tuple[str, Int64]]) -> _Steps | None:
    """Return the times from the end of one step of the optimizer to that of the next."""
    labels = trace.named("Optimizer.step") & (trace.category <= Category.ANNOTATION)
    events = _outermost(trace, np.flatnonzero(labels))
    if len(events) < _MIN_STEPS:
        return None
    end = trace.end_ns[events]
    return _Steps(end[:-1], end[1:], int(trace.thread[events[0]]), "the ends of Optimizer.step")


def _between_ranges(trace: Trace, launched: _Launched, kinds: Sequence[tuple[str, Int64]]) -> _Steps | None:
    """Return the times from the start of a range to the next of its kind; of the rarest, the first of a step."""
    fitting = []
    for name, events in kinds:
        start = trace.start_ns[events]
        if _work_in(trace, launched, start[:1], start[-1:]) >= _MOST_WORK:
            fitting.append((len(events), int(start[0]), name, start, int(trace.thread[events[0]])))
    if not fitting:
        return None
    _, _, name, start, thread = min(fitting, key=lambda one: one[:2])
    return _Steps(start[:-1], start[1:], thread, f"the starts of the ranges {sanitize(name)!r}")


def _by_kernel(trace: Trace, launched: _Launched, kinds: Sequence[tuple[str, Int64]]) -> _Steps | None:
    """Return the times between two launches of a kernel that is launched once in each step of a training.

    What is launched between any two is alike, and holds backward and other work: layers repeat, too, but within
    forward or within backward.
    """
    nodes = (trace.category == Category.CPU_OP) & trace.matching(re.compile(f"{WRAPPER}|Backward\\d*$").search)
    if not nodes.any():
        return None
    call, name = launched.call, trace.name[launched.event]
    backward = last_enclosing(trace, nodes, trace.thread[call], trace.start_ns[call]) >= 0
    used, code, counts = np.unique(name, return_inverse=True, return_counts=True)
    rarest = [kind for kind in np.argsort(counts, kind="stable").tolist() if counts[kind] > _MIN_STEPS][:_MAX_KINDS]
    fitting: list[tuple[int, float, int, Int64]] = []
    for kind in rarest:
        at = np.flatnonzero(code == kind)
        if fitting and len(at) > fitting[0][0]:
            break
        if at[-1] - at[0] >= _MOST_WORK / 2 * len(code) and _alike(code, backward, at):
            # The pause before a step is the longest: data are loaded, the loss is read.
            pause = float(np.median(trace.start_ns[call[at[1:]]] - trace.start_ns[call[at[1:] - 1]]))
            fitting.append((len(at), -pause, kind, at))
    if not fitting:
        return None
    _, _, kind, at = min(fitting, key=lambda one: one[:2])
    start = trace.start_ns[call[at]]
    why = f"the launches of {sanitize(trace.names[used[kind]])[:80]!r}, between which all others repeat"
    return _Steps(start[:-1], start[1:], int(trace.thread[call[at[0]]]), why)


def _alike(code: NDArray[np.int64], backward: NDArray[np.bool_], at: Int64) -> bool:
    """Return whether the launches between any two of *at* are nearly the same, and some of them backward."""
    middle = range(max((len(at) - 17) // 2, 0), len(at) - 1)[:16]
    parts = [slice(int(at[i]), int(at[i + 1])) for i in middle]
    counts = [np.bincount(code[part], minlength=int(code.max()) + 1) for part in parts]
    close = [int(abs(one - two).sum()) <= 0.05 * int(one.sum() + two.sum()) for one, two in pairwise(counts)]
    both = [0 < int(backward[part].sum()) < part.stop - part.start for part in parts]
    return sum(close) >= _MOST_WORK * len(close) and all(both)

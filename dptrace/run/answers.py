"""Answers about a run that take long, kept beside what is cached of its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.run.run import Run

Value = TypeVar("Value")


def stored_answer(run: Run, question: str, type: type[Value], compute: Callable[[], Value]) -> Value:
    """Return an answer about a run, computed only where it is not known from before.

    That of a run whose timelines were replaced since it was read is computed, and not kept.

    Args:
        type: of the answer, whose values are plain: a list is no tuple afterwards, unless *type* says so.
    """
    whole, selections = run, []
    while whole.selected_from is not None:
        part, (whole, kept) = whole, whole.selected_from
        if not _are_same(part, [one.device for one in kept]):
            return compute()
        selections.append([(one.number, one.steps) for one in kept])
    if whole.answers is None or not _are_same(whole, whole.devices):
        return compute()
    about = (question, run.path, run.align, run.world_size, run.workload, run.metadata, selections)
    answer: Value = whole.answers(whole.devices, about, type, compute)
    return answer


def _are_same(run: Run, devices: Sequence[DeviceFigures]) -> bool:
    """Return whether a run has these very devices, and their timelines."""
    same = len(run.devices) == len(run.timelines) == len(devices)
    pairs = zip(run.timelines, run.devices, devices, strict=True) if same else ()
    return same and all(own is one and timeline is one.timeline for timeline, own, one in pairs)

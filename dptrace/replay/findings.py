"""The findings of a run in one order: what a step gains without each, once those above it are gone.

All are changes of one replay, which are taken out of the run one after the other, so that their gains add up to what
all of them gain together. Every page, table and tool shows this list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from dptrace.analysis.findings.finding import MIN_SHARE, Finding
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.run.run import Run

if TYPE_CHECKING:
    from dptrace.replay.finding_list import FindingList
    from dptrace.replay.whatif import WhatIf

Progress = Callable[[float], None]
"""Called with the fraction that is done."""
_Findings = tuple[Finding, ...]
Value = TypeVar("Value")
_FINDINGS, _ON_COMPUTE, _AFTER_THOSE = "findings", "compute findings", "compute findings after those"
"""Questions, as answers are kept."""


def findings_of(run: Run, progress: Progress = lambda fraction: None) -> tuple[Finding, ...]:
    """Return the findings of a run, the greatest gain first, and parts before their whole; computed once.

    What gains only once others are gone comes after them, and what gains less than 1 % of a step last. Where a replay
    can't tell, a finding says why, and stands behind those with a gain, by the time that it counts.
    """
    return _once(run, _FINDINGS, lambda: _list_of(run).found(progress))


def are_known(run: Run, compute: bool = False) -> bool:
    """Return whether the findings of a run are known, with *compute* those on its compute, too: they need no replay."""

    def unknown() -> _Findings:
        raise _UnknownError

    try:
        for question in (_FINDINGS, *[_ON_COMPUTE] * compute):
            _once(run, question, unknown)
    except _UnknownError:
        return False
    return True


class _UnknownError(Exception):
    """An answer would have to be computed."""


def compute_findings_of(run: Run, *, after: bool = False) -> tuple[Finding, ...]:
    """Return the findings on a run's compute, in a list of their own.

    Args:
        after: go on from the list of :func:`findings_of`: they gain what is left once those are gone.

    Raises:
        DptraceError: the run was opened with ``figures_only``, or its files can't be read again.
    """

    def found() -> tuple[Finding, ...]:
        listed = _list_of(run)
        return listed.of_others(listed.detected_in_compute(), after)

    return _once(run, _AFTER_THOSE if after else _ON_COMPUTE, found)


def with_late_ranks(answer: WhatIf, run: Run) -> WhatIf:
    """Say in a what-if without any late rank which findings have what it gains, if those on late ranks show less."""
    notable = answer.can_tell and answer.step_gain_ns >= MIN_SHARE * answer.measured_step_ns
    note = stored_answer(run, "late ranks", str, lambda: _list_of(run).of_late_ranks()) if notable else ""
    return dataclasses.replace(answer, notes=(*answer.notes, note)) if note else answer


def to_dict(run: Run, memory: bool = False) -> dict[str, Any]:
    """Return a run as plain data, with its findings, as ``dptrace analyze --json`` prints it.

    Args:
        memory: add the memory of each rank and device, for which its file is read again.
    """
    from dptrace.run.memory import with_memory

    figures = {**Run.to_dict(run), "findings": [finding.to_dict() for finding in findings_of(run)]}
    return with_memory(run, figures) if memory else figures


def _once(run: Run, question: str, compute: Callable[[], _Findings]) -> _Findings:
    """Return findings that are computed once for a run, and not again while the cache has them."""
    known: dict[str, _Findings] = vars(run).setdefault("findings_by_question", {})
    if question not in known:
        known[question] = stored_answer(run, question, _Findings, lambda: _as_stored(compute()))
    return known[question]


# Answers that take long, kept beside what is cached of a run's files.


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


def _as_stored(found: _Findings) -> _Findings:
    """Return findings as they are read from the cache, so that these and computed ones are the same."""
    return msgspec.convert(msgspec.to_builtins(found, enc_hook=np.generic.item), _Findings)


def _list_of(run: Run) -> FindingList:
    # Answers that are known need no replay.
    from dptrace.replay.finding_list import FindingList

    known: FindingList = vars(run).setdefault("findings_list", FindingList(run))
    return known

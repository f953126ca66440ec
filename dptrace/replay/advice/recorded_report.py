"""Advice on a recorded training: the contents of ``dptrace advise RUN --json``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from dptrace.errors import DptraceError
from dptrace.model.planning.candidates import Check, check_dict
from dptrace.model.planning.decision import question_dict
from dptrace.replay.advice.recorded_checks import finding_checks, option_checks, step_checks
from dptrace.replay.advice.recorded_questions import recorded_questions, recorded_step
from dptrace.replay.advice.what_if_checks import what_if_checks

if TYPE_CHECKING:
    from dptrace.run.run import Run

__all__ = ["recorded_advice"]

SCHEMA = 1
_ORDER = {"apply": 0, "keep": 1, "skip": 2}
_GAINS = (
    "Gains are of one change each, by replay; they do not add up. Those of findings are after the findings above, or "
    "what they cost where a replay can't tell."
)


def recorded_advice(run: Run, progress: Callable[[float], None] = lambda fraction: None) -> dict[str, Any]:
    """Advise on a recording: what limits its step, and the checklists with their gains.

    Args:
        progress: called with the fraction of the replays that are done.

    Raises:
        DptraceError: the recording has no steps, or its files can't be read again for a replay.
    """
    if not len(run.steps()):
        raise DptraceError(f"{run.path}: has no steps, so there is nothing to advise on. Record with profiler.step().")
    step = recorded_step(run)
    found = {one.name: one for one in what_if_checks(run, progress)}
    for one in finding_checks(run.with_gains()):
        found[one.name] = _with_gain(one, found[one.name]) if one.name in found else one
    # A finding says more than an option, and both more than the parts of the step.
    for one in (*option_checks(run, step), *step_checks(run, step)):
        found.setdefault(one.name, one)
    checks = sorted(
        found.values(), key=lambda one: (_ORDER[one.status], -(one.gain_s or 0.0), -(one.gain_bytes or 0.0))
    )
    return {
        "schema": SCHEMA,
        "kind": "advise",
        "recorded": run.path,
        "mode": run.metadata.get("mode"),
        "ranks": step.ranks,
        "step_ns": round(step.wall_ns),
        "parts": {
            "compute_ns": round(step.compute_ns),
            "optimizer_ns": round(step.optimizer_ns),
            "exposed_transfer_ns": round(step.transfer_ns),
            "exposed_wait_ns": round(step.wait_ns),
            "overlapped_ns": round(step.overlapped_ns),
            "exposed_memory_ns": round(step.memory_ns),
            "idle_ns": round(step.idle_ns),
        },
        "path": [question_dict(question) for question in recorded_questions(run, step)],
        "checks": [check_dict(one) for one in checks],
        "assumptions": [_GAINS, *run.notes],
    }


def _with_gain(finding: Check, replayed: Check) -> Check:
    """Return what a finding says with the gain of the replay, which knows what else would hold up the step."""
    gains = {name: getattr(replayed, name) for name in ("status", "gain_s", "gain_share", "computed")}
    reason = f"{finding.reason} {replayed.reason[:1].upper()}{replayed.reason[1:]}."
    return msgspec.structs.replace(finding, reason=reason, **gains)

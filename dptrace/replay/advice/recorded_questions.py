"""The questions that decide what limits a recorded step, with the documents' goals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dptrace.core.units import duration, share
from dptrace.model.planning.decision import RULES, Question, question_by_rule
from dptrace.model.scaling import gustafson_efficiency

if TYPE_CHECKING:
    from dptrace.run.run import Run

__all__ = ["RecordedStep", "recorded_questions", "recorded_step"]

_GUIDE = "Distributed Training (guide)"
_NOTABLE = 0.05
"""Share of a step from which waiting for data or for a rank counts."""


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The mean step of a recording, in ns; the parts but ``overlapped_ns`` add up to ``wall_ns``."""

    ranks: int
    wall_ns: float
    forward_backward_ns: float
    optimizer_ns: float
    transfer_ns: float
    """Exposed communication without waiting for later ranks."""
    wait_ns: float
    """Exposed waiting for later ranks."""
    overlapped_ns: float
    memory_ns: float
    idle_ns: float
    data_loading_ns: float
    """Part of the idle time."""

    @property
    def compute_ns(self) -> float:
        """Return the time in which a rank computes."""
        return self.forward_backward_ns + self.optimizer_ns


def recorded_step(run: Run) -> RecordedStep:
    """Return the mean step of all ranks."""
    frame = run.steps()
    mean = frame.mean(numeric_only=True)
    idle = run.idle_causes()
    wait = float(frame["exposed_wait_ns"].fillna(0).mean())
    return RecordedStep(
        ranks=max(run.world_size, int(frame["rank"].nunique())),
        wall_ns=float(mean["wall_ns"]),
        forward_backward_ns=float(mean["forward_ns"] + mean["backward_ns"] + mean["other_ns"]),
        optimizer_ns=float(mean["optimizer_ns"]),
        transfer_ns=float(mean["exposed_comm_ns"]) - wait,
        wait_ns=wait,
        overlapped_ns=float(mean["overlapped_comm_ns"]),
        memory_ns=float(mean["exposed_memory_ns"]),
        idle_ns=float(mean["idle_ns"]),
        data_loading_ns=float(idle["data_loading_ns"].mean()) if len(idle) else 0.0,
    )


def recorded_questions(run: Run, step: RecordedStep) -> list[Question]:
    """Return the questions, from what limits the step to each goal that the recording can answer."""
    found = [_limit(step), _data(step), *_overlap(step), *_efficiency(step), *_mfu(run), *_bubble(run)]
    return [*found, *_straggler(step)]


def _limit(step: RecordedStep) -> Question:
    parts = {
        "compute": step.compute_ns,
        "communication": step.transfer_ns,
        "waiting for other ranks": step.wait_ns,
        "copies": step.memory_ns,
        "the host, data or gaps": step.idle_ns,
    }
    most = max(parts, key=lambda name: parts[name])
    numbers = ", ".join(f"{name} {share(ns / step.wall_ns)}" for name, ns in parts.items() if ns)
    return Question(
        name="bound",
        question="What takes most of the step?",
        answer=f"{most}",
        numbers=f"{numbers} of {duration(step.wall_ns)}",
        value=parts[most] / step.wall_ns,
        limit=None,
        unit="ratio",
        source=f"{_GUIDE}, 1.3",
    )


def _goal(name: str, question: str, answer: str, numbers: str, value: float, rule: str) -> Question:
    return question_by_rule(rule, name, question, answer, numbers, value, "ratio")


def _data(step: RecordedStep) -> Question:
    part = step.data_loading_ns / step.wall_ns
    return Question(
        name="data",
        question="Does it wait for data?",
        answer="yes: more workers" if part >= _NOTABLE else "no",
        numbers=f"{duration(step.data_loading_ns)} of a step, {share(part)}",
        value=part,
        limit=_NOTABLE,
        unit="ratio",
        source=f"{_GUIDE}, 7.6",
    )


def _overlap(step: RecordedStep) -> list[Question]:
    whole = step.overlapped_ns + step.transfer_ns
    if not whole:
        return []
    hidden = step.overlapped_ns / whole
    answer = "yes" if hidden > RULES["overlap"].value else "no"
    numbers = f"{share(hidden)} of {duration(whole)} without waiting"
    return [_goal("overlap", "Is more than 80 % of the communication hidden?", answer, numbers, hidden, "overlap")]


def _efficiency(step: RecordedStep) -> list[Question]:
    if step.ranks < 2:
        return []
    serial = (step.transfer_ns + step.wait_ns) / step.wall_ns
    reached = gustafson_efficiency(serial, step.ranks)
    answer = "yes" if reached >= RULES["efficiency"].value else "no"
    numbers = f"s = {serial:.3g} of the step is communication, 1 − s·(N−1)/N = {share(reached)} on {step.ranks} ranks"
    return [_goal("efficiency", "Does it scale with 70 % or more?", answer, numbers, reached, "efficiency")]


def _mfu(run: Run) -> list[Question]:
    reached = run.efficiency.mfu
    if reached is None:
        return []
    answer = "yes" if reached > RULES["mfu"].value else "no"
    return [_goal("mfu", "Is the MFU above 40 %?", answer, f"MFU {share(reached)}", reached, "mfu")]


def _bubble(run: Run) -> list[Question]:
    if not run.pipelines:
        return []
    part = float(run.pipeline()["pipeline_bubble_percent"].mean()) / 100
    answer = "yes" if part < RULES["bubble"].value else "no: more micro-batches, or an interleaved schedule"
    numbers = f"{share(part)} of the pipeline's time"
    return [_goal("bubble", "Is the pipeline's bubble below 10 %?", answer, numbers, part, "bubble")]


def _straggler(step: RecordedStep) -> list[Question]:
    if step.ranks < 2:
        return []
    part = step.wait_ns / step.wall_ns
    return [
        Question(
            name="straggler",
            question="Do ranks wait for a straggler?",
            answer="yes" if part >= _NOTABLE else "no",
            numbers=f"{duration(step.wait_ns)} of a step, {share(part)}",
            value=part,
            limit=_NOTABLE,
            unit="ratio",
            source="Data Parallelism (page), 'Where the field is now'",
        )
    ]

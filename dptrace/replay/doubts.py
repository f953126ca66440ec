"""When a replay can't tell, and why."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from dptrace.core.units import duration, share
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.inferred import residuals
from dptrace.replay.graph.model import INFERRED
from dptrace.replay.simulation.changes import Change, HasDoubts
from dptrace.replay.simulation.steady_state import SteadyState

__all__ = ["Doubt", "Question", "doubts", "doubts_of_replay", "inferred_ns", "unexplained_ns"]

_MOST_ERROR = 0.05
_MOST_INFERRED = 0.04
_MOST_ABSENT = 0.5
_MOST_HOST = 0.95
_MOST_BOUND = 0.05


class Doubt(msgspec.Struct, frozen=True):
    """A reason to distrust an answer."""

    kind: str
    """``replay_misses``, ``unexplained``, ``inferred``, ``absent_ranks``, ``unsized``, ``steady_state``, ``host_sets``,
    ``contention``, ``assumed`` (what a change takes for granted)."""
    text: str
    refuses: bool
    """Whether the answer is "cannot tell"."""

    def to_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {"kind": self.kind, "text": self.text, "refuses": self.refuses}


class Question(msgspec.Struct, frozen=True):
    """What the doubts about an answer depend on; times are ns per step."""

    model: Model
    """Unchanged."""
    changes: tuple[Change, ...]
    measured_ns: float
    replayed_ns: float
    predicted_ns: float
    """Before it is bound by the steady state."""
    bound_ns: float
    """The shortest step that the steady state allows."""
    steady: SteadyState
    """Of the changed run."""
    steps: int
    absent_share: float
    """Share of the unchanged run's critical path that waits for ranks which were not recorded."""
    host_share: float
    """Share of it that hosts take."""


def unexplained_ns(model: Model) -> int:
    """Return how much later than explained the tasks of the worst device start, summed over the recording."""
    late = np.maximum(residuals(model.graph), 0)
    return max((int(late[process.interval_tasks].sum()) for process in model.processes), default=0)


def inferred_ns(model: Model) -> int:
    """Return how much of the worst device's time waits explain that only times suggest, over the recording."""
    edge = model.graph.edge
    explained = np.zeros(len(model.graph), np.int64)
    explained[edge.dst[edge.of(*INFERRED)]] = 1
    late = np.maximum(residuals(model.without_inferred().graph), 0) * explained
    return max((int(late[process.interval_tasks].sum()) for process in model.processes), default=0)


def doubts(question: Question, of_replay: Sequence[Doubt] | None = None) -> tuple[Doubt, ...]:
    """Return the reasons to distrust an answer, those that refuse one first.

    Args:
        of_replay: what :func:`doubts_of_replay` returns, if already computed: it is the same for all changes.
    """
    found = [*(doubts_of_replay(question) if of_replay is None else of_replay)]
    found += [*_about_absent(question), *_about_pace(question)]
    for change in question.changes:
        if isinstance(change, HasDoubts):
            found += [Doubt("assumed", text, False) for text in change.doubts(question.model)]
    return tuple(sorted(found, key=lambda doubt: not doubt.refuses))


def doubts_of_replay(question: Question) -> Sequence[Doubt]:
    """Check whether the replay of the unchanged run explains the run."""
    measured, steps = question.measured_ns, question.steps
    found = []
    error = abs(question.replayed_ns / measured - 1) if measured else 0.0
    if error > _MOST_ERROR:
        text = f"The replay of the unchanged run misses its step by {share(error)}: a dependency is missing or wrong."
        found.append(Doubt("replay_misses", text, True))
    open_ns = unexplained_ns(question.model) / steps
    if open_ns > _MOST_ERROR * measured:
        graphs = any("GraphLaunch" in name for name in question.model.graph.names)
        why = " The trace does not record what the nodes of a CUDA graph wait for." if graphs else ""
        text = f"{duration(open_ns)} of waiting in each step have no recorded reason.{why}"
        found.append(Doubt("unexplained", text, True))
    inferred = inferred_ns(question.model) / steps
    if inferred > _MOST_INFERRED * measured:
        text = f"{duration(inferred)} of waiting in each step are explained by times alone, so the range is wide."
        found.append(Doubt("inferred", text, False))
    return found


def _about_absent(question: Question) -> Sequence[Doubt]:
    """Check whether ranks that were not recorded decide."""
    found = []
    if question.absent_share > _MOST_ABSENT:
        text = f"The step is set by ranks that were not recorded ({share(question.absent_share)} of it)."
        found.append(Doubt("absent_ranks", text, True))
    unsized_ns = _unsized_ns(question.model) / question.steps
    if unsized_ns > _MOST_ERROR * question.measured_ns and any(change.collectives for change in question.changes):
        spent = f"{duration(unsized_ns)} of each step go to collectives"
        if _lacks_ranks(question.model):
            text = (
                f"Ranks are missing, and {spent} whose sizes the trace does not have: waiting and transfer can't be "
                "separated. Record all ranks, or with a torch that writes the sizes of collectives."
            )
        else:
            text = f"{spent} that are not matched across ranks: how long these wait for each other is unknown."
        found.append(Doubt("unsized", text, True))
    return found


def _lacks_ranks(model: Model) -> bool:
    return len(model.run.ranks) < model.run.world_size


def _unsized_ns(model: Model) -> int:
    """Return how long the collectives took of which neither the peers nor others of their size show the transfer."""
    transfers = model.transfers
    unknown = transfers.absent & ~transfers.sized if _lacks_ranks(model) else transfers.absent
    return int(transfers.duration_ns[unknown].sum()) // max(1, len(model.processes))


def _about_pace(question: Question) -> Sequence[Doubt]:
    """Check what sets the pace."""
    measured, steady, found = question.measured_ns, question.steady, []
    only_host = bool(question.changes) and not any(change.host for change in question.changes)
    if question.bound_ns > question.predicted_ns + _MOST_BOUND * measured:
        side, needs = "host", steady.host_ns
        if steady.device_ns > needs:
            side, needs = "device", steady.device_ns
        text = (
            f"The recording is too short to tell: a step could take {duration(question.predicted_ns)} at first, but "
            f"the {side} alone needs {duration(needs)} for one, which bounds the prediction."
        )
        found.append(Doubt("steady_state", text, True))
    elif only_host and question.host_share > _MOST_HOST:
        text = (
            f"The host sets the length of the step ({share(question.host_share)} of it), including what the profiler "
            "costs it: faster devices or links gain little."
        )
        found.append(Doubt("host_sets", text, False))
    if question.model.run.on_cpu and question.changes:
        text = "gloo and compute compete for cores, which a replay knows only roughly: the range is wide."
        found.append(Doubt("contention", text, False))
    return found

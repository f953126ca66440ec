"""One item of a checklist, with what it gains, and what all items need to know."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import msgspec

from dptrace.core.units import duration
from dptrace.model.advice.candidates import Candidate, best_of, candidate
from dptrace.model.planning.describe import Description
from dptrace.model.training.layout import Layout
from dptrace.model.training.memory.activations import RECOMPUTE
from dptrace.model.training.plan import Plan

__all__ = [
    "DDP_PAGE",
    "GOSPEL",
    "GUIDE",
    "LEAST_SHARE",
    "PAGE",
    "WORKSHOP",
    "Check",
    "CheckContext",
    "check",
    "check_dict",
    "sorted_checks",
    "span",
]

LEAST_SHARE = 0.01
"""Smallest share of the step, or of a GPU's memory, that is worth a change."""

GUIDE, DDP_PAGE = "Distributed Training (guide)", "Data Parallel & DDP"
GOSPEL, WORKSHOP, PAGE = "The AllReduce gospel", "GPU workshop: data parallelism", "Data Parallelism (page)"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """An item, and what follows from it for a training."""

    name: str
    what: str
    """What to do, as an imperative."""
    status: str
    """``apply``: it gains something. ``keep``: the prediction assumes it; the gain is what it costs to leave it out.
    ``skip``: it does not apply, or gains nothing."""
    reason: str
    """The numbers that decide."""
    gain_s: float | None = None
    """Seconds that a step of as many samples gets shorter; negative where it gets longer. None where not known."""
    gain_bytes: float | None = None
    """Bytes that the fullest GPU saves; negative where it needs more."""
    gain_share: float | None = None
    """gain_s over the step."""
    computed: str
    """How the gain was computed."""
    do: str
    """The code or the command."""
    source: str
    """Where the documents have it."""


class CheckContext(msgspec.Struct, frozen=True, dict=True):
    """The plan that the items are about, and the alternatives."""

    description: Description
    now: Candidate
    found: tuple[Candidate, ...] = ()
    """All candidates, ranked."""

    @property
    def plan(self) -> Plan:
        """Return the plan."""
        return self.now.plan

    @property
    def layout(self) -> Layout:
        """Return how it is spread."""
        return self.now.plan.layout

    @property
    def step_s(self) -> float:
        """Return the length of its step."""
        return self.now.step.step_s

    @cached_property
    def gradients(self) -> tuple[float, float]:
        """Return the bytes of the gradients that a GPU reduces in a step, and the time of it."""
        own = [one for one in self.now.step.traffic if one.what.startswith("gradients")]
        return sum(one.bytes * one.calls for one in own), sum(one.seconds for one in own)

    def changed(self, **fields: object) -> Candidate:
        """Return the plan with other fields, as a candidate."""
        return candidate(msgspec.structs.replace(self.plan, **fields))

    def best(self, plan: Plan, recompute: Iterable[str] = ()) -> Candidate:
        """Return the best micro-batch, and the best recomputation of those given, for a plan."""
        each = plan.batch // plan.layout.data
        sizes = [size for size in (1, 2, 4, 8, 16, 32, 64) if each % size == 0] or [plan.micro_batch]
        kinds = tuple(recompute) or (plan.recompute,)
        return best_of(
            [msgspec.structs.replace(plan, micro_batch=size, recompute=kind) for size in sizes for kind in kinds]
        )

    def any_recompute(self) -> tuple[str, ...]:
        """Return the kinds of recomputation that the description leaves open."""
        return (self.description.recompute,) if self.description.recompute else RECOMPUTE


def span(seconds: float) -> str:
    """Write a time that is in seconds."""
    return duration(1e9 * seconds)


def check(
    context: CheckContext,
    name: str,
    what: str,
    reason: str,
    computed: str,
    do: str,
    source: str,
    *,
    gain_s: float | None = None,
    gain_bytes: float | None = None,
    keep: bool = False,
    skip: bool = False,
) -> Check:
    """Return an item; its status follows from its gain, unless *keep* or *skip* says it.

    It applies from 1 % of the step or of a GPU's memory on. Memory counts where the plan does not fit, or
    where the time gets no longer.
    """
    share = None if gain_s is None else gain_s / context.step_s
    status = "skip" if skip else "keep" if keep else "apply" if _worthwhile(context, share, gain_bytes) else "skip"
    return Check(
        name=name,
        what=what,
        status=status,
        reason=reason,
        gain_s=gain_s,
        gain_bytes=gain_bytes,
        gain_share=share,
        computed=computed,
        do=do,
        source=source,
    )


def _worthwhile(context: CheckContext, share: float | None, gain_bytes: float | None) -> bool:
    if share is not None and share >= LEAST_SHARE:
        return True
    saves = gain_bytes is not None and gain_bytes >= LEAST_SHARE * context.plan.gpu.memory_bytes
    return saves and (not context.now.fits or (share or 0.0) > -LEAST_SHARE)


def sorted_checks(context: CheckContext, items: Iterable[Callable[[CheckContext], Check | None]]) -> list[Check]:
    """Return the items in the order of their status, those with the largest gain first.

    For a plan that does not fit, memory comes first.
    """
    found = [one for item in items if (one := item(context)) is not None]
    order = {"apply": 0, "keep": 1, "skip": 2}

    def rank(one: Check) -> tuple[int, float, float]:
        time, memory = one.gain_s or 0.0, one.gain_bytes or 0.0
        return (order[one.status], -time, -memory) if context.now.fits else (order[one.status], -memory, -time)

    return sorted(found, key=rank)


def check_dict(one: Check) -> dict[str, Any]:
    """Return an item of a checklist as plain data; times are whole ns."""
    return {
        "name": one.name,
        "what": one.what,
        "status": one.status,
        "applies": one.status == "apply",
        "reason": one.reason,
        "gain_ns": None if one.gain_s is None else round(1e9 * one.gain_s),
        "gain_share": one.gain_share,
        "gain_bytes": None if one.gain_bytes is None else round(one.gain_bytes),
        "computed": one.computed,
        "do": one.do,
        "source": one.source,
    }

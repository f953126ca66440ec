"""All sensible ways to spread a described training over its GPUs, combinations included, each with its best plan.

Tensor parallelism stays within a node (the guide "Distributed Training", sections 9.4 and 9.8); stages, sharded and
replicated data parallelism take the rest. For each layout, micro-batch and recomputation are chosen: the fastest plan
that fits, else the smallest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec

from dptrace.core.units import duration, plural
from dptrace.errors import UsageError
from dptrace.model.planning.describe import Description
from dptrace.model.training.layout import Layout
from dptrace.model.training.memory import RECOMPUTE, USABLE
from dptrace.model.training.plan import Plan
from dptrace.model.training.step import StepPrediction, predict_step

__all__ = [
    "DDP_PAGE",
    "GOSPEL",
    "GUIDE",
    "LEAST_SHARE",
    "PAGE",
    "WORKSHOP",
    "Candidate",
    "Check",
    "CheckContext",
    "best_of",
    "candidate",
    "candidates",
    "check",
    "check_dict",
    "family",
    "label",
    "shortlist",
    "sorted_checks",
    "span",
]


_MOST_IMBALANCE = 1.15
"""Layers of the longest stage over the mean above which a number of stages is left out."""
_LARGEST_MICRO_BATCH = 64
_VIRTUAL = (1, 2, 4, 8)
_SHARDED = {0: "DDP", 1: "ZeRO-1", 2: "ZeRO-2", 3: "FSDP"}


class Candidate(msgspec.Struct, frozen=True):
    """A plan with its memory and its step."""

    plan: Plan
    memory_bytes: float
    """Of the fullest GPU."""
    step: StepPrediction

    @property
    def label(self) -> str:
        """Return the degrees in words, such as ``TP 8 × PP 4 × ZeRO-1 ×2``."""
        return label(self.plan.layout)

    @property
    def over_bytes(self) -> float:
        """Return by how much it exceeds what a GPU can use; 0 if it fits."""
        return max(0.0, self.memory_bytes - USABLE * self.plan.gpu.memory_bytes)

    @property
    def fits(self) -> bool:
        """Return whether the fullest GPU can hold it."""
        return not self.over_bytes


def candidate(plan: Plan) -> Candidate:
    """Return a plan with its memory and its step."""
    return Candidate(plan, plan.memory.total, predict_step(plan))


def label(layout: Layout) -> str:
    """Return the degrees of a layout in words; ``PP 4 v2`` has two virtual stages on each GPU.

    >>> label(Layout(strategy="3d", data=2, tensor=8, stages=4, zero=1, shards=2))
    'TP 8 × PP 4 × ZeRO-1 ×2'
    """
    parts = [f"TP {layout.tensor}"] if layout.tensor > 1 else []
    if layout.stages > 1:
        parts.append(f"PP {layout.stages}" + (f" v{layout.virtual_stages}" if layout.virtual_stages > 1 else ""))
    parts += [f"EP {layout.expert}"] if layout.expert > 1 else []
    if layout.data > 1:
        hybrid = layout.zero == 3 and layout.shards < layout.data
        copies = f"HSDP {layout.shards}×{layout.data // layout.shards}"
        parts.append(copies if hybrid else f"{_SHARDED[layout.zero]} ×{layout.data}")
    return " × ".join(parts) or "one GPU"


def family(layout: Layout) -> tuple[bool, bool, bool, str]:
    """Return what kind of plan a layout is, without its degrees: of each kind, one is worth showing."""
    hybrid = layout.zero == 3 and layout.shards < layout.data
    sharding = "HSDP" if hybrid else _SHARDED[layout.zero] if layout.data > 1 else ""
    return layout.tensor > 1, layout.stages > 1, layout.expert > 1, sharding


def candidates(description: Description) -> list[Candidate]:
    """Return the best plan of each layout: what fits, fastest first, then what does not fit, smallest first.

    Raises:
        UsageError: no layout divides the GPUs, the batch and the model.
    """
    description.check()
    samples = description.samples
    layouts = list(_layouts(description))
    if not layouts:
        raise UsageError(description.indivisible())
    found = [best_of(plans) for layout in layouts if (plans := list(_plans(description, layout)))]
    if not found:
        raise UsageError(
            f"--batch {samples}: no plan on {plural(description.gpus, 'GPU')} can divide it. Give a batch that is a "
            "multiple of the number of GPUs."
        )
    return sorted(found, key=_rank)


def _rank(one: Candidate) -> tuple[bool, float, float]:
    return not one.fits, one.step.step_s if one.fits else one.memory_bytes, one.memory_bytes


def shortlist(found: Sequence[Candidate], each: int = 1) -> list[Candidate]:
    """Return the first of each family, in the same order; *found* is ranked.

    Args:
        each: how many of a family to keep.
    """
    kept: list[Candidate] = []
    for one in found:
        kind = family(one.plan.layout)
        if sum(family(other.plan.layout) == kind for other in kept) < each:
            kept.append(one)
    return kept


def best_of(plans: Sequence[Plan]) -> Candidate:
    """Return the fastest of some plans that fits, else the one that takes the least memory."""
    sized = [(plan.memory.total, plan) for plan in plans]
    limit = USABLE * plans[0].gpu.memory_bytes
    fitting = [Candidate(plan, size, predict_step(plan)) for size, plan in sized if size <= limit]
    if fitting:
        return min(fitting, key=lambda one: (one.step.step_s, one.memory_bytes))
    size, smallest = min(sized, key=lambda pair: pair[0])
    return Candidate(smallest, size, predict_step(smallest))


def _layouts(description: Description) -> Iterator[Layout]:
    """Yield the layouts that divide the GPUs, the layers and the heads."""
    shape, gpus, node = description.shape(), description.gpus, description.gpus_per_node
    local = math.gcd(gpus, node) if gpus > node else gpus
    for tensor in [description.tp] if description.tp else _divisors(local):
        if gpus % tensor or shape.heads % tensor:
            continue
        for stages in [description.pp] if description.pp else _divisors(gpus // tensor):
            if gpus % (tensor * stages):
                continue
            for schedule, virtual in _schedules(description, shape.layers, stages):
                yield from _shared(description, tensor, (stages, schedule, virtual), max(1, local // tensor))


def _schedules(description: Description, layers: int, stages: int) -> Iterator[tuple[str, int]]:
    """Yield the schedules with their virtual stages, of which each has nearly as many layers as the others.

    Where the description has the usual 1F1B, it is interleaved, too (the guide, section 10.8).
    """
    usual = description.schedule == "1f1b"
    if stages == 1:
        yield description.schedule, 1
        return
    given = description.virtual_stages if description.schedule == "interleaved" else 1
    for virtual in _VIRTUAL if usual else (given,):
        chunks = stages * virtual
        longest = math.ceil(layers / chunks) * chunks / layers
        if chunks <= layers and (longest <= _MOST_IMBALANCE or (description.pp and virtual == given)):
            yield ("interleaved" if usual and virtual > 1 else description.schedule), virtual


def _shared(description: Description, tensor: int, pipeline: tuple[int, str, int], local: int) -> Iterator[Layout]:
    """Yield the ways to share the rest of the GPUs: replicated, sharded, sharded in groups, with experts spread.

    Args:
        pipeline: stages, schedule, virtual stages.
    """
    stages, schedule, virtual = pipeline
    data = description.gpus // (tensor * stages)
    spread = [description.ep] if description.ep else _expert_degrees(description, data)
    for zero, shards in _shardings(data, stages, local):
        if description.zero is not None and zero != description.zero:
            continue
        for expert in spread:
            if data % expert or description.experts % expert or (expert > 1 and shards not in (1, data)):
                continue
            yield Layout(
                strategy=_strategy(tensor, stages, expert, zero, shards < data),
                data=data,
                tensor=tensor,
                stages=stages,
                expert=expert,
                zero=zero,
                shards=shards,
                sequence=tensor > 1,
                schedule=schedule,
                virtual_stages=virtual,
            )


def _shardings(data: int, stages: int, local: int) -> Iterator[tuple[int, int]]:
    """Yield ZeRO stages with the GPUs that share a copy; groups smaller than all are whole nodes, or parts of one."""
    yield 0, 1
    if data == 1:
        return
    yield 1, data
    if stages > 1:  # with several micro-batches in flight, ZeRO-2 would reduce each one's gradients by itself
        yield 3, data
        return
    yield 2, data
    yield 3, data
    shards = local
    while 1 < shards < data and data % shards == 0:
        yield 3, shards
        shards *= 2


def _expert_degrees(description: Description, data: int) -> list[int]:
    return [1] if description.experts == 1 else _divisors(math.gcd(description.experts, data))


def _strategy(tensor: int, stages: int, expert: int, zero: int, grouped: bool) -> str:
    """Return the name under which ``dptrace predict --strategy`` knows such a layout."""
    if tensor > 1 or stages > 1:
        return "3d" if tensor > 1 and stages > 1 else "tp" if tensor > 1 else "pp"
    if expert > 1:
        return "ep"
    return "hsdp" if zero == 3 and grouped else ("ddp", "zero1", "zero2", "fsdp")[zero]


def _plans(description: Description, layout: Layout) -> Iterator[Plan]:
    """Yield the plans of a layout, with each micro-batch and recomputation that is not given."""
    each, rest = divmod(description.samples, layout.data)
    if rest:
        return
    given = description.micro_batch
    sizes = [given] if given else [size for size in _divisors(each) if size <= _LARGEST_MICRO_BATCH]
    sizes = [size for size in sizes if each % size == 0]
    if not sizes:
        return
    first = description.plan(layout, description.samples, sizes[0], RECOMPUTE[0])
    for recompute in [description.recompute] if description.recompute else RECOMPUTE:
        for size in sizes:
            yield msgspec.structs.replace(first, micro_batch=size, recompute=recompute)


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number, smallest first."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


# One item of a checklist, with what it gains, and what all items need to know.


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

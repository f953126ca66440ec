"""All sensible ways to spread a described training over its GPUs, combinations included, each with its best plan.

Tensor parallelism stays within a node (the guide "Distributed Training", sections 9.4 and 9.8); stages, sharded and
replicated data parallelism take the rest. For each layout, micro-batch and recomputation are chosen: the fastest plan
that fits, else the smallest. ``dptrace predict`` and ``dptrace advise`` search the same layouts.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dptrace.core.units import plural
from dptrace.errors import UsageError
from dptrace.model.planning.describe import NOT_SHARDED, Description
from dptrace.model.training.layout import SHARDED, Layout, can_be_cut
from dptrace.model.training.memory import PRECISIONS, RECOMPUTE, USABLE
from dptrace.model.training.plan import Plan
from dptrace.model.training.shape import LayerStack, ModelShape
from dptrace.model.training.step import StepPrediction, predict_step

MAX_IMBALANCE = 1.15
"""Layers of the longest stage over the mean above which a number of stages is left out."""
MAX_MICRO_BATCH = 64
LONG = 8192
"""Tokens of a sample that a GPU should have at least where several share it."""
_SCHEDULES = (("1f1b", 1), ("interleaved", 2), ("interleaved", 4), ("interleaved", 8), ("zero-bubble", 1))
"""Schedules with their stages on each GPU, where none is given (the guide, section 10.8)."""


_DEGREES = ("tp", "cp", "pp", "ep", "expert_tp", "zero", "shards")


class Candidate(msgspec.Struct, frozen=True):
    """A plan with its memory and its step."""

    plan: Plan
    memory_bytes: float
    """Of the fullest GPU."""
    step: StepPrediction

    @property
    def label(self) -> str:
        """Return the plan in words, such as ``TP 8 × PP 4 × ZeRO-1 ×2``."""
        return self.plan.name

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


def rank(one: Candidate) -> tuple[bool, float, float]:
    """Return the key by which candidates are sorted: what fits, fastest first, then what does not, smallest first."""
    return not one.fits, one.step.step_s if one.fits else one.memory_bytes, one.memory_bytes


def best_of(plans: Sequence[Plan]) -> Candidate:
    """Return the fastest of some plans that fits, else the one that takes the least memory."""
    sized = [(plan.memory.total, plan) for plan in plans]
    limit = USABLE * plans[0].gpu.memory_bytes
    fitting = [Candidate(plan, size, predict_step(plan)) for size, plan in sized if size <= limit]
    if fitting:
        return min(fitting, key=lambda one: (one.step.step_s, one.memory_bytes))
    size, smallest = min(sized, key=lambda pair: pair[0])
    return Candidate(smallest, size, predict_step(smallest))


def family(layout: Layout) -> tuple[bool, bool, bool, bool, str]:
    """Return what kind of plan a layout is, without its degrees: of each kind, one is worth showing."""
    hybrid = layout.zero == 3 and layout.shards < layout.replicas
    sharding = "HSDP" if hybrid else SHARDED[layout.zero] if layout.replicas > 1 else ""
    return layout.tensor > 1, layout.stages > 1, layout.expert > 1, layout.context > 1, sharding


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


def search(description: Description) -> list[Candidate]:
    """Return the best plan of each layout that the description allows, ranked.

    Raises:
        UsageError: no layout divides the GPUs, the batch and the model.
    """
    description.check()
    description.hardware.peak(PRECISIONS[description.precision].compute)
    description.network()  # both refuse what is wrong with every layout
    found, refused = [], []
    for layout in layouts(description):
        try:
            found.append(best_of(plans(description, layout)))
        except UsageError as error:
            refused.append(error)
    if not found:
        raise refused[0] if len(set(map(str, refused))) == 1 else UsageError(_indivisible(description, refused))
    if description.schedule and not any(one.plan.layout.stages > 1 for one in found):
        gpus, many = plural(description.gpus, "GPU"), plural(description.samples, "sample")
        raise UsageError(
            f"--schedule {description.schedule}: no pipeline on {gpus} can run it with {many} in a step. Change "
            "--batch, or leave it out."
        )
    return sorted(found, key=rank)


_SMALLER = {"cpu_offload": True, "micro_batch": 1, "recompute": "full", "attention": "flash", "strategy": None}
"""Parts of a description with which a plan may take less memory."""


def remedies(description: Description) -> dict[str, Candidate]:
    """Return what can be added to a command of which nothing fits, each with the best plan that fits then.

    Each option is tried by itself, else all that the command takes together, and where nothing else helps, the one that
    saves most with more GPUs; ``without --strategy`` is one, too.
    """
    changes = [{name: value} for name, value in _SMALLER.items() if getattr(description, name) not in (None, value)]
    best = [(one, _changed(description, one)) for one in changes]
    together = {name: value for one, found in best if found for name, value in one.items()}
    sized = [(found.memory_bytes, one) for one, found in best if found]
    helps = min(sized, key=lambda pair: pair[0])[1] if sized else {}
    if not any(found and found.fits for _, found in best):
        best = [(together, _changed(description, together))]
    best += _with_more_gpus(description, {})
    if helps and not any(found and found.fits for _, found in best):
        best = _with_more_gpus(description, helps)
    return {_as_option(one): found for one, found in best if found and found.fits}


def _with_more_gpus(description: Description, fields: dict[str, Any]) -> list[tuple[dict[str, Any], Candidate | None]]:
    """Return the best plan of a description with other parts, on the fewest of 2 to 32 times the GPUs that hold it."""
    for power in range(1, 6):
        more = {"gpus": description.gpus << power, **fields}
        if (found := _changed(description, more)) and found.fits:
            return [(more, found)]
    return []


def _changed(description: Description, fields: dict[str, Any]) -> Candidate | None:
    """Return the best plan of a description with other parts; None where it is refused."""
    changed = msgspec.structs.replace(description, given=description.given | frozenset(fields), **fields)
    try:
        changed.check_given()
        return search(changed)[0]
    except UsageError:
        return None


def _as_option(fields: dict[str, Any]) -> str:
    """Write parts of a description as options.

    >>> _as_option({"cpu_offload": True, "micro_batch": 1, "strategy": None})
    '--cpu-offload --micro-batch 1 without --strategy'
    """
    words = []
    for name, value in fields.items():
        flag = f"--{name.replace('_', '-')}"
        words += [f"without {flag}" if value is None else flag if value is True else f"{flag} {value}"]
    return " ".join(words)


def searched(description: Description, tried: int) -> str:
    """Return which layouts were compared, as a sentence."""
    schedules = description.schedule or "1F1B, interleaved and zero-bubble"
    if description.strategy:
        return f"{plural(tried, 'layout')} of --strategy {description.strategy} compared, with {schedules or '1F1B'}."
    return (
        f"{plural(tried, 'layout')} compared: all combinations of data, tensor (within a node), pipeline and expert "
        f"parallelism, each kind of sharding, and the schedules {schedules}, with at least as many micro-batches as "
        "stages."
    )


def _indivisible(description: Description, refused: Sequence[UsageError]) -> str:
    """Describe why no layout is possible: what the batch, the schedule or the layers refuse, and how often."""
    shape, gpus = description.shape(), plural(description.gpus, "GPU")
    if refused:
        why = {
            "--batch": f"can't divide the {plural(description.samples, 'sample')} of a step",
            "--schedule": "have too few micro-batches for their stages",
            "--tp": "split layers that can't be",
        }
        counts = Counter(why.get(str(error).split()[0], "have more stages than layers") for error in refused)
        reasons = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
        return (
            f"None of {len(refused)} ways to train on {gpus} can run: {reasons}. A --batch that is a multiple of "
            f"{description.gpus * (description.micro_batch or 1)} can be divided on every layout."
        )
    given = {name: getattr(description, name) for name in _DEGREES if getattr(description, name)}
    chosen = {"tp": ("tp",), "pp": ("pp",), "3d": ("tp", "pp")}.get(description.strategy or "", ())
    degrees = " and ".join(f"--{name.replace('_', '-')} {degree}" for name, degree in given.items())
    chunks = f" × {description.virtual_stages} virtual stages" if description.schedule == "interleaved" else ""
    rules = {
        "tp": f"--tp the {plural(shape.heads, 'head')}",
        "cp": f"--cp the {plural(shape.sequence, 'token')} of a sample",
        "pp": f"--pp{chunks} at most the {plural(shape.layers, 'layer')}",
        "ep": f"--ep the {plural(shape.experts, 'expert')}",
        "expert_tp": "--expert-tp those of --tp",
    }
    sharded = (
        "; --zero and --shards need GPUs that the other degrees leave" if {"zero", "shards"} & given.keys() else ""
    )
    return (
        f"{degrees or f'--strategy {description.strategy}'}: no plan on {gpus} has it. The degrees must divide the GPUs"
        f"{''.join(f', {rule}' for name, rule in rules.items() if name in {*given, *chosen})}{sharded}."
    )


def plans(description: Description, layout: Layout) -> list[Plan]:
    """Return the plans of a layout: with each size of the micro-batch and each recomputation that is not given.

    Raises:
        UsageError: the batch can't be divided, or the schedule can't run with so few micro-batches.
    """
    each, rest = divmod(description.samples, layout.data)
    if rest:
        raise UsageError(f"--batch {description.samples}: must be divisible by the {layout.data} data-parallel GPUs.")
    if description.cpu_offload and layout.zero < 3:
        raise UsageError(NOT_SHARDED)
    given = description.micro_batch
    sizes = [given] if given else micro_batch_sizes(description.shape(), each)
    first = description.plan(layout, description.samples, sizes[0], description.recompute or RECOMPUTE[0])
    found, refused = [], None
    for size in sizes:
        plan = msgspec.structs.replace(first, micro_batch=size)
        try:
            plan.check()
        except UsageError as error:
            refused = error
            continue
        if description.strategy or plan.micro_batches >= layout.stages:
            found.append(plan)
    if not found:
        raise refused or UsageError(f"--batch {description.samples}: too few micro-batches for {layout.name}.")
    kinds = [description.recompute] if description.recompute else RECOMPUTE
    return [msgspec.structs.replace(plan, recompute=kind) for kind in kinds for plan in found]


def micro_batch_sizes(shape: ModelShape, each: int) -> list[int]:
    """Return the micro-batches to try for the samples of a GPU: up to 64, and of stacks of layers up to all of them."""
    most = each if isinstance(shape, LayerStack) else MAX_MICRO_BATCH
    return [size for size in _divisors(each) if size <= most]


def can_run(plan: Plan) -> bool:
    """Return whether a plan divides everything, and its pipeline has as many micro-batches as stages."""
    try:
        plan.check()
    except UsageError:
        return False
    return plan.micro_batches >= plan.layout.stages


def layouts(description: Description) -> Iterator[Layout]:
    """Yield the layouts that the description allows: those of its strategy, or all combinations.

    Raises:
        UsageError: a strategy is given, and no degree fits it.
    """
    yield from _of_strategy(description, description.strategy) if description.strategy else _combined(description)


def _of_strategy(description: Description, strategy: str) -> list[Layout]:
    """Return the layouts of a strategy: one, unless it has degrees that are not given."""
    shape = description.shape()
    tensor = [description.tp] if description.tp or strategy not in ("tp", "3d") else _divisors(description.local)
    stages = [description.pp] if description.pp or strategy not in ("pp", "3d") else _divisors(description.gpus)
    context = _contexts(description)
    several = len(tensor) * len(stages) * len(context) > 1
    found, refused = [], None
    for split, depth, ring in itertools.product(tensor, stages, context):
        try:
            layout = description.layout(strategy, split, depth, ring)
        except UsageError as error:
            refused = error
            continue
        splits = layout.tensor > 1 or strategy not in ("tp", "3d")
        staged = layout.stages > 1 or strategy not in ("pp", "3d")
        divides = not shape.heads % layout.tensor and layout.stages <= shape.layers
        if not several or (splits and staged and divides):
            found.append(layout)
    if refused and not several:
        raise refused
    return found


def _contexts(description: Description) -> list[int]:
    """Return the GPUs that may share a sample: as given, or as many as have LONG tokens of it each."""
    if description.cp or isinstance(description.shape(), LayerStack):
        return [description.cp or 1]
    most = max(1, min(description.seq // LONG, description.gpus))
    return [1 << power for power in range(most.bit_length()) if description.seq % (1 << power) == 0]


def _combined(description: Description) -> Iterator[Layout]:
    """Yield the layouts that divide the GPUs, the layers and the heads."""
    shape, gpus, local = description.shape(), description.gpus, description.local
    for tensor in [description.tp] if description.tp else _divisors(local):
        if gpus % tensor or shape.heads % tensor:
            continue
        for stages in [description.pp] if description.pp else _divisors(gpus // tensor):
            if gpus % (tensor * stages):
                continue
            pipelines = _schedules(description, shape.layers, stages)
            for (schedule, virtual), context in itertools.product(pipelines, _contexts(description)):
                if gpus % (tensor * stages * context) == 0:
                    pipeline = (stages, schedule, virtual)
                    yield from _shared(description, tensor, pipeline, context, max(1, local // tensor))


def _schedules(description: Description, layers: int, stages: int) -> Iterator[tuple[str, int]]:
    """Yield the schedules with their stages on each GPU, of which each has nearly as many layers as the others."""
    if stages == 1:
        yield "1f1b", 1
        return
    given = description.schedule
    virtual_stages = description.virtual_stages if given == "interleaved" else 1
    for schedule, virtual in [(given, virtual_stages)] if given else _SCHEDULES:
        chunks = stages * virtual
        longest = math.ceil(layers / chunks) * chunks / layers
        asked = description.pp and virtual == virtual_stages
        if can_be_cut(layers, stages, virtual) and (asked or longest <= MAX_IMBALANCE):
            yield schedule, virtual


def _shared(
    description: Description, tensor: int, pipeline: tuple[int, str, int], context: int, local: int
) -> Iterator[Layout]:
    """Yield the ways to share the rest of the GPUs: replicated, sharded, sharded in groups, with experts spread.

    Args:
        pipeline: stages, schedule, virtual stages.
    """
    stages, schedule, virtual = pipeline
    replicas = description.gpus // (tensor * stages)
    if tensor % (description.expert_tp or 1):
        return
    whole = replicas * tensor // (description.expert_tp or tensor)
    spread = [description.ep] if description.ep else _divisors(math.gcd(description.experts, whole))
    shardings = [(3, 1)] if description.cpu_offload and replicas == 1 else _shardings(replicas, stages, local, schedule)
    for zero, shards in shardings:
        in_whole = zero < 3 and (description.shards or description.cpu_offload)
        if in_whole or description.zero not in (None, zero) or description.shards not in (None, shards):
            continue
        for expert in spread:
            if whole % expert or description.experts % expert or (expert > 1 and shards not in (1, replicas)):
                continue
            yield Layout(
                strategy=_strategy(tensor, stages, expert, zero, shards < replicas),
                data=replicas // context,
                tensor=tensor,
                context=context,
                stages=stages,
                expert=expert,
                expert_tensor=description.expert_tp or 0,
                zero=zero,
                shards=shards,
                sequence=tensor > 1,
                schedule=schedule,
                virtual_stages=virtual,
            )


def _shardings(data: int, stages: int, local: int, schedule: str) -> Iterator[tuple[int, int]]:
    """Yield ZeRO stages with the GPUs that share a copy; groups smaller than all are whole nodes, or parts of one."""
    yield 0, 1
    if data == 1:
        return
    yield 1, data
    if stages == 1 or schedule == "interleaved":  # else ZeRO-2 would reduce each micro-batch's gradients by itself
        yield 2, data
    yield 3, data
    if stages > 1:
        return
    shards = local
    while 1 < shards < data and data % shards == 0:
        yield 3, shards
        shards *= 2


def _strategy(tensor: int, stages: int, expert: int, zero: int, grouped: bool) -> str:
    """Return the name under which ``--strategy`` knows such a layout."""
    if tensor > 1 or stages > 1:
        return "3d" if tensor > 1 and stages > 1 else "tp" if tensor > 1 else "pp"
    if expert > 1:
        return "ep"
    return "hsdp" if zero == 3 and grouped else ("ddp", "zero1", "zero2", "fsdp")[zero]


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number, smallest first."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})

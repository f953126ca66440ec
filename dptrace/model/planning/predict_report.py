"""A predicted step and its alternatives: the contents of ``dptrace predict --json``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from dptrace.core.numbers import Number
from dptrace.core.units import plural
from dptrace.errors import UsageError
from dptrace.model.planning.describe import Description
from dptrace.model.planning.memory_report import memory_parts, shape_dict, whole_bytes
from dptrace.model.scaling import amdahl_ceiling, gustafson_efficiency, parallel_fraction
from dptrace.model.training.communication import (
    BETWEEN,
    WITHIN,
    Link,
    all_reduces,
    ccr,
    level,
    level_dict,
    reduce_seconds,
    sent_by_level,
)
from dptrace.model.training.layout import Layout
from dptrace.model.training.plan import Plan
from dptrace.model.training.step import StepPrediction, Traffic, predict_step, targets

__all__ = ["GPU_COUNTS", "best_plan", "choices", "predict_report", "ranked_choices", "sharded_notes"]


# Efficiency from 1 to 1,024 GPUs, with a fixed batch for each GPU and with a fixed batch for all of them.


GPU_COUNTS = tuple(1 << power for power in range(11))


def scaling_table(description: Description, plan: Plan) -> list[dict[str, Any]]:
    """Predict a plan's strategy on other numbers of GPUs; counts that its degrees do not divide are left out.

    *Weak*: each GPU keeps its samples, and the batch grows. *Strong*: the batch stays, and each GPU gets fewer samples.
    Efficiency is the throughput of a GPU relative to the row with the fewest GPUs. Amdahl's ceiling and Gustafson's
    efficiency take the exposed communication of the plan as the serial share.
    """
    step = predict_step(plan)
    each = plan.batch / plan.layout.gpus
    fraction = parallel_fraction(step.compute_s * plan.layout.gpus, step.exposed_s)
    serial = step.exposed_s / step.step_s
    rows: list[dict[str, Any]] = []
    for gpus in GPU_COUNTS:
        weak = _on(description, plan, gpus, round(each * gpus))
        if weak is None:
            continue
        strong = _on(description, plan, gpus, plan.batch)
        rows.append(
            {
                "gpus": gpus,
                "fits": weak[0].fits,
                "batch": weak[0].batch,
                **_times(weak[1]),
                "weak_efficiency": _relative(weak, rows, "_weak"),
                "strong_step_s": strong and strong[1].step_s,
                "strong_samples_per_s": strong and strong[1].samples_per_s,
                "strong_efficiency": strong and _relative(strong, rows, "_strong"),
                "amdahl_ceiling": amdahl_ceiling(fraction, gpus),
                "gustafson_efficiency": gustafson_efficiency(serial, gpus),
                "_weak": weak[1].samples_per_s / gpus,
                "_strong": strong and strong[1].samples_per_s / gpus,
            }
        )
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]


def _times(step: StepPrediction) -> dict[str, Any]:
    return {
        "step_s": step.step_s,
        "compute_s": step.compute_s,
        "communication_s": step.communication_s,
        "exposed_s": step.exposed_s,
        "communication_share": step.communication_s / (step.communication_s + step.compute_s),
        "samples_per_s": step.samples_per_s,
        "tokens_per_s": step.tokens_per_s,
        "mfu": step.mfu,
    }


def _relative(found: tuple[Plan, StepPrediction], rows: list[dict[str, Any]], key: str) -> float:
    plan, step = found
    own = step.samples_per_s / plan.layout.gpus
    base = next((row[key] for row in rows if row[key]), own)
    return float(own / base)


def _on(description: Description, plan: Plan, gpus: int, batch: int) -> tuple[Plan, StepPrediction] | None:
    """Return the plan on another number of GPUs; None where its degrees or the batch can't be divided."""
    try:
        layout = _layout(description, plan.layout, gpus)
    except UsageError:
        return None
    if batch % layout.data:
        return None
    each = batch // layout.data
    size = max(size for size in range(1, plan.micro_batch + 1) if each % size == 0)
    other = msgspec.structs.replace(plan, layout=layout, batch=batch, micro_batch=size)
    return other, predict_step(other)


def _layout(description: Description, layout: Layout, gpus: int) -> Layout:
    kept = {"tp": layout.tensor, "pp": layout.stages, "ep": layout.expert if layout.expert > 1 else None}
    return msgspec.structs.replace(description, **kept).layout(layout.strategy, gpus)


# The plans of a description, and the best of each layout: the fastest that fits, else the smallest.


class Choice(msgspec.Struct, frozen=True):
    """A plan with its step."""

    plan: Plan
    step: StepPrediction


def best_plan(description: Description, layout: Layout) -> Choice:
    """Return the fastest plan of a layout that fits, else the one that takes the least memory."""
    found = list(description.plans(layout))
    fitting = [Choice(plan, predict_step(plan)) for plan in found if plan.fits]
    if fitting:
        return min(fitting, key=lambda choice: (choice.step.step_s, choice.plan.memory.total))
    smallest = min(found, key=lambda plan: plan.memory.total)
    return Choice(smallest, predict_step(smallest))


def choices(description: Description) -> Iterator[Choice]:
    """Yield the best plan of each layout; layouts that can't divide the batch are left out where others can.

    Raises:
        UsageError: no layout can.
    """
    refused, found = None, False
    for layout in description.layouts():
        try:
            yield best_plan(description, layout)
            found = True
        except UsageError as error:
            refused = error
    if not found:
        raise refused or UsageError(description.indivisible())


def ranked_choices(compared: Iterable[Choice], most_of_strategy: int = 3) -> list[Choice]:
    """Return what fits, fastest first, then what does not fit, smallest first.

    Args:
        compared: the plans of :func:`choices`.
        most_of_strategy: how many layouts of a strategy to keep.
    """
    order = sorted(compared, key=_rank)
    kept: list[Choice] = []
    for choice in order:
        strategy = choice.plan.layout.strategy
        if sum(one.plan.layout.strategy == strategy for one in kept) < most_of_strategy:
            kept.append(choice)
    return kept


def _rank(choice: Choice) -> tuple[bool, float]:
    fits = choice.plan.fits
    return not fits, choice.step.step_s if fits else choice.plan.memory.total


SCHEMA = 1
_SHARDED = (
    "Parameters sharded across nodes are assumed to be gathered under computation. On llm-foundry's FSDP of 30 and 65 "
    "billion parameters that is off by 7 % in the mean; DeepSpeed in 2021 reached a quarter to two thirds of that "
    "speed (arXiv 2104.04473, table 2)."
)
_DAY_S = 86_400
_TOKENS = Number(1, 1e18)


def predict_report(description: Description, tokens: float | None = None) -> dict[str, Any]:
    """Predict the step of a training by its strategy; without one, compare all and take the best.

    Args:
        tokens: to train on, for the days that it takes.

    Raises:
        UsageError: the description is incomplete, or its numbers do not divide.
    """
    description.check()
    if tokens is not None:
        _TOKENS.check(tokens, "--tokens")
    compared = list(choices(description))
    found = ranked_choices(compared)
    best = found[0]
    plan = best.plan
    content = {
        "schema": SCHEMA,
        "kind": "predict",
        "params": plan.shape.parameters,
        "shape": shape_dict(plan.shape),
        "precision": plan.precision,
        "gpu": plan.gpu.name,
        "gpu_memory_bytes": plan.gpu.memory_bytes,
        "gpus": description.gpus,
        "gpus_per_node": description.gpus_per_node,
        "links": [_link_dict(link) for link in (plan.network.within, plan.network.between)],
        "batch": plan.batch,
        "tokens": best.step.tokens,
        **_choice(best, tokens),
        "communication": [_traffic_dict(one) for one in best.step.traffic],
        "targets": [{"name": t.name, "goal": t.goal, "value": t.value, "met": t.met} for t in targets(best.step)],
        "candidates": [_choice(choice, tokens) for choice in found],
        "tried": len(compared),
        "scaling": scaling_table(description, plan),
        "roofline": _roofline(plan, best.step),
        "all_reduce": _all_reduces(plan),
        "assumptions": [
            *description.assumptions(),
            *_assumed(plan, best.step, description),
            *_compared(description, len(compared)),
        ],
    }
    rounded: dict[str, Any] = whole_bytes(content)
    return rounded


def _choice(choice: Choice, tokens: float | None) -> dict[str, Any]:
    plan, step, layout = choice.plan, choice.step, choice.plan.layout
    return {
        "strategy": layout.strategy,
        "layout": layout.name,
        "degrees": {"dp": layout.data, "tp": layout.tensor, "pp": layout.stages, "ep": layout.expert},
        "zero": layout.zero,
        "micro_batch": plan.micro_batch,
        "micro_batches": plan.micro_batches,
        "recompute": plan.recompute,
        "recompute_every": plan.recompute_every,
        "fits": plan.fits,
        "per_gpu_bytes": plan.memory.total,
        "per_gpu": memory_parts(plan.memory),
        **_step_dict(step),
        **({"training_days": tokens / step.tokens_per_s / _DAY_S} if tokens else {}),
    }


def _step_dict(step: StepPrediction) -> dict[str, Any]:
    return {
        "step_s": step.step_s,
        "compute_s": step.compute_s,
        "assumed_share_of_peak": step.share,
        "bubble_s": step.bubble_s,
        "optimizer_s": step.optimizer_s,
        "communication_s": step.communication_s,
        "exposed_s": step.exposed_s,
        "serial_step_s": step.serial_s,
        "ideal_step_s": step.ideal_s,
        "ideal_exposed_s": step.ideal_exposed_s,
        "samples_per_s": step.samples_per_s,
        "tokens_per_s": step.tokens_per_s,
        "model_flops": step.model_flops,
        "mfu": step.mfu,
        "bubble": step.bubble,
        "overlap": step.overlap,
        "efficiency": step.efficiency,
    }


def _traffic_dict(one: Traffic) -> dict[str, Any]:
    return {
        "what": one.what,
        "kind": one.kind,
        "bytes": one.bytes,
        "calls": one.calls,
        "ranks": one.ranks,
        "sent_bytes": one.sent_bytes,
        "call_s": one.call_s,
        "total_s": one.seconds,
        "hides_under": one.hides or None,
    }


def _link_dict(link: Link) -> dict[str, Any]:
    return {"name": link.name, "alpha_s": link.alpha_s, "bytes_per_s": link.bytes_per_s}


def _roofline(plan: Plan, step: StepPrediction) -> list[dict[str, Any]]:
    """Return where the step lies for each link that it uses, by the bytes that a GPU sends over it."""
    peak, each = step.peak_flops / plan.layout.gpus, plan.batch / plan.layout.gpus
    pairs = [sent_by_level(plan.network, one.kind, one.bytes, one.ranks, one.stride) for one in step.traffic]
    levels = []
    for number, link in enumerate((plan.network.within, plan.network.between)):
        sent = sum(pair[number] * one.calls for pair, one in zip(pairs, step.traffic, strict=True))
        if sent:
            found = level(link, peak, ccr(step.model_flops / plan.layout.gpus, sent), each)
            levels.append({"sent_bytes": sent, **level_dict(found)})
    return levels


def _all_reduces(plan: Plan) -> dict[str, Any] | None:
    """Compare the algorithms for an all-reduce of all gradients among all GPUs; None on one GPU."""
    ranks = plan.layout.gpus
    size = plan.shape.parameters * plan.state.gradients
    if ranks == 1:
        return None
    rows = [
        {"algorithm": one.algorithm, "steps": one.steps, "sent_bytes": one.sent_bytes, "seconds": one.seconds}
        for one in all_reduces(plan.network, size, ranks)
    ]
    adding = reduce_seconds(size, ranks, plan.gpu.memory_bytes_per_s)
    return {"size_bytes": size, "ranks": ranks, "adding_s": adding, "algorithms": rows}


def _assumed(plan: Plan, step: StepPrediction, description: Description) -> list[str]:
    own = "as given" if description.mfu else "from the size of its matrices"
    peak = step.peak_flops / plan.layout.gpus
    nominal = {"within a node": (description.measured_within, WITHIN)}
    nominal["between nodes"] = (description.measured_between, BETWEEN)
    shares = [
        f"{100 * share:.0f} % of the nominal bandwidth {where}"
        for where, (link, share) in nominal.items()
        if link is None
    ]
    links = [f"Collectives reach {', '.join(shares)}."] if shares else []
    compute = f"Computation reaches {100 * step.share:.0f} % of the peak of {peak / 1e12:,.0f} TFLOP/s, dense, {own}."
    return [compute, *links, *sharded_notes(plan)]


def _compared(description: Description, layouts: int) -> list[str]:
    """Return which layouts were compared, where no strategy is given."""
    if description.strategy:
        return []
    compared = f"{plural(layouts, 'layout')} compared: of each strategy alone, with powers of two as degrees."
    return [f"{compared} dptrace advise also compares combinations, other degrees and interleaved stages."]


def sharded_notes(plan: Plan) -> list[str]:
    """Return what a plan takes for granted that gathers parameters from other nodes; empty for others."""
    layout = plan.layout
    across = layout.zero == 3 and layout.shards * layout.tensor > plan.network.gpus_per_node
    return [_SHARDED] if across else []

"""A predicted step and its alternatives: the contents of ``dptrace predict --json``."""

from __future__ import annotations

from typing import Any

from dptrace.core.numbers import Number
from dptrace.core.units import plural
from dptrace.model.planning.describe import Description
from dptrace.model.planning.live import live_figures
from dptrace.model.planning.memory_report import memory_parts, shape_dict, whole_bytes
from dptrace.model.planning.scaling_table import scaling_table
from dptrace.model.planning.search import Choice, choices, ranked_choices
from dptrace.model.training.communication.all_reduce import all_reduces
from dptrace.model.training.communication.network import BETWEEN, WITHIN, Link, sent_by_level
from dptrace.model.training.communication.roofline import ccr, level, level_dict, reduce_seconds
from dptrace.model.training.plan import Plan
from dptrace.model.training.step import StepPrediction, targets
from dptrace.model.training.traffic import Traffic

__all__ = ["predict_report", "sharded_notes"]

SCHEMA = 1
_SHARDED = (
    "Parameters sharded across nodes are assumed to be gathered under computation. On llm-foundry's FSDP of 30 and 65 "
    "billion parameters that is off by 7 % in the mean; DeepSpeed in 2021 reached a quarter to two thirds of that "
    "speed (arXiv 2104.04473, table 2)."
)
_DAY_S = 86_400
_TOKENS = Number(1, 1e18)


def predict_report(description: Description, tokens: float | None = None, live: bool = False) -> dict[str, Any]:
    """Predict the step of a training by its strategy; without one, compare all and take the best.

    Args:
        tokens: to train on, for the days that it takes.
        live: add what a page needs to compute it again.

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
        **({"live": live_figures(plan)} if live else {}),
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

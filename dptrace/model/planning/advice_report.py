"""Advice on a described training: the contents of ``dptrace advise --json``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from dptrace.core.units import byte_size, duration
from dptrace.errors import UsageError
from dptrace.model.planning.candidates import (
    Candidate,
    CheckContext,
    best_of,
    candidates,
    check_dict,
    shortlist,
    sorted_checks,
)
from dptrace.model.planning.checks import COMMUNICATION_CHECKS, LOOP_CHECKS, MEMORY_CHECKS, PIPELINE_CHECKS, TIME_CHECKS
from dptrace.model.planning.decision import Decision, decide, question_dict
from dptrace.model.planning.describe import Description
from dptrace.model.planning.memory_report import memory_parts, shape_dict, whole_bytes
from dptrace.model.planning.predict_report import sharded_notes
from dptrace.model.training.memory import USABLE

__all__ = ["CHECKS", "SCHEMA", "advice_report"]


SCHEMA = 1
CHECKS = (*TIME_CHECKS, *COMMUNICATION_CHECKS, *MEMORY_CHECKS, *PIPELINE_CHECKS, *LOOP_CHECKS)

_ERROR = 0.05
"""Mean error of predicted steps on published measurements (docs/guides/plan.md): smaller differences do not count."""
_OF_THE_PLAN = ("strategy", "tp", "pp", "ep", "zero", "shards", "micro_batch", "recompute")
_OF_ONE_COMMAND = (*_OF_THE_PLAN, "schedule", "virtual_stages")
"""Options that a candidate's command has only where they are its own."""
_PARTS = ("compute_s", "bubble_s", "optimizer_s", "exposed_s")
_NAMES = {
    "compute_s": "computation",
    "bubble_s": "bubble",
    "optimizer_s": "optimizer",
    "exposed_s": "communication",
}


def advice_report(description: Description) -> dict[str, Any]:
    """Advise on a training: the decision path, all ways to spread it, and the checklists with their gains.

    With a strategy in the description, the checklists are about that plan; without, about the best one.

    Raises:
        UsageError: the description is incomplete, or its numbers do not divide.
    """
    description.check()
    free = _without_plan(description) if description.strategy else description
    found = candidates(free)
    decision = decide(free, found)
    best = found[0]
    now = _described(description) if description.strategy else best
    shown = shortlist(found)
    suggested = next((one for one in found if decision.follows(one.plan.layout)), None)
    context = CheckContext(description, now, tuple(found) if description.strategy else ())
    content = {
        "schema": SCHEMA,
        "kind": "advise",
        **_training(description, best),
        "path": [question_dict(question) for question in decision.path],
        "tree": _tree(decision, suggested, best),
        "chosen": _candidate_dict(best, best, free),
        "plan": _candidate_dict(now, best, free) if description.strategy else None,
        **_equal(shown, best),
        "candidates": [_candidate_dict(one, best, free) for one in shown],
        "tried": len(found),
        "checks": [check_dict(one) for one in sorted_checks(context, CHECKS)],
        "assumptions": [*description.assumptions(), *_assumed(best)],
    }
    rounded: dict[str, Any] = whole_bytes(content)
    return rounded


def _without_plan(description: Description) -> Description:
    """Return the description without the options that belong to one plan."""
    return msgspec.structs.replace(description, **dict.fromkeys(_OF_THE_PLAN))


def _described(description: Description) -> Candidate:
    """Return the best plan of the strategy that was given."""
    refused: UsageError | None = None
    found = []
    for layout in description.layouts():
        try:
            found.append(best_of(list(description.plans(layout))))
        except UsageError as error:
            refused = error
    if not found:
        raise refused or UsageError(f"--strategy {description.strategy}: no plan with it can divide the GPUs.")
    return min(found, key=lambda one: (not one.fits, one.step.step_s if one.fits else one.memory_bytes))


def _training(description: Description, best: Candidate) -> dict[str, Any]:
    plan = best.plan
    return {
        "params": plan.shape.parameters,
        "shape": shape_dict(plan.shape),
        "precision": plan.precision,
        "attention": "flash" if plan.flash else "standard",
        "gpu": plan.gpu.name,
        "gpu_memory_bytes": plan.gpu.memory_bytes,
        "usable_bytes": USABLE * plan.gpu.memory_bytes,
        "gpus": description.gpus,
        "gpus_per_node": description.gpus_per_node,
        "links": [plan.network.within.name, plan.network.between.name],
        "batch": plan.batch,
        "tokens": best.step.tokens,
    }


def _tree(decision: Decision, suggested: Candidate | None, best: Candidate) -> dict[str, Any]:
    """Return what the tree recommends, its best plan, and how that compares with the fastest."""
    if suggested is None:
        return {"strategy": decision.strategy, "label": None, "fits": None, "slower": None}
    slower = suggested.step.step_s / best.step.step_s - 1
    return {
        "strategy": decision.strategy,
        "label": suggested.label,
        "fits": suggested.fits,
        "slower": slower if suggested.fits == best.fits else None,
    }


def _candidate_dict(one: Candidate, best: Candidate, description: Description) -> dict[str, Any]:
    plan, step, layout = one.plan, one.step, one.plan.layout
    return {
        "label": one.label,
        "degrees": {"dp": layout.data, "tp": layout.tensor, "pp": layout.stages, "ep": layout.expert},
        "zero": layout.zero,
        "shards": layout.shards,
        "schedule": layout.schedule if layout.stages > 1 else None,
        "virtual_stages": layout.virtual_stages,
        "micro_batch": plan.micro_batch,
        "micro_batches": plan.micro_batches,
        "recompute": plan.recompute,
        "fits": one.fits,
        "per_gpu_bytes": one.memory_bytes,
        "over_bytes": one.over_bytes,
        "per_gpu": memory_parts(plan.memory),
        "step_ns": round(1e9 * step.step_s),
        **{part.replace("_s", "_ns"): round(1e9 * getattr(step, part)) for part in _PARTS},
        "samples_per_s": step.samples_per_s,
        "tokens_per_s": step.tokens_per_s,
        "mfu": step.mfu,
        "bubble": step.bubble,
        "overlap": step.overlap,
        "efficiency": step.efficiency,
        "loses": _loses(one, best),
        "command": _command(one, description),
    }


def _equal(shown: Sequence[Candidate], best: Candidate) -> dict[str, Any]:
    """Return the plans whose step the model can't tell from the best one's, and which of all these is the simplest.

    Simplest: the fewest kinds of parallelism, then the lowest ZeRO stage (the guide, section 13: start with DDP or
    FSDP, add tensor parallelism, then stages).
    """
    equal = [one for one in shown if one.fits == best.fits and one.step.step_s <= (1 + _ERROR) * best.step.step_s]
    equal = equal if best.fits else []

    def pieces(one: Candidate) -> tuple[int, int, bool, int]:
        layout = one.plan.layout
        kinds = (layout.tensor > 1) + 2 * (layout.stages > 1) + (layout.expert > 1)
        return kinds, layout.zero, layout.shards < layout.data, layout.tensor * layout.stages

    simplest = min(equal, key=pieces, default=None)
    return {"tied": [one.label for one in equal if one.plan != best.plan], "simplest": simplest and simplest.label}


def _loses(one: Candidate, best: Candidate) -> str:
    """Describe why a plan is not the best: how much memory it lacks, or which part of its step is longer."""
    if one.plan == best.plan:
        return ""
    if not one.fits:
        return f"{byte_size(one.over_bytes)} too much"
    more = {name: getattr(one.step, name) - getattr(best.step, name) for name in _PARTS}
    most = max(more, key=lambda name: more[name])
    return f"{_NAMES[most]} +{duration(1e9 * more[most])}"


def _command(one: Candidate, description: Description) -> str:
    """Return the command that predicts a plan in full."""
    layout, plan = one.plan.layout, one.plan
    if layout.strategy == "ddp" and layout.gpus == 1:
        return _typed(description, {"strategy": "ddp", "micro_batch": plan.micro_batch, "recompute": plan.recompute})
    own: dict[str, object] = {"strategy": layout.strategy}
    own |= {"tp": layout.tensor} if layout.strategy in ("tp", "3d") else {}
    own |= {"pp": layout.stages} if layout.strategy in ("pp", "3d") else {}
    own |= {"ep": layout.expert} if layout.expert > 1 else {}
    own |= {"schedule": layout.schedule} if layout.stages > 1 else {}
    own |= {"virtual_stages": layout.virtual_stages} if layout.schedule == "interleaved" and layout.stages > 1 else {}
    own |= {"zero": layout.zero} if layout.strategy in ("tp", "pp", "3d", "ep") else {}
    own |= {"shards": layout.shards} if layout.zero == 3 and layout.shards < layout.data else {}
    return _typed(description, {**own, "micro_batch": plan.micro_batch, "recompute": plan.recompute})


def _typed(description: Description, own: dict[str, object]) -> str:
    words = ["dptrace", "predict"]
    empty = Description()
    for name in Description.__struct_fields__:
        value = own.get(name, getattr(description, name))
        if name in _OF_ONE_COMMAND and name not in own:
            continue
        if value == getattr(empty, name) or name.startswith("measured"):
            continue
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else f"--no{option[1:]}")
        else:
            words += [option, f"{value:.12g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _assumed(best: Candidate) -> Sequence[str]:
    gains = "Gains are of one change each, on the plan of the checklist; they do not add up."
    error = "Predicted steps are off by 4 to 6 % in the mean; smaller differences do not rank plans."
    share = f"Computation reaches {100 * best.step.share:.0f} % of the dense peak in the best plan."
    return (share, *sharded_notes(best.plan), error, gains)

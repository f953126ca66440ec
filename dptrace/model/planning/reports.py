"""What the three verbs answer about a described training: the contents of their ``--json``."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from dptrace.core.numbers import Number
from dptrace.core.units import byte_size, duration, plural
from dptrace.errors import UsageError
from dptrace.model.gpu_peaks import USUAL_HOST_BYTES
from dptrace.model.planning.checks import check_dict, described_checks
from dptrace.model.planning.decision import Decision, decide, step_levels
from dptrace.model.planning.describe import NOT_SHARDED, OPTIONS, Description
from dptrace.model.planning.published import UNKNOWN_ERROR, expected_error
from dptrace.model.planning.search import Candidate, rank, remedies, search, searched, shortlist
from dptrace.model.scaling import amdahl_ceiling, gustafson_efficiency, parallel_fraction
from dptrace.model.training.communication import (
    BETWEEN,
    WITHIN,
    Link,
    all_reduces,
    is_typed,
    parse_link,
    reduce_seconds,
    within_and_between,
)
from dptrace.model.training.layout import STRATEGIES, Layout
from dptrace.model.training.memory import (
    PRECISIONS,
    RECOMPUTE,
    USABLE,
    GpuMemory,
    StateBytes,
    ddp_wall,
    end_bytes,
    gpus_for_state,
    model_activation_bytes,
)
from dptrace.model.training.plan import Plan
from dptrace.model.training.shape import LayerStack
from dptrace.model.training.step import (
    EXPERT_OPERATORS,
    HOST_BYTES_PER_S,
    StepPrediction,
    Traffic,
    expert_operators,
    predict_step,
    reached_share,
    targets,
)

SCHEMA = 1
GPU_COUNTS = tuple(1 << power for power in range(11))
_STRATEGY = ("ddp", "zero1", "zero2", "zero3")
"""The strategy that a stage of ZeRO is, where none is given."""
_SHARDED = (
    "Parameters sharded across nodes are assumed to be gathered under computation. On llm-foundry's FSDP of 30 and 65 "
    "billion parameters that is off by 7 % in the mean; DeepSpeed in 2021 reached a quarter to two thirds of that "
    "speed (arXiv 2104.04473, table 2)."
)
_SHAPE = {name: name for name in ("layers", "hidden", "heads", "mlp", "experts", "top_k", "gated")} | {
    "kv_heads": "key_value_heads",
    "vocab": "vocabulary",
    "seq": "sequence",
    **{name: name for name in ("shared_experts", "dense_layers", "dense_mlp", "head_width")},
    **{name: name for name in ("query_rank", "kv_rank", "rope_width")},
}
"""What is said of a shape, and its fields."""
_DEGREES = {"dp": "data", "tp": "tensor", "cp": "context", "pp": "stages", "ep": "expert"}
_TOKENS = Number(1, 1e18)


# What all three say: the model, the cluster, and a plan with its memory and its step.


def whole_bytes(content: Any) -> Any:
    """Round all bytes in a table of figures, which formulas give as fractions."""
    if isinstance(content, dict):
        return {key: _rounded(key, value) for key, value in content.items()}
    return [whole_bytes(item) for item in content] if isinstance(content, list) else content


def _rounded(key: str, value: Any) -> Any:
    bytes_follow = key.endswith(("_bytes", "params")) or key in RECOMPUTE
    return round(value) if bytes_follow and isinstance(value, float) else whole_bytes(value)


def _training(description: Description, plan: Plan) -> dict[str, Any]:
    shape = plan.shape
    return {
        "params": shape.parameters,
        "shape": {name: getattr(shape, field) for name, field in _SHAPE.items()}
        | {"layers_of": shape.text if isinstance(shape, LayerStack) else None},
        "precision": plan.precision,
        "gpu": plan.gpu.name,
        "gpu_memory_bytes": plan.gpu.memory_bytes,
        "gpus": description.gpus,
    }


def _attention(plan: Plan) -> str | None:
    return None if isinstance(plan.shape, LayerStack) else "flash" if plan.flash else "standard"


def _timed(description: Description, one: Candidate) -> dict[str, Any]:
    return {"gpus_per_node": description.node, "batch": one.plan.batch, "tokens": one.step.tokens}


def _plan_dict(plan: Plan) -> dict[str, Any]:
    """Return how a plan is spread, and what its fullest GPU holds."""
    layout, memory = plan.layout, plan.memory
    return {
        "layout": plan.name,
        "degrees": {name: getattr(layout, degree) for name, degree in _DEGREES.items()},
        **_fields(layout, "strategy zero shards virtual_stages"),
        "schedule": layout.schedule if layout.stages > 1 else None,
        "sequence_parallel": layout.sequence,
        **_fields(plan, "micro_batch micro_batches recompute recompute_every fits"),
        "per_gpu_bytes": memory.total,
        "per_gpu": _memory_parts(memory),
        **_host_bytes(plan),
    }


def _memory_parts(memory: GpuMemory) -> dict[str, float]:
    return _state_dict(memory.state) | _fields(memory, "gathered_bytes activation_bytes recompute_bytes")


def _fields(found: object, names: str) -> dict[str, Any]:
    return {name: getattr(found, name) for name in names.split()}


def _state_dict(state: StateBytes, suffix: str = "_bytes") -> dict[str, float]:
    names = state.__struct_fields__
    return {f"{name}{suffix}": getattr(state, name) for name in names}


def _rates(step: StepPrediction) -> dict[str, Any]:
    return _fields(step, "samples_per_s tokens_per_s mfu bubble overlap efficiency")


def _sharded_notes(plan: Plan) -> list[str]:
    """Return what a plan takes for granted that gathers parameters from other nodes; empty for others."""
    layout = plan.layout
    across = layout.zero == 3 and layout.shards * layout.tensor > plan.network.gpus_per_node
    return [_SHARDED] if across else []


# dptrace predict --memory


def memory_report(description: Description) -> dict[str, Any]:
    """Compute what a training takes on each GPU, by the described strategy and by all others.

    Raises:
        UsageError: the description is incomplete, or its numbers do not divide.
    """
    description.check_given()
    layout = description.layout(description.strategy or _STRATEGY[description.zero or 0])
    plan = _memory_plan(description, layout, description.recompute or "none")
    plan.check()
    if description.cpu_offload and not plan.offload:
        raise UsageError(NOT_SHARDED)
    timed = [name for name, (option, _) in OPTIONS.items() if option.timed and name in description.given]
    if extra := [*timed, *(["overlapped ep"] if description.overlapped == "ep" else [])]:
        name = extra[0].replace("_", "-")
        raise UsageError(f"--{name}: the memory of a training does not depend on it; leave it out.")
    each, shape, memory = plan.state, plan.shape, plan.memory
    state = each.total * shape.parameters
    whole = msgspec.structs.replace(plan.activation_plan, tensor=1, sequence=False)
    rows, absent = _strategies(description)
    content = {
        "schema": SCHEMA,
        "kind": "memory",
        **_training(description, plan),
        "active_params": shape.active_parameters,
        "optimizer": plan.optimizer,
        "attention": _attention(plan),
        "bytes_per_parameter": _state_dict(each, "") | {"total": each.total},
        "model_state_bytes": state,
        "activation_bytes": model_activation_bytes(shape, plan.micro_batch, whole),
        "head_activation_bytes": end_bytes(shape, plan.micro_batch, whole),
        "usable_share": USABLE,
        **_plan_dict(plan),
        "micro_batches_in_flight": memory.micro_batches_in_flight,
        "gpus_for_state": gpus_for_state(state, plan.gpu.memory_bytes),
        "ddp_wall_params": ddp_wall(plan.gpu.memory_bytes, each.total),
        "strategies": rows,
        "assumptions": [
            *(line for line in description.assumptions() if not line.startswith("Batch")),
            *_offload_notes(plan)[1:],
            *absent,
        ],
    }
    rounded: dict[str, Any] = whole_bytes(content)
    return rounded


def _memory_plan(description: Description, layout: Layout, recompute: str) -> Plan:
    size = description.micro_batch or 1
    batch = description.samples
    if description.batch and not description.micro_batch and layout.stages == 1:
        size = max(1, batch // layout.data)
    whole = layout.data * size
    if description.batch and batch % whole:
        raise UsageError(
            f"--batch {batch}: must be divisible by the data-parallel GPUs × the micro-batch, {layout.data} × {size}."
        )
    return description.plan(layout, max(batch // whole, 1) * whole, size, recompute)


def _strategies(description: Description) -> tuple[list[dict[str, Any]], list[str]]:
    """List what each strategy takes on a GPU, of two names of one layout the first, and why others can't be had."""
    rows: dict[str, dict[str, Any]] = {}
    absent = []
    for name in STRATEGIES:
        if name == "ep" and description.experts == 1:
            continue
        try:
            layout = description.layout(name)
            plans = {recompute: _memory_plan(description, layout, recompute) for recompute in RECOMPUTE}
            plans["none"].check()
        except UsageError as error:
            absent.append(f"--strategy {name} is not listed: {error}")
            continue
        row = {
            "strategy": name,
            "layout": plans["none"].name,
            "state_bytes": plans["none"].memory.state.total,
            "per_gpu_bytes": {recompute: plan.memory.total for recompute, plan in plans.items()},
            "fits": {recompute: plan.fits for recompute, plan in plans.items()},
        }
        rows.setdefault(plans["none"].name, row)
    return list(rows.values()), absent


# dptrace predict


def predict_report(description: Description, tokens: float | None = None) -> dict[str, Any]:
    """Predict the step of a training by its strategy; without one, search all layouts and take the best.

    Args:
        tokens: to train on, for the days that it takes.

    Raises:
        UsageError: the description is incomplete, or its numbers do not divide.
    """
    description.check_given()
    if tokens is not None:
        _TOKENS.check(tokens, "--tokens")
    compared = search(description)
    best = compared[0]
    plan, step = best.plan, best.step
    content = {
        "schema": SCHEMA,
        "kind": "predict",
        **_training(description, plan),
        **_timed(description, best),
        "attention": _attention(plan),
        "usable_bytes": USABLE * plan.gpu.memory_bytes,
        "links": [_link_dict(link) for link in (plan.network.within, plan.network.between)],
        **_predicted(best, tokens),
        "expected": expected_error(plan, step),
        "communication": [_traffic_dict(one) for one in step.traffic],
        "targets": [msgspec.to_builtins(target) for target in targets(step)],
        "candidates": [_predicted(one, tokens) for one in shortlist(compared, 3 if description.strategy else 1)],
        "tried": len(compared),
        "remedies": _remedies(description, best),
        "scaling": _scaling_table(plan, step),
        "roofline": [{"sent_bytes": sent, **msgspec.to_builtins(one)} for sent, one in step_levels(plan, step)],
        "all_reduce": _all_reduces(plan),
        "assumptions": [
            *description.assumptions(),
            *_assumed(plan, step, description),
            *([searched(description, len(compared))] if len(compared) > 1 else []),
        ],
    }
    rounded: dict[str, Any] = whole_bytes(content)
    return rounded


def _predicted(one: Candidate, tokens: float | None) -> dict[str, Any]:
    step = one.step
    return {
        **_plan_dict(one.plan),
        **_fields(step, "step_s compute_s bubble_s optimizer_s communication_s exposed_s ideal_exposed_s"),
        "serial_step_s": step.serial_s,
        "ideal_step_s": step.ideal_s,
        "assumed_share_of_peak": reached_share(one.plan),
        "model_flops": step.model_flops,
        **_rates(step),
        **({"training_days": tokens / step.tokens_per_s / 86_400} if tokens else {}),
    }


def _remedies(description: Description, best: Candidate) -> list[dict[str, Any]]:
    """Return which options make something fit, where nothing does."""
    found = {} if best.fits else remedies(description)
    return [
        {"option": option, "label": one.label, "step_s": one.step.step_s, "per_gpu_bytes": one.memory_bytes,
         **_host_bytes(one.plan)}
        for option, one in found.items()
    ]  # fmt: skip


def _host_bytes(plan: Plan) -> dict[str, float]:
    """Return what of the state is in a CPU's memory: of each GPU, and of all that share it."""
    each = plan.memory.host_bytes
    return {"host_bytes": each, "node_host_bytes": each * min(plan.gpu.gpus_per_host, plan.layout.gpus)}


def _traffic_dict(one: Traffic) -> dict[str, Any]:
    own = _fields(one, "what kind bytes calls ranks sent_bytes call_s")
    return own | {"total_s": one.seconds, "hides_under": one.hides or None}


def _link_dict(link: Link) -> dict[str, Any]:
    return _fields(link, "name alpha_s bytes_per_s")


def _scaling_table(plan: Plan, step: StepPrediction) -> list[dict[str, Any]]:
    """Predict a plan on other numbers of GPUs; counts that its degrees do not divide are left out.

    *Weak*: each GPU keeps its samples, and the batch grows. *Strong*: the batch stays, and each GPU gets fewer samples.
    Efficiency is the throughput of a GPU relative to the row with the fewest GPUs. Amdahl's ceiling and Gustafson's
    efficiency take the exposed communication of the plan as the serial share.
    """
    each = plan.batch / plan.layout.gpus
    fraction = parallel_fraction(step.compute_s * plan.layout.gpus, step.exposed_s)
    serial = step.exposed_s / step.step_s
    rows: list[dict[str, Any]] = []
    base: dict[str, float] = {}
    for gpus in sorted({*GPU_COUNTS, plan.layout.gpus}):
        weak = _on(plan, gpus, round(each * gpus))
        if weak is None:
            continue
        strong = _on(plan, gpus, plan.batch)
        rates = {"weak": weak, "strong": strong} if strong else {"weak": weak}
        found = {name: one.step.samples_per_s / gpus for name, one in rates.items()}
        base = found | base
        rows.append(
            {
                "gpus": gpus,
                "fits": weak.fits,
                "batch": weak.plan.batch,
                **_times(weak.step),
                "weak_efficiency": found["weak"] / base["weak"],
                "strong_step_s": strong and strong.step.step_s,
                "strong_samples_per_s": strong and strong.step.samples_per_s,
                "strong_efficiency": strong and found["strong"] / base["strong"],
                "amdahl_ceiling": amdahl_ceiling(fraction, gpus),
                "gustafson_efficiency": gustafson_efficiency(serial, gpus),
            }
        )
    return rows


def _times(step: StepPrediction) -> dict[str, Any]:
    own = _fields(step, "step_s compute_s communication_s exposed_s samples_per_s tokens_per_s mfu")
    return own | {"communication_share": step.communication_s / (step.communication_s + step.compute_s)}


def _on(plan: Plan, gpus: int, batch: int) -> Candidate | None:
    """Return the plan with more or fewer data-parallel GPUs; None where its degrees or the batch can't be divided."""
    layout = plan.layout
    data, rest = divmod(gpus, layout.tensor * layout.context * layout.stages)
    replicas = data * layout.context
    if rest or not data or not layout.holds_experts(replicas) or batch % data:
        return None
    whole = layout.zero and layout.shards == layout.replicas and layout.strategy != "hsdp"
    shards = replicas if whole else math.gcd(layout.shards, replicas)
    each = batch // data
    most = each if isinstance(plan.shape, LayerStack) else plan.micro_batch
    size = max(size for size in range(1, most + 1) if each % size == 0)
    spread = msgspec.structs.replace(layout, data=data, shards=shards)
    other = msgspec.structs.replace(plan, layout=spread, batch=batch, micro_batch=size)
    try:
        other.check()
    except UsageError:
        return None
    return Candidate(other, other.memory.total, predict_step(other))


def _all_reduces(plan: Plan) -> dict[str, Any] | None:
    """Compare the algorithms for an all-reduce of all gradients among all GPUs; None on one GPU."""
    ranks = plan.layout.gpus
    size = plan.shape.parameters * plan.state.gradients
    if ranks == 1:
        return None
    rows = all_reduces(plan.network, size, ranks)
    adding = reduce_seconds(size, ranks, plan.gpu.memory_bytes_per_s)
    return {"size_bytes": size, "ranks": ranks, "adding_s": adding, "algorithms": rows}


def _assumed(plan: Plan, step: StepPrediction, description: Description) -> list[str]:
    ends = zip(
        ("within a node", "between nodes"), within_and_between(description.links), (WITHIN, BETWEEN), strict=True
    )
    measured = {"within a node": description.measured_within, "between nodes": description.measured_between}
    shares = [
        f"{100 * share:.0f} % of the nominal bandwidth {where}"
        for where, text, share in ends
        if measured[where] is None and not is_typed(text)
    ]
    links = [f"Collectives reach {', '.join(shares)}."] if shares else []
    tensor, node = plan.layout.tensor, description.node
    spans = [f"TP {tensor} spans nodes of {node} GPUs: layers wait for the link between them."] if tensor > node else []
    own = "as given" if description.mfu else "from the size of its matrices"
    more = [*_assumed_links(description), *links, *spans, *_sharded_notes(plan), *_offload_notes(plan)]
    return [_computes(plan, step, own), *more]


def _assumed_links(description: Description) -> list[str]:
    """Return which links are assumed, where none is given; empty for one GPU."""
    given = description.link or (description.measured_within and description.measured_between)
    if given or description.gpus == 1:
        return []
    names = (parse_link(text).name for text in within_and_between(description.links))
    where = (f"within nodes of {plural(description.node, 'GPU')}", "between them")
    return [f"Links assumed for this GPU: {', '.join(map(' '.join, zip(names, where, strict=True)))}. Give --link."]


def _offload_notes(plan: Plan) -> list[str]:
    """Return what Adam on the CPU is assumed to reach, and the memory that it needs; empty for others."""
    if not plan.offload:
        return []
    rate = f"{HOST_BYTES_PER_S / 1e9:.0f} GB/s of a host's memory"
    gpus, size = min(plan.gpu.gpus_per_host, plan.layout.gpus), _host_bytes(plan)["node_host_bytes"]
    memory = f"Each host needs {byte_size(size)} of memory for the state of {plural(gpus, 'GPU')}"
    known = (
        f"hosts rarely have more than {USUAL_HOST_BYTES / 1e12:g} TB"
        if size > USUAL_HOST_BYTES
        else "whether it has it is not known"
    )
    return [
        f"Adam on the CPU reads and writes {rate}, as on a DGX-2 (arXiv 2101.06840); newer hosts are faster.",
        f"{memory}, beside what else runs there; {known}.",
    ]


def _of_experts(plan: Plan) -> str:
    """Return how many operators of a layer's experts a host launches one by one; empty for a dense model."""
    if plan.shape.experts == 1:
        return ""
    own, each = plan.shape.experts // plan.layout.expert, expert_operators(plan)
    casts = ", with the casts to float8" if PRECISIONS[plan.precision].compute in EXPERT_OPERATORS else ""
    spread = "; --ep spreads them" if plan.layout.expert == 1 < plan.layout.gpus else ""
    return f": one by one those of {plural(own, 'expert')} in a layer, {each} each{casts}{spread}"


def _computes(plan: Plan, step: StepPrediction, source: str) -> str:
    """Return what decides how long the computation takes."""
    if step.launch_s == step.compute_s:
        waits = f"The GPU waits for its host, which launches a step's operators in {duration(1e9 * step.launch_s)}"
        return f"{waits}{_of_experts(plan)}."
    peak = step.peak_flops / plan.layout.gpus / 1e12
    return f"Computation reaches {100 * reached_share(plan):.0f} % of the peak of {peak:,.0f} TFLOP/s, dense, {source}."


# dptrace advise


_OF_THE_PLAN = (
    *("strategy", "tp", "cp", "pp", "ep", "expert_tp", "zero", "shards"),
    *("schedule", "micro_batch", "recompute"),
)
_OF_ONE_COMMAND = (*_OF_THE_PLAN, "virtual_stages")
"""Options that a candidate's command has only where they are its own."""
_PARTS = {
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
    description.check_given()
    free = description
    if description.strategy:
        free = msgspec.structs.replace(description, **dict.fromkeys(_OF_THE_PLAN))
    found = search(free)
    decision = decide(free, found)
    best = found[0]
    own = min(search(description), key=rank) if description.strategy else None
    shown = shortlist(found)
    suggested = next((one for one in found if decision.follows(one.plan.layout)), None)
    checks = described_checks(description, own or best, found if own else ())
    plan = best.plan
    expected = expected_error(plan, best.step)
    error = UNKNOWN_ERROR if expected["unknown"] else expected["left_out_error"]
    content = {
        "schema": SCHEMA,
        "kind": "advise",
        **_training(description, plan),
        **_timed(description, best),
        "attention": _attention(plan),
        "usable_bytes": USABLE * plan.gpu.memory_bytes,
        "links": [plan.network.within.name, plan.network.between.name],
        "path": [msgspec.to_builtins(question) for question in decision.path],
        "tree": _tree(decision, suggested, best),
        "chosen": _advised(best, best, free),
        "plan": own and _advised(own, best, free),
        "expected": expected,
        "tied_within": error,
        **_equal(shown, best, error),
        "candidates": [_advised(one, best, free) for one in shown],
        "tried": len(found),
        "remedies": _remedies(free, best),
        "checks": [check_dict(one) for one in checks],
        "assumptions": [
            *description.assumptions(),
            _computes(plan, best.step, "in the best plan"),
            *_sharded_notes(plan),
            *_offload_notes(plan),
            searched(free, len(found)),
            *_assumed_links(description),
            "Differences that are smaller than the error of predictions do not rank plans.",
            "Gains are of one change each, on the plan of the checklist; they do not add up.",
        ],
    }
    rounded: dict[str, Any] = whole_bytes(content)
    return rounded


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


def _advised(one: Candidate, best: Candidate, description: Description) -> dict[str, Any]:
    return {
        "label": one.label,
        **_plan_dict(one.plan),
        "over_bytes": one.over_bytes,
        "step_ns": round(1e9 * one.step.step_s),
        **{part.replace("_s", "_ns"): round(1e9 * getattr(one.step, part)) for part in _PARTS},
        **_rates(one.step),
        "loses": _loses(one, best),
        "command": _command(one, description),
    }


def _equal(shown: Sequence[Candidate], best: Candidate, error: float) -> dict[str, Any]:
    """Return the plans whose step the model can't tell from the best one's, and which of all these is the simplest.

    Simplest: the fewest kinds of parallelism, then the lowest ZeRO stage (the guide, section 13: start with DDP or
    FSDP, add tensor parallelism, then stages).
    """
    equal = [one for one in shown if one.fits and one.step.step_s <= (1 + error) * best.step.step_s]
    equal = equal if best.fits else []

    def pieces(one: Candidate) -> tuple[int, int, bool, int]:
        layout = one.plan.layout
        kinds = (layout.tensor > 1) + (layout.context > 1) + 2 * (layout.stages > 1) + (layout.expert > 1)
        return kinds, layout.zero, layout.shards < layout.replicas, layout.tensor * layout.stages

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
    return f"{_PARTS[most]} +{duration(1e9 * more[most])}"


def _command(one: Candidate, description: Description) -> str:
    """Return the command that predicts a plan in full."""
    layout, plan = one.plan.layout, one.plan
    staged, split = layout.stages > 1, layout.strategy in ("tp", "pp", "3d", "ep")
    own: dict[str, object] = {"strategy": layout.strategy}
    own |= {"tp": layout.tensor} if layout.strategy in ("tp", "3d") else {}
    own |= {"cp": layout.context} if layout.context > 1 else {}
    own |= {"pp": layout.stages} if layout.strategy in ("pp", "3d") else {}
    own |= {"ep": layout.expert} if layout.expert > 1 else {}
    own |= {"expert_tp": layout.expert_tensor} if layout.expert_tensor else {}
    own |= {"schedule": layout.schedule} if staged else {}
    own |= {"virtual_stages": layout.virtual_stages} if staged and layout.schedule == "interleaved" else {}
    own |= {"zero": layout.zero} if split else {}
    own |= {"shards": layout.shards} if layout.zero == 3 and layout.shards < layout.replicas else {}
    own |= {"micro_batch": plan.micro_batch, "recompute": plan.recompute}
    words, named = ["dptrace", "predict"], description.named
    for name, (_, default) in OPTIONS.items():
        value = own.get(name, None if name in _OF_ONE_COMMAND else getattr(description, name))
        if value in (None, default, named.get(name)):
            continue
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else f"--no{option[1:]}")
        else:
            words += [option, f"{value:.12g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)

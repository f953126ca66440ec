"""The guide's decision tree (section 12.5), walked with the numbers of a described training.

Each question has the number that decides, the threshold it is compared with, and the place in the documents that
has it. The tree ends with a strategy; which plan of it is best, and whether another is faster, the candidates say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from dptrace.core.units import byte_size, duration, plural, share
from dptrace.model.planning.describe import Description
from dptrace.model.planning.search import Candidate, best_of, candidate, search
from dptrace.model.training.communication import RooflineLevel, ccr, level, parse_link, sent_by_level
from dptrace.model.training.layout import Layout, micro_batches_needed
from dptrace.model.training.memory import USABLE
from dptrace.model.training.plan import Plan
from dptrace.model.training.step import StepPrediction

# Thresholds of the documents on distributed training, each with the place that it comes from.
#
# Where a document's rule contradicts its own formula, ``note`` has the right value.


class Rule(msgspec.Struct, frozen=True):
    """A threshold, where it stands, what it is asked for, and what is wrong with it."""

    value: float
    source: str
    question: str = ""
    note: str = ""


_GUIDE = "Distributed Training (guide)"
_DDP = "Data Parallel & DDP"
_STATE = "The guide counts 18 bytes a parameter in its table of stages; weights, gradients and Adam's state are 16."
_BOTH_WAYS = "600 GB/s count both directions: 300 GB/s each way."
_FOUR_TIMES = "M ≥ 4·P leaves a bubble of up to 20 %; below 10 % needs 9·(P−1) micro-batches."
_LINK = "Does tensor parallelism pay over the link within a node?"
_COVERS = "Does the computation of {} cover what it sends?"
_FEW = "Are there at most 32 GPUs, up to which plain DDP usually scales?"

RULES = {
    "replicate": Rule(0.0, f"{_DDP}, 'When DDP wins'; {_GUIDE}, 7.7", "Does a GPU hold the whole training (DDP)?"),
    "stages": Rule(0.0, f"{_GUIDE}, 8.6", "Which ZeRO stage makes it fit on data-parallel GPUs alone?", _STATE),
    "small": Rule(10e9, f"{_GUIDE}, 12.5"),
    "large": Rule(100e9, f"{_GUIDE}, 12.5"),
    "tensor_link": Rule(600e9, f"{_GUIDE}, 9.4 and 12.5", _LINK, _BOTH_WAYS),
    "few_gpus": Rule(32, f"{_DDP}, 'Cost model'", _FEW),
    "ridge": Rule(1.2, f"{_GUIDE}, 6.6"),
    "micro_batches": Rule(4, f"{_GUIDE}, 10.8", "Is the pipeline's bubble below 10 %?", _FOUR_TIMES),
    "bubble": Rule(0.1, f"{_GUIDE}, 12.5", "Is the pipeline's bubble below 10 %?"),
    "mfu": Rule(0.4, f"{_GUIDE}, 12.5", "Is the MFU above 40 %?"),
    "overlap": Rule(0.8, f"{_GUIDE}, 12.5", "Is more than 80 % of the communication hidden?"),
    "efficiency": Rule(0.7, f"{_DDP}, 'TL;DR'", "Does it scale with 70 % or more?"),
    "experts": Rule(0.0, f"{_GUIDE}, 12.5", "Is it dense, or a mixture of experts?"),
    "bound": Rule(0.0, f"{_GUIDE}, 1.3", "What takes most of the step?"),
    "data": Rule(0.05, f"{_GUIDE}, 7.6", "Does it wait for data?"),
    "straggler": Rule(0.05, "Data Parallelism (page), 'Where the field is now'", "Do ranks wait for a straggler?"),
}
"""The rules by name."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One step on the path."""

    name: str
    question: str
    answer: str
    numbers: str
    """What decided, in words."""
    value: float | None
    limit: float | None
    unit: str
    """Of both: ``bytes``, ``parameters``, ``bytes/s``, ``GPUs``, ``ratio``."""
    source: str
    note: str | None = None


class Decision(msgspec.Struct, frozen=True):
    """The path, and the strategy at its end."""

    path: tuple[Question, ...]
    strategy: str
    """As the tree names it."""
    follows: Callable[[Layout], bool]
    """Whether a layout is of that strategy."""


def decide(description: Description, found: Sequence[Candidate]) -> Decision:
    """Walk the tree.

    Args:
        found: the candidates, ranked.
    """
    params = found[0].plan.shape.parameters
    path = [_replicates(description, found), *_stages(description, found), _size(params)]
    strategy = "DDP or FSDP"
    follows: Callable[[Layout], bool] = _data_parallel
    if params >= RULES["small"].value:
        question, strategy, follows = _large(description, params)
        path.append(question)
    if description.gpus > 1:
        path += [_links(description, found), _ridge(found), _gpus(found)]
    return Decision((*path, *_pipeline(found[0])), strategy, follows)


def ask(
    rule: str,
    answer: str,
    numbers: str,
    value: float,
    unit: str = "ratio",
    *,
    name: str = "",
    limit: float | None = None,
    question: str = "",
) -> Question:
    """Return a question whose source, note and threshold are those of a rule.

    Args:
        name: of the question, if it is not the rule's.
        limit: the threshold, where it follows from the training.
        question: the text, where it does.
    """  # fmt: skip
    known = RULES[rule]
    return Question(
        name=name or rule,
        question=question or known.question,
        answer=answer,
        numbers=numbers,
        value=value,
        limit=limit or known.value or None,
        unit=unit,
        source=known.source,
        note=known.note or None,
    )


def _smallest(description: Description, found: Sequence[Candidate], zero: int) -> Candidate | None:
    """Return the data-parallel plan of a ZeRO stage over all GPUs with the least memory; None if none divides."""
    for one in found:
        layout = one.plan.layout
        if (
            _data_parallel(layout)
            and layout.expert == 1
            and layout.zero == zero
            and (zero == 0 or layout.shards == layout.replicas)
        ):
            size, recompute = description.micro_batch or 1, description.recompute or "full"
            return candidate(msgspec.structs.replace(one.plan, micro_batch=size, recompute=recompute))
    return None


def _replicates(description: Description, found: Sequence[Candidate]) -> Question:
    whole, plan = _smallest(description, found, 0), found[0].plan
    usable = USABLE * plan.gpu.memory_bytes
    value = plan.state.total * plan.shape.parameters
    state = f"{byte_size(value)} of state"
    if whole is None:
        why = f"the batch can't be divided among {plural(plan.layout.gpus, 'GPU')}"
        answer = "no: it is offloaded" if description.cpu_offload else "no: not enough samples"
        numbers = f"{state}; {'the CPU has it' if description.cpu_offload else why}"
    else:
        activations, value = whole.memory_bytes - whole.plan.memory.state.total, whole.memory_bytes
        numbers = (
            f"{state} ({plan.state.total:g} bytes a parameter) and {byte_size(activations)} of activations, recompute "
            f"{whole.plan.recompute}, against {byte_size(usable)}"
        )
        answer = "yes" if whole.fits else f"no: {byte_size(whole.over_bytes)} too much"
    return ask("replicate", answer, numbers, value, "bytes", limit=usable)


def _stages(description: Description, found: Sequence[Candidate]) -> list[Question]:
    """Ask which ZeRO stage makes it fit, unless it fits without."""
    stages = [one for one in (_smallest(description, found, zero) for zero in range(4)) if one is not None]
    if not stages or stages[0].fits or len(stages) == 1:
        return []
    first = next((one for one in stages if one.fits), None)
    names = (one.label.split(" × ")[-1].split(" ")[0] for one in stages)  # after "CP 4 × "
    numbers = ", ".join(f"{name} {byte_size(one.memory_bytes)}" for name, one in zip(names, stages, strict=True))
    usable, size = USABLE * stages[0].plan.gpu.memory_bytes, (first or stages[-1]).memory_bytes
    return [ask("stages", first.label if first else "none", numbers, size, "bytes", name="zero_stage", limit=usable)]


def _size(params: float) -> Question:
    small, large = RULES["small"].value, RULES["large"].value
    answer = "below 10 billion" if params < small else "10 to 100 billion" if params <= large else "above 100 billion"
    numbers = f"{params / 1e9:,.4g} billion parameters; the tree branches at 10 and 100 billion"
    rule = "small" if params <= large else "large"
    asked = "How large is the model?"
    return ask(rule, answer, numbers, params, "parameters", name="model_size", question=asked)


def _large(description: Description, params: float) -> tuple[Question, str, Callable[[Layout], bool]]:
    """Ask the second question of the tree: whether a node holds the model, or whether it has experts."""
    if params <= RULES["large"].value:
        return _node(description)
    experts = description.experts
    numbers = f"{experts} experts in a layer" if experts > 1 else "one MLP in a layer"
    question = ask("experts", "experts" if experts > 1 else "dense", numbers, experts, "experts")
    if experts > 1:
        return question, "EP × TP × PP × DP", lambda one: one.expert > 1 and one.tensor > 1 and one.stages > 1
    whole = min(8, description.node)
    return question, "TP 8 × PP 8 to 16 × DP", lambda one: one.tensor == whole and 8 <= one.stages <= 16


def _node(description: Description) -> tuple[Question, str, Callable[[Layout], bool]]:
    """Ask whether the GPUs of one node hold the model with FSDP."""
    gpus = min(description.gpus, description.node)
    alone = msgspec.structs.replace(
        description, gpus=gpus, batch=gpus, micro_batch=1, tp=1, cp=1, pp=1, ep=1 if description.experts > 1 else None,
        zero=3 if gpus > 1 else None, strategy=None, schedule=None, expert_tp=None,
    )  # fmt: skip
    held = best_of([one.plan for one in search(alone) if one.plan.layout.shards in (1, gpus)])
    usable = USABLE * held.plan.gpu.memory_bytes
    numbers = f"{byte_size(held.memory_bytes)} on each of its {gpus} GPUs, against {byte_size(usable)}"
    answer = "yes" if held.fits else f"no: {byte_size(held.over_bytes)} too much"
    asked = "Does a single node hold it with FSDP?"
    question = ask(
        "small", answer, numbers, held.memory_bytes, "bytes", name="single_node", limit=usable, question=asked
    )
    if held.fits:
        return question, "TP 2 to 8 × FSDP", lambda one: one.tensor > 1 and one.stages == 1 and one.zero == 3
    node = min(8, description.node)

    def follows(layout: Layout) -> bool:
        sharded = layout.zero == 3 or layout.replicas == 1
        return layout.tensor == node and 2 <= layout.stages <= 4 and sharded

    return question, "TP 8 × PP 2 to 4 × FSDP", follows


def _data_parallel(layout: Layout) -> bool:
    return layout.tensor == layout.stages == 1


def _links(description: Description, found: Sequence[Candidate]) -> Question:
    """Ask whether tensor parallelism pays: the guide by the link's bandwidth, the model by the best plans."""
    within = description.measured_within or parse_link(description.links.partition(",")[0])
    both = 2 * within.bytes_per_s
    split, whole = (next((one for one in found if (one.plan.layout.tensor > 1) is on), None) for on in (True, False))
    best = found[0]
    answer = f"yes: {best.label}" if best.plan.layout.tensor > 1 else f"no: {best.label} without it"
    other = whole if best is split else split
    rival = f"; {other.label} {_beside(other, best)}" if other else ""
    asked = f"{both / 1e9:,.0f} GB/s in both directions, the guide asks for {RULES['tensor_link'].value / 1e9:,.0f}"
    return ask("tensor_link", answer, f"{asked}{rival}", both, "bytes/s")


def _beside(one: Candidate, best: Candidate) -> str:
    """Return how a plan compares with the best one."""
    if best.fits and not one.fits:
        return "does not fit"
    if not best.fits:
        return f"needs {byte_size(one.memory_bytes - best.memory_bytes)} more"
    return f"is {share(one.step.step_s / best.step.step_s - 1)} slower"


def _ridge(found: Sequence[Candidate]) -> Question:
    """Ask whether data-parallel communication can hide: the time of computation over that of communication.

    The roofline, computation for each byte over the slowest link, is of the GPU's peak; a GPU that reaches half of it
    has twice the time to hide in.
    """
    own = next((one for one in found if _data_parallel(one.plan.layout)), found[0])
    step = own.step
    worst = min((one for _, one in step_levels(own.plan, step)), key=lambda one: one.ratio, default=None)
    if worst is None:
        return ask("ridge", "yes", "nothing is sent", float("inf"), question=_COVERS.format(own.label))
    ratio = step.compute_s / step.communication_s
    numbers = (
        f"{duration(1e9 * step.compute_s)} of computation, {duration(1e9 * step.communication_s)} of communication, of "
        f"which {duration(1e9 * step.exposed_s)} is exposed; {worst.ratio:,.3g} times the ridge of {worst.link} at the "
        "GPU's peak"
    )
    answer = "yes"
    if ratio < RULES["ridge"].value:
        larger = "micro-batch" if own.plan.layout.zero >= 2 and own.plan.micro_batches > 1 else "batch"
        hidden = (step.overlap or 0.0) >= RULES["overlap"].value
        answer = "just: it hides, with little to spare" if hidden else f"no: a larger {larger}, or fewer bytes"
    return ask("ridge", answer, numbers, ratio, question=_COVERS.format(own.label))


def step_levels(plan: Plan, step: StepPrediction) -> Iterator[tuple[float, RooflineLevel]]:
    """Yield where a step lies for each link that it uses, with the bytes that a GPU sends over it.

    Parameters that are gathered in each micro-batch are covered by more samples in it, not by more of them.
    """
    gpus, rounds = plan.layout.gpus, plan.gathers if plan.layout.zero == 3 else 1
    pairs = [sent_by_level(plan.network, one.kind, one.bytes, one.ranks, one.stride) for one in step.traffic]
    for number, link in enumerate((plan.network.within, plan.network.between)):
        sent = sum(pair[number] * one.calls for pair, one in zip(pairs, step.traffic, strict=True))
        if sent:
            intensity = ccr(step.model_flops / gpus, sent)
            found = level(link, step.peak_flops / gpus, intensity, plan.batch / gpus / rounds)
            advice = found.advice.replace("batch", "micro-batch") if rounds > 1 else found.advice
            yield sent, msgspec.structs.replace(found, advice=advice)


def _gpus(found: Sequence[Candidate]) -> Question:
    gpus = found[0].plan.layout.gpus
    own = next((one for one in found if _data_parallel(one.plan.layout)), None)
    reached = "" if own is None else f"; {own.label} computes {share(own.step.efficiency)} of its step"
    answer = "yes" if gpus <= RULES["few_gpus"].value else "no: sharding, TP or PP may pay"
    return ask("few_gpus", answer, f"{plural(gpus, 'GPU')}{reached}", gpus, "GPUs")


def _pipeline(best: Candidate) -> list[Question]:
    """Ask whether the best plan's pipeline has enough micro-batches."""
    layout = best.plan.layout
    if layout.stages == 1:
        return []
    most = RULES["bubble"].value
    needed = micro_batches_needed(layout.schedule, layout.stages, most, layout.virtual_stages)
    numbers = (
        f"{plural(best.plan.micro_batches, 'micro-batch', 'micro-batches')} for {layout.stages} stages: bubble "
        f"{share(best.step.bubble)}; 10 % needs {needed}, the rule of 4 × P asks for {4 * layout.stages}"
    )
    answer = "yes" if best.step.bubble < most else "no: more micro-batches, or an interleaved schedule"
    return [ask("micro_batches", answer, numbers, best.step.bubble, name="bubble", limit=most)]

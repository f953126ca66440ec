"""The documents' checklists: what to change in a plan, what it gains, and why.

The texts of the items are the rows of checklist.md; each has a function here that computes what it gains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from dptrace.core.units import byte_size, duration, plural, share
from dptrace.errors import UsageError
from dptrace.model.gpu_peaks import interconnect_named
from dptrace.model.planning.decision import RULES
from dptrace.model.planning.describe import Description
from dptrace.model.planning.search import Candidate, best_of, can_run, candidate, micro_batch_sizes
from dptrace.model.training.communication import Link, Network, all_reduces, collective_seconds, crossover_bytes
from dptrace.model.training.layout import Layout, micro_batches_needed
from dptrace.model.training.memory import PRECISIONS, RECOMPUTE, USABLE
from dptrace.model.training.plan import Plan
from dptrace.model.training.shape import LayerStack
from dptrace.model.training.step import predict_step

MIN_SHARE = 0.01
"""Smallest share of the step, or of a GPU's memory, that is worth a change."""
_DDP_PAGE = "Data Parallel & DDP"
STATUSES = ("apply", "keep", "skip")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """An item of a checklist, and what follows from it for a training."""

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


def check_dict(one: Check) -> dict[str, Any]:
    """Return an item of a checklist as plain data; times are whole ns."""
    content: dict[str, Any] = msgspec.to_builtins(one)
    seconds, size = content.pop("gain_s"), content["gain_bytes"]
    return content | {
        "applies": one.status == "apply",
        "gain_ns": None if seconds is None else round(1e9 * seconds),
        "gain_bytes": None if size is None else round(size),
    }


class Context(msgspec.Struct, frozen=True, dict=True):
    """The plan that the items are about, and the alternatives."""

    description: Description
    now: Candidate
    found: Sequence[Candidate] = ()
    """All candidates, ranked; empty where the plan is the best of them."""

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

    @property
    def slowest(self) -> Link:
        """Return the link between nodes, or the one within a node where there is one node."""
        network = self.plan.network
        return network.between if self.layout.gpus > network.gpus_per_node else network.within

    def changed(self, **fields: object) -> Candidate:
        """Return the plan with other fields, as a candidate."""
        return candidate(replace(self.plan, **fields))

    def spread(self, **fields: object) -> Candidate:
        """Return the plan with another layout, as a candidate."""
        return self.changed(layout=replace(self.layout, **fields))

    def best(self, plan: Plan, recompute: Iterable[str] = ()) -> Candidate:
        """Return the best micro-batch with which a plan can run, and the best recomputation of those given."""
        each = plan.batch // plan.layout.data
        sizes = [replace(plan, micro_batch=size) for size in micro_batch_sizes(plan.shape, each)]
        running = [one for one in sizes if can_run(one)] or [plan]
        kinds = tuple(recompute) or (plan.recompute,)
        return best_of([replace(one, recompute=kind) for one in running for kind in kinds])

    def any_recompute(self) -> tuple[str, ...]:
        """Return the kinds of recomputation that the description leaves open."""
        return (self.description.recompute,) if self.description.recompute else RECOMPUTE


class Found(msgspec.Struct, frozen=True):
    """What an item computes for a plan."""

    reason: str
    gain_s: float | None = None
    gain_bytes: float | None = None
    status: str = ""
    """Empty: the gain decides."""
    filled: dict[str, object] = {}
    """The values of the placeholders in the item's texts."""


def versus(context: Context, other: Candidate, reason: str, status: str = "", **filled: object) -> Found:
    """Return what another plan gains over the one at hand."""
    gain_s, gain_bytes = context.step_s - other.step.step_s, context.now.memory_bytes - other.memory_bytes
    return Found(reason, gain_s, gain_bytes, status, filled)


class Texts(NamedTuple):
    """A row of checklist.md, which replays of recordings (dptrace.replay.advice) share; numbers have placeholders."""

    what: str
    do: str
    computed: str
    source: str


def _checklists() -> Iterator[dict[str, Texts]]:
    """Yield the tables of checklist.md, each by the names of its items."""
    text = files(__package__ or "").joinpath("checklist.md").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        _heading, _rule, *lines = (line for line in section.splitlines() if line.startswith("|"))
        rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
        yield {name: Texts(*texts) for name, *texts in rows}


TEXTS, RECORDED_TEXTS = _checklists()
"""The texts of the items by their names, of a description and of a recording."""


Answer = Found | str | None
"""What an item answers about a plan: what it computes, why it does not apply, or None where it is not asked at all."""
ITEMS: dict[str, Callable[[Context], Answer]] = {}
"""The items of a description by their names."""


def item(name: str) -> Callable[[Callable[[Context], Answer]], Callable[[Context], Answer]]:
    """Register the function below as what computes an item of the checklist."""

    def add(find: Callable[[Context], Answer]) -> Callable[[Context], Answer]:
        ITEMS[name] = find
        return find

    return add


def _check(name: str, context: Context, answer: Found | str) -> Check:
    """Return what follows from an item for a plan."""
    texts = TEXTS[name]
    found = Found(answer, status="skip") if isinstance(answer, str) else answer
    part = None if found.gain_s is None else found.gain_s / context.step_s
    what, do, computed = (_filled(text, found) for text in (texts.what, texts.do, texts.computed))
    return Check(
        name=name,
        what=what,
        status=found.status or ("apply" if _worthwhile(context, part, found.gain_bytes) else "skip"),
        reason=found.reason,
        gain_s=found.gain_s,
        gain_bytes=found.gain_bytes,
        gain_share=part,
        computed="" if isinstance(answer, str) else computed,
        do=do,
        source=texts.source,
    )


def _filled(text: str, found: Found) -> str:
    """Return a text with its numbers; without them, what stands in brackets is left out."""
    if not found.filled:
        return re.sub(r"\[.*?\]", "", text)
    return re.sub(r"[\[\]]", "", text).format(**found.filled)


def _worthwhile(context: Context, part: float | None, gain_bytes: float | None) -> bool:
    """Return whether an item applies: from 1 % of the step or of a GPU's memory on.

    Memory counts where the plan does not fit, or where the time gets no longer.
    """
    if part is not None and part >= MIN_SHARE:
        return True
    saves = gain_bytes is not None and gain_bytes >= MIN_SHARE * context.plan.gpu.memory_bytes
    return saves and (not context.now.fits or (part or 0.0) > -MIN_SHARE)


def described_checks(description: Description, now: Candidate, found: Sequence[Candidate] = ()) -> list[Check]:
    """Return the items for a plan, in the order of their status, those with the largest gain first.

    For a plan that does not fit, memory comes first.

    Args:
        found: the candidates to compare it with, ranked, if it is not the best of them.
    """
    context = Context(description, now, found)
    answers = {name: find(context) for name, find in ITEMS.items()}
    checks = [_check(name, context, answer) for name, answer in answers.items() if answer is not None]

    def key(one: Check) -> tuple[int, float, float]:
        gains = -(one.gain_s or 0.0), -(one.gain_bytes or 0.0)
        return STATUSES.index(one.status), *(gains if now.fits else gains[::-1])

    return sorted(checks, key=key)


def _span(seconds: float) -> str:
    return duration(1e9 * seconds)


# Work: another strategy, batch, accumulation, recomputation, number types, fusion, fewer GPUs.


@item("strategy")
def _strategy(context: Context) -> Answer:
    if not context.found:
        return None
    best = context.found[0]
    reason = (
        f"{best.label} with micro-batches of {best.plan.micro_batch}, recompute {best.plan.recompute}, takes "
        f"{_span(best.step.step_s)} and {byte_size(best.memory_bytes)} on each GPU"
    )
    same = best.plan == context.plan
    status = "skip" if same or not best.fits else ""
    return versus(context, best, "this is the best plan found" if same else reason, status, label=best.label)


@item("larger-batch")
def _larger_batch(context: Context) -> Answer:
    batch = 2 * context.plan.batch
    other = context.best(replace(context.plan, batch=batch))
    half, exposed = other.step.step_s / 2, other.step.exposed_s / other.step.step_s
    reason = (
        f"{batch:,} samples in micro-batches of {other.plan.micro_batch}: {_span(half)} for the samples of one step, "
        f"exposed communication {share(exposed)} of it"
    )
    gain_bytes = context.now.memory_bytes - other.memory_bytes
    return Found(reason, context.step_s - half, gain_bytes, filled={"batch": batch})


def _is_decoder(context: Context) -> bool:
    return not isinstance(context.plan.shape, LayerStack)


_TIMES = 4


@item("accumulate")
def _accumulate(context: Context) -> Answer:
    each = context.changed(batch=_TIMES * context.plan.batch).step.step_s / _TIMES
    reason = f"gradients, optimizer and bubble once for {_TIMES} times the samples: {_span(each)} for those of one step"
    return Found(reason, context.step_s - each)


@item("micro-batch")
def _micro_batch(context: Context) -> Answer:
    other = context.best(context.plan, context.any_recompute())
    size, recompute = other.plan.micro_batch, other.plan.recompute
    reason = (
        f"micro-batches of {size}, recompute {recompute}: {_span(other.step.step_s)}, "
        f"{byte_size(other.memory_bytes)} on each GPU"
    )
    same = (size, recompute) == (context.plan.micro_batch, context.plan.recompute)
    status = "skip" if same or not other.fits else ""
    reason += ": the best" if same else ""
    return versus(context, other, reason, status, samples=plural(size, "sample"), size=size, recompute=recompute)


def _narrower(context: Context) -> str:
    """Return the next narrower number type: 16 bits, then 8."""
    if context.plan.precision in ("fp32", "tf32", "amp"):
        return "bf16" if "bf16" in context.plan.gpu.peaks.tflops else "fp16"
    return "fp8"


@item("mixed-precision")
def _mixed_precision(context: Context) -> Answer:
    plan, before, target = context.plan, context.plan.precision, _narrower(context)
    if plan.precision == "fp8" or PRECISIONS[target].compute not in plan.gpu.peaks.tflops:
        return f"{plan.precision} is the narrowest that the {plan.gpu.name} has"
    other = context.best(replace(plan, precision=target), context.any_recompute())
    rate = plan.gpu.peak(PRECISIONS[target].compute) / plan.gpu.peak(PRECISIONS[before].compute)
    reason = (
        f"products have {rate:.3g} times the peak: {_span(other.step.step_s)} a step, "
        f"{byte_size(other.memory_bytes)} on each GPU"
    )
    autocast = "torch.autocast('cuda', torch.bfloat16), or FSDP's MixedPrecisionPolicy"
    how = "torchao's float8 training" if target == "fp8" else autocast
    return versus(context, other, reason, target=target, before=before, how=how)


def pointwise_bytes(plan: Plan, fused: bool) -> float:
    """Return what one GPU reads and writes in a step for the elementwise operators of a decoder, one by one or fused.

    A forward of one layer, in numbers of each token, with h the hidden size and f the MLP's width: two normalizations
    (read and write h, and a residual add before each that reads 2h and writes h), the activation function (read and
    write f), with a gate also a product (read 2f, write f), two dropouts where the model has them (read and write h),
    and for GPT four biases (read and write 3h + h + f + h). Fused, each chain between two products reads its inputs
    and writes its result: the residual, its sum and the normalized numbers (4h a normalization) and the activation
    (read f or 2f, write f). Backward reads and writes twice as much.
    """
    shape, layout = plan.shape, plan.layout
    hidden, mlp = shape.hidden, shape.mlp * shape.top_k
    around = 2 * 4 * hidden if fused else 2 * (2 + 3) * hidden
    inner: float = (3 if shape.gated else 2) * mlp
    if not fused:
        inner = (2 + 3 if shape.gated else 2) * mlp
        around += 2 * 2 * hidden if plan.dropout else 0
        around += 2 * 2 * hidden if shape.bias else 0
        inner += 2 * (3 * hidden + mlp) if shape.bias else 0
    split = around / (layout.tensor if layout.sequence else 1) + inner / layout.tensor
    tokens = plan.batch * shape.sequence / layout.data
    return 3 * split * shape.layers / layout.stages * tokens * PRECISIONS[plan.precision].activation_bytes


@item("compile")
def _compile(context: Context) -> Answer:
    if not _is_decoder(context):
        return None
    saved = pointwise_bytes(context.plan, fused=False) - pointwise_bytes(context.plan, fused=True)
    rate = context.plan.gpu.memory_bytes_per_s
    reason = f"{byte_size(saved)} that a GPU would not write and read again in a step, at {rate / 1e12:.3g} TB/s"
    return Found(reason, saved / rate, status="keep")


def _halves(context: Context) -> list[Plan]:
    """Return the plan on half, a quarter … of its data-parallel GPUs."""
    found, layout, data = [], context.layout, context.layout.data // 2
    while data and layout.data % data == 0 and data >= layout.expert:
        fewer = replace(context.plan, layout=replace(layout, data=data, shards=min(layout.shards, data)))
        try:
            fewer.check()
        except UsageError:
            break
        found.append(fewer)
        data //= 2
    return found


@item("fewer-gpus")
def _fewer_gpus(context: Context) -> Answer:
    halves = _halves(context)
    if not halves:
        return f"{context.layout.gpus} GPUs hold one copy of the model"
    evaluate = candidate if _is_decoder(context) else context.best
    found = [evaluate(fewer) for fewer in halves]
    (half, halved), (seconds, best) = (
        (one.step.step_s, one.plan) for one in (found[0], min(found, key=lambda one: one.step.step_s))
    )
    reason = (
        f"twice the GPUs are {half / context.step_s:.2f} times as fast for the same batch (from {halved.layout.gpus} "
        f"to {context.layout.gpus}), an efficiency of {share(half / context.step_s / 2)}; the goal is 70 % "
        f"({_DDP_PAGE})"
    )
    status = "skip" if seconds >= context.step_s or not best.fits else ""
    return Found(reason, context.step_s - seconds, None, status, {"gpus": best.layout.gpus})


# Communication: overlap, buckets, compression, levels of links, faster links, prefetching.


_MIB = 1 << 20
_BUCKETS = (1, 5, 10, 25, 50, 100, 200)
"""MiB, from DDP's first bucket to eight times its default."""
_NO_GRADIENTS = "one GPU holds each part of the model, so no gradients are reduced"


@item("overlap")
def _overlap(context: Context) -> Answer:
    step = context.now.step
    hidden = "" if step.overlap is None else f": {share(step.overlap)} is hidden, the goal is 80 %"
    reason = f"{_span(step.communication_s)} of communication, {_span(step.exposed_s)} of it exposed{hidden}"
    return Found(reason, step.serial_s - step.step_s, status="keep" if step.serial_s > step.step_s else "skip")


@item("bucket-size")
def _bucket_size(context: Context) -> Answer:
    if context.layout.zero == 3:
        return "FSDP reduces a layer at a time"
    if not context.gradients[1]:
        return _NO_GRADIENTS
    link = context.slowest
    steps = [(predict_step(replace(context.plan, bucket_bytes=size * _MIB)).step_s, size) for size in _BUCKETS]
    seconds, size = min(steps)
    reason = (
        f"of {', '.join(map(str, _BUCKETS))} MiB, {size} is the fastest; the rule is above n* = "
        f"{byte_size(crossover_bytes(link))} of {link.name}"
    )
    return Found(reason, context.step_s - seconds, filled={"size": size})


@item("compress")
def _compress(context: Context) -> Answer:
    plan, (size, _) = context.plan, context.gradients
    if not size:
        return _NO_GRADIENTS
    if context.layout.zero == 3 or plan.state.gradients < 2:
        return "sharded parameters are gathered, too: lower the precision instead"
    other = predict_step(replace(plan, gradient_bytes=plan.state.gradients // 2))
    # Before and after: read the gradients and write half, read half and write them.
    cost = 3 * size / plan.gpu.memory_bytes_per_s
    saved = context.now.step.exposed_s - other.exposed_s
    reason = f"{byte_size(size)} of gradients a GPU; {_span(saved)} less exposed, {_span(cost)} to compress them"
    wide = "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
    narrow = "PowerSGD (torch's powerSGD_hook), or 8 bits with error feedback; dptrace record --compress powersgd"
    return Found(reason, saved - cost, filled={"how": wide if plan.state.gradients > 2 else narrow})


def _ranks_in_a_node(context: Context) -> int:
    return max(1, context.plan.network.gpus_per_node // context.layout.tensor)


@item("hierarchical")
def _hierarchical(context: Context) -> Answer:
    size, data, local = context.gradients[0], context.layout.data, _ranks_in_a_node(context)
    if not size:
        return _NO_GRADIENTS
    if data <= local or local == 1:
        return "the GPUs that reduce gradients share one kind of link"
    network = replace(context.plan.network, gpus_per_node=local)
    times = {one["algorithm"]: one["seconds"] for one in all_reduces(network, size, data)}
    flat, levels = times["ring"], times["hierarchical-sharded"]
    reason = (
        f"all gradients, {byte_size(size)} among {data} GPUs: {_span(levels)} in levels, {_span(flat)} by one ring "
        "over the slowest link"
    )
    return Found(reason, max(0.0, flat - levels), status="keep")


@item("faster-links")
def _faster_links(context: Context) -> Answer:
    network, link = context.plan.network, context.slowest
    several = context.layout.gpus > network.gpus_per_node
    doubled = Link(link.name, link.alpha_s, 2 * link.bytes_per_s)
    other = context.changed(network=replace(network, **{"between" if several else "within": doubled}))
    reason = f"twice the bandwidth of {link.name}: {_span(other.step.step_s)} a step"
    where = "between nodes" if several else "within the node"
    return Found(reason, context.step_s - other.step.step_s, filled={"where": where})


@item("prefetch")
def _prefetch(context: Context) -> Answer:
    if context.layout.zero < 3 or context.layout.shards == 1:
        return None
    step = context.now.step
    gathers = sum(one.seconds for one in step.traffic if one.what.startswith("parameters"))
    reason = f"{_span(gathers)} of all-gathers in a step, which the computation of the layer before hides"
    return Found(reason, gathers - min(gathers, step.exposed_s), status="keep")


def _groups(context: Context) -> list[int]:
    """Return the numbers of GPUs, in whole nodes, that could share a copy instead of those that do."""
    layout, local = context.layout, _ranks_in_a_node(context)
    if layout.zero < 3 or layout.data <= local or layout.stages > 1:
        return []
    return [size for size in range(local, layout.data, local) if layout.data % size == 0 and size != layout.shards]


@item("hybrid-shards")
def _hybrid_shards(context: Context) -> Answer:
    tried = [context.spread(shards=size) for size in _groups(context)]
    if not tried:
        return None
    best = min(tried, key=lambda one: (not one.fits, one.step.step_s if one.fits else one.memory_bytes))
    fits = "fits" if best.fits else f"is {byte_size(best.over_bytes)} too much"
    reason = f"{best.label}: {_span(best.step.step_s)} a step, {byte_size(best.memory_bytes)} on each GPU, which {fits}"
    return versus(context, best, reason, "" if best.fits else "skip")


# Memory: recomputation, attention without scores, sharding, sequence parallelism, offloading.


_PCIE = "pcie4"


@item("checkpoint-activations")
def _checkpoint(context: Context) -> Answer:
    if not _is_decoder(context):
        return None
    kept, again = context.changed(recompute="none"), context.changed(recompute="full")
    cost = again.step.step_s - kept.step.step_s
    reason = (
        f"without: {byte_size(kept.memory_bytes)} on each GPU; recomputing each layer: "
        f"{byte_size(again.memory_bytes)}, and the step takes {_span(cost)} longer"
    )
    on = context.plan.recompute != "none"
    saved = kept.memory_bytes - (context.now if on else again).memory_bytes
    return Found(reason, -cost, saved, "keep" if on else "skip" if context.now.fits else "")


@item("flash-attention")
def _flash_attention(context: Context) -> Answer:
    if not _is_decoder(context):
        return None
    if context.plan.flash:
        return "it is in use"
    other = context.best(replace(context.plan, flash=True), context.any_recompute())
    saved = context.now.memory_bytes - context.changed(flash=True).memory_bytes
    reason = (
        f"{byte_size(saved)} less for the same plan; the best micro-batch is then {other.plan.micro_batch}, recompute "
        f"{other.plan.recompute}: {_span(other.step.step_s)} a step"
    )
    return Found(reason, context.step_s - other.step.step_s, saved)


@item("shard-optimizer")
def _shard_optimizer(context: Context) -> Answer:
    data = context.layout.data
    if context.layout.zero or data == 1:
        return "it is sharded" if context.layout.zero else "there is one copy of it"
    other = context.spread(zero=1, shards=data)
    reason = (
        f"{byte_size(context.plan.memory.state.optimizer)} of optimizer state on each of {data} GPUs; each would "
        f"update its part, and the parts are gathered: {_span(other.step.step_s)} a step"
    )
    return versus(context, other, reason)


@item("sequence-parallel")
def _sequence_parallel(context: Context) -> Answer:
    if context.layout.tensor == 1:
        return None
    without = context.spread(sequence=False)
    reason = f"{byte_size(without.memory_bytes)} on each GPU without it; it sends as many bytes"
    gain_s, gain_bytes = without.step.step_s - context.step_s, without.memory_bytes - context.now.memory_bytes
    return Found(reason, gain_s, gain_bytes, "keep" if context.layout.sequence else "")


@item("offload")
def _offload(context: Context) -> Answer:
    state, link, over = context.plan.memory.state, interconnect_named(_PCIE), context.now.over_bytes
    cost = (state.gradients + state.parameters) / link.bytes_per_s
    saved = state.optimizer
    reason = (
        f"{byte_size(saved)} of optimizer state on each GPU; gradients and weights take {_span(cost)} over {link.name} "
        "in each step, besides the host's update"
    )
    if not over:
        spare = USABLE * context.plan.gpu.memory_bytes - context.now.memory_bytes
        reason = f"the plan fits with {byte_size(spare)} to spare"
    return Found(reason, -cost, saved, "skip" if not over or saved < over else "")


# Pipelines and experts: micro-batches, schedules, balance.


@item("micro-batches")
def _micro_batches(context: Context) -> Answer:
    plan, layout = context.plan, context.layout
    if layout.stages == 1:
        return None
    most, bubble = RULES["bubble"].value, context.now.step.bubble
    needed = micro_batches_needed(layout.schedule, layout.stages, most, layout.virtual_stages)
    factor = math.ceil(needed / plan.micro_batches)
    other = context.changed(batch=factor * plan.batch)
    reason = (
        f"{plural(plan.micro_batches, 'micro-batch', 'micro-batches')}: bubble {share(bubble)}, goal 10 %; {needed} "
        f"reach it, {4 * layout.stages} are 4 × P"
    )
    gain = context.step_s - other.step.step_s / factor
    filled: dict[str, object] = {"factor": factor, "batch": factor * plan.batch}
    return Found(reason, gain, None, "skip" if bubble < most else "", filled)


@item("interleaved")
def _interleaved(context: Context) -> Answer:
    layers, stages, count = context.plan.shape.layers, context.layout.stages, context.plan.micro_batches
    if stages == 1:
        return None
    if context.layout.schedule == "interleaved":
        return "it is in use"
    if 2 * stages > layers:
        return f"there are only {plural(layers, 'layer')}"
    if count % stages:
        return f"{count} micro-batches are no multiple of {stages} stages"
    other = context.spread(schedule="interleaved", virtual_stages=2)
    too_much = "" if other.fits else f", {byte_size(other.over_bytes)} too much"
    reason = (
        f"bubble {share(context.now.step.bubble)} → {share(other.step.bubble)}, {byte_size(other.memory_bytes)} on "
        f"each GPU{too_much}"
    )
    return versus(context, other, reason, "" if other.fits else "skip")


@item("balance")
def _balance(context: Context) -> Answer:
    plan = context.plan
    if context.layout.stages == 1:
        return None
    reason = (
        f"{plural(plan.shape.layers, 'layer')} on {context.layout.stages} stages: the longest has {plan.balance:.3g} "
        "times the mean"
    )
    return Found(reason, context.now.step.compute_s * (1 - 1 / plan.balance))


@item("expert-balance")
def _expert_balance(context: Context) -> Answer:
    shape = context.plan.shape
    if shape.experts == 1:
        return None
    experts = shape.top_k * shape.expert_parameters
    part = experts / (experts + shape.dense_layer_parameters)
    reason = f"experts compute {share(part)} of a layer; a rank with 1.25 times the mean tokens makes the others wait"
    return Found(reason, 0.25 * part * context.now.step.compute_s, status="keep")


# The training loop: DDP's options, the backend, and how samples are loaded.


_WORKERS = 4


def _is_ddp(context: Context) -> bool:
    layout = context.layout
    return layout.zero == 0 and layout.data > 1 and layout.stages == 1


@item("sampler")
def _sampler(context: Context) -> Answer:
    data = context.layout.data
    if data == 1:
        return "there is one data-parallel rank"
    reason = f"without, {data} ranks train on the same samples, and a step does the work of one"
    return Found(reason, context.step_s * (1 - 1 / data), status="keep")


@item("no_sync")
def _no_sync(context: Context) -> Answer:
    layout, micro, (_, seconds) = context.layout, context.plan.micro_batches, context.gradients
    if micro == 1:
        return "a step has one micro-batch"
    if layout.zero > 1 or layout.stages > 1 or not seconds:
        return f"{context.now.label} reduces as it must"
    backward = context.now.step.compute_s * 2 / 3 / micro
    reason = f"{_span(seconds)} of reduction for each of {micro} micro-batches, whose backward takes {_span(backward)}"
    return Found(reason, (micro - 1) * max(0.0, seconds - backward), status="keep")


@item("nccl")
def _backend(context: Context) -> Answer:
    if context.layout.gpus == 1:
        return "one GPU sends nothing"
    network, host = context.plan.network, interconnect_named(_PCIE)
    slow = min((network.within, Link(host.name, host.alpha_s, host.bytes_per_s)), key=lambda link: link.bytes_per_s)
    other = context.changed(network=Network(slow, network.between, network.gpus_per_node))
    reason = f"through the hosts' memory, over {host.name}, a step takes {_span(other.step.step_s)}"
    return Found(reason, max(0.0, other.step.step_s - context.step_s), status="keep")


@item("gradient_as_bucket_view")
def _bucket_view(context: Context) -> Answer:
    if not _is_ddp(context):
        return f"{context.now.label} is not DDP"
    size = context.plan.memory.state.gradients
    return Found(f"a second copy of the gradients takes {byte_size(size)} on each GPU", None, size, "keep")


@item("find_unused_parameters")
def _unused_parameters(context: Context) -> Answer:
    if not _is_ddp(context):
        return f"{context.now.label} is not DDP"
    shape = context.plan.shape
    tensors = shape.layers * (16 if shape.bias else 9) + 4
    seconds = collective_seconds(context.plan.network, "all_reduce", 4 * tensors, context.layout.data)
    reason = (
        f"it all-reduces a map of {tensors:,} parameters in each step and walks the graph of autograd before backward"
    )
    return Found(reason, seconds, status="keep")


@item("static_graph")
def _static_graph(context: Context) -> Answer:
    if not _is_ddp(context):
        return f"{context.now.label} is not DDP"
    reason = "if each step uses the same parameters; it spares the host bookkeeping, which a description does not have"
    return Found(reason, status="keep")


@item("broadcast_buffers")
def _broadcast_buffers(context: Context) -> Answer:
    if not _is_ddp(context):
        return f"{context.now.label} is not DDP"
    network, data = context.plan.network, context.layout.data
    link = network.within if data <= network.gpus_per_node else network.between
    reason = "only models with buffers (BatchNorm) have something to keep equal; a broadcast costs its latency"
    return Found(reason, link.alpha_s * math.ceil(math.log2(data)))


@item("pin_memory")
def _pin_memory(context: Context) -> Answer:
    plan = context.plan
    size = plan.batch / context.layout.data * plan.shape.sample_bytes
    seconds = 2 * size / interconnect_named(_PCIE).bytes_per_s
    reason = (
        f"a GPU gets {byte_size(size)} of samples and targets in a step; copied twice and not under computation, that "
        f"is {_span(seconds)}"
    )
    return Found(reason, seconds)


@item("num_workers")
def _workers(context: Context) -> Answer:
    rate = context.now.step.samples_per_s / context.layout.data
    reason = (
        f"a rank takes {rate:,.3g} samples/s, so {_WORKERS} workers keep up if each prepares a sample in "
        f"{_span(_WORKERS / rate)}"
    )
    return Found(reason, status="keep")

"""The documents' checklists: what to change in a plan, what it gains, and why.

The texts of the items are the rows of checklist.md; each has a function here that computes what it gains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from importlib.resources import files
from string import Formatter
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

    gain_s: float | None = None
    gain_bytes: float | None = None
    status: str = ""
    """Empty: the gain decides."""
    numbers: dict[str, Any] = {}
    """The values of the placeholders in the item's texts."""
    reason: str = ""
    """Instead of the item's own text."""


def found(gain_s: float | None = None, gain_bytes: float | None = None, status: str = "", **numbers: Any) -> Found:
    """Return what an item computes, with the numbers of its texts."""
    return Found(gain_s, gain_bytes, status, numbers)


def versus(context: Context, other: Candidate, status: str = "", reason: str = "", **numbers: Any) -> Found:
    """Return what another plan gains over the one at hand; its step, memory and micro-batch are numbers of the text."""
    gain_s, gain_bytes = context.step_s - other.step.step_s, context.now.memory_bytes - other.memory_bytes
    return Found(gain_s, gain_bytes, status, {**_numbers(other), **numbers}, reason)


def _numbers(one: Candidate) -> dict[str, Any]:
    plan = {"label": one.label, "size": one.plan.micro_batch, "recompute": one.plan.recompute}
    return {**plan, "step": one.step.step_s, "bytes": one.memory_bytes}


class Texts(NamedTuple):
    """A row of checklist.md, which replays of recordings (dptrace.replay.advice) share; numbers have placeholders."""

    what: str
    do: str
    computed: str
    source: str
    why: str = ""


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
    one = Found(status="skip", reason=answer) if isinstance(answer, str) else answer
    part = None if one.gain_s is None else one.gain_s / context.step_s
    what, do, computed = (_filled(text, one) for text in (texts.what, texts.do, texts.computed))
    status = one.status or ("apply" if _worthwhile(context, part, one.gain_bytes) else "skip")
    left = context.now.over_bytes - (one.gain_bytes or 0.0)
    still = f": still {byte_size(left)} too much" if left > 0 else ": then it fits"
    return Check(
        name=name,
        what=what,
        status=status,
        reason=(one.reason or _filled(texts.why, one)) + (still if status == "apply" and not context.now.fits else ""),
        gain_s=one.gain_s,
        gain_bytes=one.gain_bytes,
        gain_share=part,
        computed="" if isinstance(answer, str) else computed,
        do=do,
        source=texts.source,
    )


class _Figures(Formatter):
    """Write numbers with their units: ``{cost:time}`` of seconds, ``{held:size}`` of bytes, ``{part:share}``."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Write one number."""
        units: dict[str, Callable[[Any], str]] = {"time": _span, "size": byte_size, "share": share}
        return units[format_spec](value) if format_spec in units else super().format_field(value, format_spec)


def _filled(text: str, one: Found) -> str:
    """Return a text with its numbers; without them, what stands in brackets is left out."""
    if not one.numbers:
        return re.sub(r"\[.*?\]", "", text)
    return _Figures().format(re.sub(r"[\[\]]", "", text), **one.numbers)


def _worthwhile(context: Context, part: float | None, gain_bytes: float | None) -> bool:
    """Return whether an item applies: from 1 % of the step or of a GPU's memory on.

    Of a plan that does not fit, memory alone counts; else memory counts where the time gets no longer.
    """
    saves = gain_bytes is not None and gain_bytes >= MIN_SHARE * context.plan.gpu.memory_bytes
    if not context.now.fits:
        return saves
    part = part or 0.0
    return part >= MIN_SHARE or (saves and part > -MIN_SHARE)


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
    same = best.plan == context.plan
    reason = "this is the best plan found" if same else ""
    return versus(context, best, "skip" if same or not best.fits else "", reason)


@item("larger-batch")
def _larger_batch(context: Context) -> Answer:
    batch = 2 * context.plan.batch
    other = context.best(replace(context.plan, batch=batch))
    half, exposed = other.step.step_s / 2, other.step.exposed_s / other.step.step_s
    gain_bytes, size = context.now.memory_bytes - other.memory_bytes, other.plan.micro_batch
    return found(context.step_s - half, gain_bytes, batch=batch, size=size, half=half, exposed=exposed)


def _is_decoder(context: Context) -> bool:
    return not isinstance(context.plan.shape, LayerStack)


@item("accumulate")
def _accumulate(context: Context) -> Answer:
    each = context.changed(batch=4 * context.plan.batch).step.step_s / 4
    return found(context.step_s - each, each=each)


@item("micro-batch")
def _micro_batch(context: Context) -> Answer:
    other = context.best(context.plan, context.any_recompute())
    size, recompute = other.plan.micro_batch, other.plan.recompute
    same = (size, recompute) == (context.plan.micro_batch, context.plan.recompute)
    status, best = "skip" if same or not other.fits else "", ": the best" if same else ""
    return versus(context, other, status, samples=plural(size, "sample"), best=best)


def _narrower(context: Context) -> str:
    """Return the next narrower number type: 16 bits, then 8."""
    if context.plan.precision in ("fp32", "tf32", "amp"):
        return "bf16" if "bf16" in context.plan.gpu.peaks.tflops else "fp16"
    return "fp8"


@item("mixed-precision")
def _mixed_precision(context: Context) -> Answer:
    plan, before, target = context.plan, context.plan.precision, _narrower(context)
    if before == "fp8" or PRECISIONS[target].compute not in plan.gpu.peaks.tflops:
        return f"{before} is the narrowest that the {plan.gpu.name} has"
    other = context.best(replace(plan, precision=target), context.any_recompute())
    rate = plan.gpu.peak(PRECISIONS[target].compute) / plan.gpu.peak(PRECISIONS[before].compute)
    autocast = "torch.autocast('cuda', torch.bfloat16), or FSDP's MixedPrecisionPolicy"
    how = "torchao's float8 training" if target == "fp8" else autocast
    return versus(context, other, target=target, before=before, how=how, rate=rate)


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
    hidden, mlp = shape.hidden, shape.mlp_width
    around = 2 * 4 * hidden if fused else 2 * (2 + 3) * hidden
    inner: float = (3 if shape.gated else 2) * mlp
    if not fused:
        inner = (2 + 3 if shape.gated else 2) * mlp
        around += 2 * 2 * hidden if plan.dropout else 0
        around += 2 * 2 * hidden if shape.bias else 0
        inner += 2 * (3 * hidden + mlp) if shape.bias else 0
    split = around / (layout.tensor if layout.sequence else 1) + inner / layout.tensor
    tokens = plan.batch * shape.sequence / layout.replicas
    return 3 * split * shape.layers / layout.stages * tokens * PRECISIONS[plan.precision].activation_bytes


@item("compile")
def _compile(context: Context) -> Answer:
    if not _is_decoder(context):
        return None
    saved = pointwise_bytes(context.plan, fused=False) - pointwise_bytes(context.plan, fused=True)
    rate = context.plan.gpu.memory_bytes_per_s
    return found(saved / rate, status="keep", saved=saved, rate=rate / 1e12)


def _halves(context: Context) -> list[Plan]:
    """Return the plan on half, a quarter … of its data-parallel GPUs."""
    found, layout, data = [], context.layout, context.layout.data // 2
    while data and layout.data % data == 0 and layout.holds_experts(data * layout.context):
        shards = math.gcd(layout.shards, data * layout.context)
        fewer = replace(context.plan, layout=replace(layout, data=data, shards=shards))
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
    tried = [evaluate(fewer) for fewer in halves]
    half, best = tried[0], min(tried, key=lambda one: one.step.step_s)
    ratio, gain_s = half.step.step_s / context.step_s, context.step_s - best.step.step_s
    status = "skip" if gain_s <= 0 or not best.plan.fits else ""
    gpus = {"half": half.plan.layout.gpus, "all": context.layout.gpus, "gpus": best.plan.layout.gpus}
    return found(gain_s, None, status, ratio=ratio, efficiency=ratio / 2, **gpus)


# Communication: overlap, buckets, compression, levels of links, faster links, prefetching.


_BUCKETS = (1, 5, 10, 25, 50, 100, 200)
"""MiB, from DDP's first bucket to eight times its default."""
_NO_GRADIENTS = "one GPU holds each part of the model, so no gradients are reduced"


@item("overlap")
def _overlap(context: Context) -> Answer:
    step = context.now.step
    hidden = "" if step.overlap is None else f": {share(step.overlap)} is hidden, the goal is 80 %"
    status = "keep" if step.serial_s > step.step_s else "skip"
    gain_s = step.serial_s - step.step_s
    return found(gain_s, None, status, all=step.communication_s, exposed=step.exposed_s, hidden=hidden)


@item("bucket-size")
def _bucket_size(context: Context) -> Answer:
    if context.layout.zero == 3:
        return "FSDP reduces a layer at a time"
    if not context.gradients[1]:
        return _NO_GRADIENTS
    link, sizes = context.slowest, ", ".join(map(str, _BUCKETS))
    steps = [(predict_step(replace(context.plan, bucket_bytes=size << 20)).step_s, size) for size in _BUCKETS]
    seconds, size = min(steps)
    return found(context.step_s - seconds, size=size, sizes=sizes, least=crossover_bytes(link), link=link.name)


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
    wide = "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
    narrow = "PowerSGD (torch's powerSGD_hook), or 8 bits with error feedback; dptrace record --compress powersgd"
    how = wide if plan.state.gradients > 2 else narrow
    return found(saved - cost, how=how, bytes=size, saved=saved, cost=cost)


def _ranks_in_a_node(context: Context) -> int:
    return max(1, context.plan.network.gpus_per_node // context.layout.tensor)


@item("hierarchical")
def _hierarchical(context: Context) -> Answer:
    size, data, local = context.gradients[0], context.layout.replicas, _ranks_in_a_node(context)
    if not size:
        return _NO_GRADIENTS
    if data <= local or local == 1:
        return "the GPUs that reduce gradients share one kind of link"
    network = replace(context.plan.network, gpus_per_node=local)
    times = {one["algorithm"]: one["seconds"] for one in all_reduces(network, size, data)}
    flat, levels = times["ring"], times["hierarchical-sharded"]
    return found(max(0.0, flat - levels), status="keep", bytes=size, data=data, levels=levels, flat=flat)


@item("faster-links")
def _faster_links(context: Context) -> Answer:
    network, link = context.plan.network, context.slowest
    several = context.layout.gpus > network.gpus_per_node
    doubled = Link(link.name, link.alpha_s, 2 * link.bytes_per_s)
    step_s = context.changed(network=replace(network, **{"between" if several else "within": doubled})).step.step_s
    where = "between nodes" if several else "within the node"
    return found(context.step_s - step_s, where=where, link=link.name, step=step_s)


@item("prefetch")
def _prefetch(context: Context) -> Answer:
    if context.layout.zero < 3 or context.layout.shards == 1:
        return None
    step = context.now.step
    gathers = sum(one.seconds for one in step.traffic if one.what.startswith("parameters"))
    return found(gathers - min(gathers, step.exposed_s), status="keep", gathers=gathers)


def _groups(context: Context) -> list[int]:
    """Return the numbers of GPUs, in whole nodes, that could share a copy instead of those that do."""
    layout, local = context.layout, _ranks_in_a_node(context)
    whole = layout.replicas
    if layout.zero < 3 or whole <= local or layout.stages > 1 or layout.expert > 1:
        return []
    return [size for size in range(local, whole, local) if whole % size == 0 and size != layout.shards]


@item("hybrid-shards")
def _hybrid_shards(context: Context) -> Answer:
    tried = [context.spread(shards=size) for size in _groups(context)]
    if not tried:
        return None
    best = min(tried, key=lambda one: (not one.fits, one.step.step_s if one.fits else one.memory_bytes))
    fits = "fits" if best.fits else f"is {byte_size(best.over_bytes)} too much"
    return versus(context, best, "" if best.fits else "skip", fits=fits)


# Memory: recomputation, attention without scores, sharding, sequence parallelism, offloading.


_PCIE = "pcie4"


@item("checkpoint-activations")
def _checkpoint(context: Context) -> Answer:
    if not _is_decoder(context):
        return None
    kept, again = context.changed(recompute="none"), context.changed(recompute="full")
    cost, on = again.step.step_s - kept.step.step_s, context.plan.recompute != "none"
    saved = kept.memory_bytes - (context.now if on else again).memory_bytes
    status = "keep" if on else "skip" if context.now.fits else ""
    return found(-cost, saved, status, kept=kept.memory_bytes, again=again.memory_bytes, cost=cost)


@item("flash-attention")
def _flash_attention(context: Context) -> Answer:
    if not _is_decoder(context):
        return None
    if context.plan.flash:
        return "it is in use"
    other = context.best(replace(context.plan, flash=True), context.any_recompute())
    saved = context.now.memory_bytes - context.changed(flash=True).memory_bytes
    return found(context.step_s - other.step.step_s, saved, saved=saved, **_numbers(other))


@item("shard-optimizer")
def _shard_optimizer(context: Context) -> Answer:
    data = context.layout.replicas
    if context.layout.zero or data == 1:
        return "it is sharded" if context.layout.zero else "there is one copy of it"
    return versus(context, context.spread(zero=1, shards=data), data=data, held=context.plan.memory.state.optimizer)


@item("sequence-parallel")
def _sequence_parallel(context: Context) -> Answer:
    if context.layout.tensor == 1:
        return None
    without = context.spread(sequence=False)
    gain_s, gain_bytes = without.step.step_s - context.step_s, without.memory_bytes - context.now.memory_bytes
    return found(gain_s, gain_bytes, "keep" if context.layout.sequence else "", bytes=without.memory_bytes)


@item("offload")
def _offload(context: Context) -> Answer:
    plan = context.plan
    if not plan.gpu.host:
        return f"the {plan.gpu.name} and its CPU have one memory"
    if plan.offload:
        return "the state is in the CPU's memory"
    if context.now.fits:
        spare = USABLE * plan.gpu.memory_bytes - context.now.memory_bytes
        return f"the plan fits with {byte_size(spare)} to spare"
    if context.layout.zero < 3:
        return f"{context.now.label} holds whole parameters: shard them first"
    other, gpus = context.changed(offload=True), min(plan.gpu.gpus_per_host, context.layout.gpus)
    return versus(context, other, host=gpus * other.plan.memory.host_bytes, link=interconnect_named(plan.gpu.host).name)


# Pipelines and experts: micro-batches, schedules, balance.


@item("micro-batches")
def _micro_batches(context: Context) -> Answer:
    plan, layout = context.plan, context.layout
    if layout.stages == 1:
        return None
    most, bubble = RULES["bubble"].value, context.now.step.bubble
    needed = micro_batches_needed(layout.schedule, layout.stages, most, layout.virtual_stages)
    factor, count = math.ceil(needed / plan.micro_batches), plural(plan.micro_batches, "micro-batch", "micro-batches")
    gain_s = context.step_s - context.changed(batch=factor * plan.batch).step.step_s / factor
    numbers = {"count": count, "bubble": bubble, "needed": needed, "rule": 4 * layout.stages}
    status = "skip" if bubble < most else ""
    return found(gain_s, None, status, factor=factor, batch=factor * plan.batch, **numbers)


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
    bubbles: dict[str, Any] = {"before": context.now.step.bubble, "after": other.step.bubble}
    return versus(context, other, "" if other.fits else "skip", too_much=too_much, **bubbles)


@item("balance")
def _balance(context: Context) -> Answer:
    plan, stages = context.plan, context.layout.stages
    if stages == 1:
        return None
    gain_s, layers = context.now.step.compute_s * (1 - 1 / plan.balance), plural(plan.shape.layers, "layer")
    return found(gain_s, layers=layers, stages=stages, longest=plan.balance)


@item("expert-balance")
def _expert_balance(context: Context) -> Answer:
    shape = context.plan.shape
    if shape.experts == 1:
        return None
    part = shape.expert_layers * shape.mixed_flops[1] / shape.layer_flops
    return found(0.25 * part * context.now.step.compute_s, status="keep", part=part)


# The training loop: DDP's options, the backend, and how samples are loaded.


def _is_ddp(context: Context) -> bool:
    layout = context.layout
    return layout.zero == 0 and layout.data > 1 and layout.stages == 1


@item("sampler")
def _sampler(context: Context) -> Answer:
    data = context.layout.data
    if data == 1:
        return "there is one data-parallel rank"
    return found(context.step_s * (1 - 1 / data), status="keep", data=data)


@item("no_sync")
def _no_sync(context: Context) -> Answer:
    layout, count, (_, seconds) = context.layout, context.plan.micro_batches, context.gradients
    if count == 1:
        return "a step has one micro-batch"
    if layout.zero > 1 or layout.stages > 1 or not seconds:
        return f"{context.now.label} reduces as it must"
    backward = context.now.step.compute_s * 2 / 3 / count
    gain_s = (count - 1) * max(0.0, seconds - backward)
    return found(gain_s, status="keep", reduction=seconds, count=count, backward=backward)


@item("nccl")
def _backend(context: Context) -> Answer:
    if context.layout.gpus == 1:
        return "one GPU sends nothing"
    network, host = context.plan.network, interconnect_named(_PCIE)
    slow = Link(host.name, host.alpha_s, host.bytes_per_s)
    if network.within.bytes_per_s <= slow.bytes_per_s:
        return f"over {network.within.name}, NCCL is as fast as the way through the hosts' memory"
    step_s = context.changed(network=Network(slow, network.between, network.gpus_per_node)).step.step_s
    return found(max(0.0, step_s - context.step_s), status="keep", link=host.name, step=step_s)


@item("gradient_as_bucket_view")
def _bucket_view(context: Context) -> Answer:
    size = context.plan.memory.state.gradients
    return found(None, size, "keep", bytes=size) if _is_ddp(context) else f"{context.now.label} is not DDP"


@item("find_unused_parameters")
def _unused_parameters(context: Context) -> Answer:
    if not _is_ddp(context):
        return f"{context.now.label} is not DDP"
    shape = context.plan.shape
    tensors = shape.layers * (16 if shape.bias else 9) + 4
    seconds = collective_seconds(context.plan.network, "all_reduce", 4 * tensors, context.layout.data)
    return found(seconds, status="keep", tensors=tensors)


@item("static_graph")
def _static_graph(context: Context) -> Answer:
    return found(status="keep") if _is_ddp(context) else f"{context.now.label} is not DDP"


@item("broadcast_buffers")
def _broadcast_buffers(context: Context) -> Answer:
    if not _is_ddp(context):
        return f"{context.now.label} is not DDP"
    network, data = context.plan.network, context.layout.data
    link = network.within if data <= network.gpus_per_node else network.between
    return found(link.alpha_s * math.ceil(math.log2(data)))


@item("pin_memory")
def _pin_memory(context: Context) -> Answer:
    size = context.plan.batch / context.layout.data * context.plan.shape.sample_bytes
    cost = 2 * size / interconnect_named(_PCIE).bytes_per_s
    return found(cost, bytes=size, cost=cost)


@item("num_workers")
def _workers(context: Context) -> Answer:
    rate = context.now.step.samples_per_s / context.layout.data
    return found(status="keep", rate=rate, each=4 / rate)

"""What a step communicates: each collective with its bytes, calls, time, and what it can hide behind.

Volumes follow Rajbhandari et al. (ZeRO, arXiv 1910.02054, section 7), Narayanan et al. (Megatron-LM, arXiv 2104.04473,
section 3) and, for experts, Lepikhin et al. (GShard, arXiv 2006.16668).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from dptrace.model.training.communication.network import collective_seconds, sent_bytes
from dptrace.model.training.memory.state import PRECISIONS
from dptrace.model.training.plan import Plan

__all__ = ["Traffic", "traffic"]


class Traffic(msgspec.Struct, frozen=True):
    """Collectives of one kind in a step, as one GPU sees them."""

    what: str
    kind: str
    bytes: float
    """Of one call, as nccl-tests counts them."""
    calls: float
    """In a step."""
    ranks: int
    stride: int
    hides: str
    """What it runs under: ``forward``, ``backward``, or nothing (empty): the computation waits for it."""
    call_s: float
    every_micro_batch: bool = True
    """Whether it happens in each micro-batch, else once in a step."""

    @property
    def seconds(self) -> float:
        """Return the time of all calls."""
        return self.call_s * self.calls

    @property
    def sent_bytes(self) -> float:
        """Return what one GPU sends in a step."""
        return sent_bytes(self.kind, self.bytes, self.ranks) * self.calls


def traffic(plan: Plan) -> tuple[Traffic, ...]:
    """Return all communication of a step."""
    found = (*_data_parallel(plan), *_expert_gradients(plan), *_tensor(plan), *_experts(plan), *_stages(plan))
    return tuple(one for one in found if one.ranks > 1 and one.calls)


def _one(plan: Plan, what: str, kind: str, size: float, calls: float, ranks: int, stride: int, hides: str) -> Traffic:
    seconds = collective_seconds(plan.network, kind, size, ranks, stride)
    return Traffic(what, kind, size, calls, ranks, stride, hides, seconds)


def _common_parameters(plan: Plan) -> float:
    """Return the parameters of one GPU that all data-parallel GPUs share."""
    shape, layout = plan.shape, plan.layout
    experts = shape.layers * shape.experts * shape.expert_parameters if shape.experts > 1 else 0.0
    return (shape.shape_parameters - experts) * shape.scale / (layout.tensor * layout.stages)


def _data_parallel(plan: Plan) -> Iterator[Traffic]:
    layout, each = plan.layout, plan.state
    parameters = _common_parameters(plan)
    if layout.expert > 1 and layout.zero == 3:
        parameters += _local_experts(plan)
    gradients, weights = parameters * each.gradients, parameters * PRECISIONS[plan.precision].weight_bytes
    stride = layout.tensor
    if layout.zero == 3:
        yield from _sharded(plan, gradients, weights)
    elif layout.zero:
        reduced = _once(plan, "gradients", "reduce_scatter", gradients, layout.data, stride, "backward")
        yield _each_micro_batch(plan, reduced) if layout.zero == 2 else reduced
        yield _once(plan, "updated parameters", "all_gather", weights, layout.data, stride, "")
    else:
        yield _once(plan, "gradients", "all_reduce", gradients, layout.data, stride, "backward")


def _sharded(plan: Plan, gradients: float, weights: float) -> Iterator[Traffic]:
    """Yield what fully sharded parameters need: for each layer two gathers and a reduce-scatter in a micro-batch."""
    layout = plan.layout
    layers = plan.shape.layers / layout.stages
    calls, stride = layers * plan.micro_batches, layout.tensor
    for hides in ("forward", "backward"):
        what = f"parameters ({hides})"
        yield _one(plan, what, "all_gather", weights / layers, calls, layout.shards, stride, hides)
    yield _one(plan, "gradients", "reduce_scatter", gradients / layers, calls, layout.shards, stride, "backward")
    replicas, across = layout.data // layout.shards, stride * layout.shards
    yield _once(plan, "gradients across nodes", "all_reduce", gradients / layout.shards, replicas, across, "backward")


def _once(plan: Plan, what: str, kind: str, size: float, ranks: int, stride: int, hides: str) -> Traffic:
    """Return a collective of all buckets, once in a step."""
    calls = max(1, math.ceil(size / plan.bucket_bytes))
    one = _one(plan, what, kind, size / calls, calls, ranks, stride, hides)
    return msgspec.structs.replace(one, every_micro_batch=False)


def _each_micro_batch(plan: Plan, one: Traffic) -> Traffic:
    """Return a collective in every micro-batch: a GPU that keeps a shard of the gradients can't add up whole ones."""
    return msgspec.structs.replace(one, calls=one.calls * plan.micro_batches, every_micro_batch=True)


def _local_experts(plan: Plan) -> float:
    shape, layout = plan.shape, plan.layout
    if shape.experts == 1:
        return 0.0
    all_experts = shape.layers * shape.experts * shape.expert_parameters * shape.scale
    return all_experts / (layout.expert * layout.tensor * layout.stages)


def _expert_gradients(plan: Plan) -> Iterator[Traffic]:
    """Yield the gradients of experts, which fewer GPUs share."""
    layout = plan.layout
    if plan.shape.experts > 1 and layout.zero < 3:
        size = _local_experts(plan) * plan.state.gradients
        stride = layout.tensor * layout.expert
        yield _once(plan, "gradients of experts", "all_reduce", size, layout.data // layout.expert, stride, "backward")


def _tensor(plan: Plan) -> Iterator[Traffic]:
    """Yield two all-reduces of the activations in a layer's forward and two in its backward; recomputation repeats."""
    layout, shape = plan.layout, plan.shape
    layers = shape.layers / layout.stages * plan.balance
    calls = layers * plan.micro_batches * _passes(plan)
    size = plan.micro_batch * shape.sequence * shape.hidden * PRECISIONS[plan.precision].activation_bytes
    if layout.sequence:
        for kind in ("all_gather", "reduce_scatter"):
            yield _one(plan, f"activations ({kind.replace('_', '-')})", kind, size, calls, layout.tensor, 1, "")
    else:
        yield _one(plan, "activations", "all_reduce", size, calls, layout.tensor, 1, "")


def _passes(plan: Plan) -> float:
    """Return the messages of a layer: two in forward, two in backward, and two where forward is done again."""
    return 4 + 2 * plan.recomputed_share * (plan.recompute == "full")


def _experts(plan: Plan) -> Iterator[Traffic]:
    """Yield tokens to their experts and back, in forward and in backward."""
    layout, shape = plan.layout, plan.shape
    if shape.experts == 1:
        return
    tokens = plan.micro_batch * shape.sequence * shape.top_k / layout.tensor
    size = tokens * shape.hidden * PRECISIONS[plan.precision].activation_bytes
    calls = shape.layers / layout.stages * plan.balance * plan.micro_batches * _passes(plan)
    yield _one(plan, "tokens to experts and back", "all_to_all", size, calls, layout.expert, layout.tensor, "")


def _stages(plan: Plan) -> Iterator[Traffic]:
    """Yield a stage's activations to the next, and their gradients back; ranks that split layers send a part each."""
    layout, shape = plan.layout, plan.shape
    size = plan.micro_batch * shape.sequence * shape.hidden * PRECISIONS[plan.precision].activation_bytes
    virtual = layout.virtual_stages if layout.schedule == "interleaved" else 1
    calls = 2 * plan.micro_batches * virtual
    stride = layout.tensor * layout.data
    yield _one(plan, "micro-batches", "send_recv", size / layout.tensor, calls, layout.stages, stride, "")

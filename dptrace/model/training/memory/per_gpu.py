"""Bytes that a training takes on one GPU, whether they fit, and how many GPUs it needs at least."""

from __future__ import annotations

import math

import msgspec

from dptrace.model.training.layout import Layout
from dptrace.model.training.memory.activations import ActivationPlan, end_bytes, layer_bytes, layers_bytes, start_bytes
from dptrace.model.training.memory.state import StateBytes
from dptrace.model.training.pipeline import micro_batches_in_flight
from dptrace.model.training.shape import ModelShape

__all__ = ["USABLE", "GpuMemory", "ddp_wall", "gpu_memory", "gpus_for_state"]

USABLE = 0.9
"""Share of a GPU's memory that a training can use; CUDA's context, NCCL's buffers and fragmentation take the rest."""


class GpuMemory(msgspec.Struct, frozen=True):
    """What the fullest GPU holds."""

    state: StateBytes
    gathered_bytes: float
    """Parameters of other shards that are gathered for a layer and the next, and the gradients of a layer before they
    are scattered."""
    activation_bytes: float
    recompute_bytes: float
    """What backward computes again, of one layer at a time."""
    micro_batches_in_flight: float
    host_bytes: float = 0.0
    """The state that is in the CPU's memory instead."""

    @property
    def total(self) -> float:
        """Return the sum."""
        return self.state.total + self.gathered_bytes + self.activation_bytes + self.recompute_bytes

    def offloaded(self) -> GpuMemory:
        """Return the memory with the state in the CPU's memory: a GPU gathers from it what it computes with."""
        return msgspec.structs.replace(self, state=StateBytes(0.0, 0.0, 0.0), host_bytes=self.state.total)

    def fits(self, capacity_bytes: float, usable: float = USABLE) -> bool:
        """Return whether a GPU of this capacity can hold it."""
        return self.total <= capacity_bytes * usable


def gpu_memory(
    shape: ModelShape,
    each: StateBytes,
    layout: Layout,
    plan: ActivationPlan,
    micro_batch: float,
    micro_batches: int = 1,
) -> GpuMemory:
    """Return what the fullest GPU holds: that of the first or of the last stage.

    Args:
        each: bytes of one parameter's state.
        plan: what is kept of a layer; its ``tensor`` and ``sequence`` are taken from the layout.
        micro_batch: samples in a micro-batch.
        micro_batches: micro-batches in a step.
    """
    plan = msgspec.structs.replace(plan, tensor=layout.tensor, sequence=layout.sequence)
    stages = (0, layout.stages - 1)
    found = (_stage_memory(shape, each, layout, plan, micro_batch, micro_batches, stage) for stage in stages)
    return max(found, key=lambda memory: memory.total)


def _stage_memory(
    shape: ModelShape,
    each: StateBytes,
    layout: Layout,
    plan: ActivationPlan,
    micro_batch: float,
    micro_batches: int,
    stage: int,
) -> GpuMemory:
    first, last = stage == 0, stage == layout.stages - 1
    layers = math.ceil(shape.layers / layout.stages)
    flight = micro_batches_in_flight(layout.schedule, layout.stages, micro_batches, layout.virtual_stages)
    flight = flight if first else 1
    kept = layers_bytes(shape, layers, micro_batch, plan) * flight
    kept += start_bytes(shape, micro_batch, plan) * flight if first else 0
    kept += end_bytes(shape, micro_batch, plan) if last else 0
    again = msgspec.structs.replace(plan, recompute="none")
    recomputed = layer_bytes(shape, micro_batch, again) - layer_bytes(shape, micro_batch, plan)
    held = _held(shape, layout, layers, first, last)
    state = _sharded(each, held[0], layout, layout.shards)
    state = state.plus(_sharded(each, held[1], layout, max(1.0, layout.shards / layout.expert)))
    return GpuMemory(state, _gathered(shape, each, layout), kept, recomputed, flight)


def _held(shape: ModelShape, layout: Layout, layers: int, first: bool, last: bool) -> tuple[float, float]:
    """Return the parameters of one GPU before sharding: common ones, and those of its experts."""
    ends = (shape.embedding_parameters if first else 0) + (shape.head_parameters if last else 0)
    if last and not first and shape.tied:
        ends += shape.hidden * shape.vocabulary  # a copy of the embedding's table
    common = layers * shape.dense_layer_parameters + ends
    experts = layers * shape.experts * shape.expert_parameters / layout.expert if shape.experts > 1 else 0.0
    return common / layout.tensor * shape.scale, experts / layout.tensor * shape.scale


def _sharded(each: StateBytes, parameters: float, layout: Layout, shards: float) -> StateBytes:
    """Divide what the ZeRO stage shards."""
    divide = [shards if layout.zero >= stage else 1.0 for stage in (3, 2, 1)]
    return each.times(*(parameters / by for by in divide))


def _gathered(shape: ModelShape, each: StateBytes, layout: Layout) -> float:
    if layout.zero < 3 or layout.shards == 1:
        return 0.0
    experts = shape.experts * shape.expert_parameters / layout.expert if shape.experts > 1 else 0.0
    layer = (shape.dense_layer_parameters + experts) / layout.tensor * shape.scale
    ends = max(shape.embedding_parameters, shape.head_parameters) / layout.tensor * shape.scale
    return max(2 * layer * each.parameters + layer * each.gradients, ends * (each.parameters + each.gradients))


def gpus_for_state(state_bytes: float, capacity_bytes: float) -> int:
    """Return the GPUs whose memory together holds a model's state, without activations.

    >>> gpus_for_state(16 * 7e9, 80e9), gpus_for_state(16 * 540e9, 80e9)
    (2, 108)
    """
    return math.ceil(state_bytes / capacity_bytes - 1e-9)


def ddp_wall(capacity_bytes: float, bytes_per_parameter: float = 16) -> float:
    """Return the parameters whose state fills a GPU: DDP can't train a larger model.

    >>> ddp_wall(80e9), ddp_wall(40e9)
    (5000000000.0, 2500000000.0)
    """
    return capacity_bytes / bytes_per_parameter

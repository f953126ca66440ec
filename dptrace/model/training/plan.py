"""A training as it is planned: model, number types, GPUs, links, how it is spread, and how much goes into a step."""

from __future__ import annotations

import math
from functools import cached_property

import msgspec

from dptrace.core.units import plural
from dptrace.errors import UsageError
from dptrace.model.gpu_peaks import Gpu
from dptrace.model.training.communication import Network
from dptrace.model.training.layout import Layout, can_be_cut
from dptrace.model.training.memory import PRECISIONS, ActivationPlan, GpuMemory, StateBytes, stage_memories, state_bytes
from dptrace.model.training.shape import LayerStack, ModelShape

OVERLAPPED = {"none": (), "tp": ("tp",), "ep": ("ep",), "all": ("tp", "ep")}
"""Messages of layers that can run under their products: of tensor and of expert parallelism."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Everything that decides memory and time of a step."""

    shape: ModelShape
    layout: Layout
    gpu: Gpu
    network: Network
    batch: int
    """Samples in a step, over all GPUs."""
    micro_batch: int
    """Samples that a GPU computes at once."""
    precision: str = "bf16"
    optimizer: str = "adam"
    master: bool | None = None
    gradient_bytes: int | None = None
    recompute: str = "none"
    recompute_every: int = 1
    """Of how many layers one is recomputed."""
    offload: bool = False
    """Whether the state is in the CPU's memory."""
    flash: bool = False
    dropout: bool = True
    fused_loss: bool = False
    """Whether the loss is one kernel, so that no scores stand in float32."""
    share: float | None = None
    """Share of the peak that computation reaches by itself; None: by the size of the matrices."""
    overlapped: str = "none"
    """Which messages that layers wait for are cut, so that products run meanwhile: one of OVERLAPPED."""
    expert_nodes: int | None = None
    """Nodes to which the experts of a token are limited; None: not at all."""
    first: bool = False
    """Whether its first stage is the one that counts, which has the dense layers of a mixture."""
    bucket_bytes: float = 25 * (1 << 20)
    """DDP's bucket; the last one has nothing left to hide behind."""

    @property
    def name(self) -> str:
        """Return the degrees in words, and whether the state is in the CPU's memory."""
        return f"{self.layout.name}{' offloaded' if self.offload else ''}"

    @cached_property
    def micro_batches(self) -> int:
        """Return how many micro-batches a step has."""
        return self.batch // (self.layout.data * self.micro_batch)

    @property
    def gathers(self) -> int:
        """Return how often in a step sharded parameters are gathered for forward: a pipeline's stay gathered."""
        return 1 if self.layout.stages > 1 else self.micro_batches

    @property
    def tokens(self) -> float:
        """Return the tokens of a micro-batch on one of the GPUs that share its samples."""
        return self.micro_batch * self.shape.sequence / self.layout.context

    @property
    def balance(self) -> float:
        """Return the layers of the longest stage over the mean: how much slower a pipeline is than with equal ones."""
        stages = self.layout.stages
        return math.ceil(self.shape.layers / stages) * stages / self.shape.layers

    @cached_property
    def stage(self) -> tuple[int, int]:
        """Return the layers of the longest stage, and how many of them have experts: as many as can, or the first's."""
        shape, layers = self.shape, math.ceil(self.shape.layers / self.layout.stages)
        return layers, min(max(0, layers - shape.dense_layers) if self.first else layers, shape.expert_layers)

    @property
    def recomputed_share(self) -> float:
        """Return the share of the layers that are recomputed, if any are."""
        return math.ceil(self.shape.layers / self.recompute_every) / self.shape.layers

    @cached_property
    def state(self) -> StateBytes:
        """Return the bytes of one parameter's state."""
        return state_bytes(self.precision, self.optimizer, master=self.master, gradient_bytes=self.gradient_bytes)

    @property
    def activation_plan(self) -> ActivationPlan:
        """Return what is kept of a layer on one of the GPUs that share it."""
        number = PRECISIONS[self.precision].activation_bytes
        layout = self.layout
        split = (layout.tensor, layout.sequence, number, self.recompute_every, "tp" in OVERLAPPED[self.overlapped])
        return ActivationPlan(self.recompute, self.flash, self.dropout, *split, self.fused_loss)

    @cached_property
    def held(self) -> list[GpuMemory]:
        """Return what a GPU of the first and of the last stage holds, with what may be in the CPU's memory."""
        return stage_memories(
            self.shape,
            self.state,
            self.layout,
            self.activation_plan,
            self.micro_batch,
            self.micro_batches,
            self.offload,
        )

    @cached_property
    def memory(self) -> GpuMemory:
        """Return what the fullest GPU holds itself."""
        held = [memory.offloaded() if self.offload else memory for memory in self.held]
        return max(held, key=lambda memory: memory.total)

    @property
    def fits(self) -> bool:
        """Return whether the fullest GPU can hold it."""
        return self.memory.fits(self.gpu.memory_bytes)

    def check(self) -> None:
        """Refuse a plan whose parts do not divide.

        Raises:
            UsageError: the message names the numbers.
        """
        layout, shape = self.layout, self.shape
        if self.batch % (layout.data * self.micro_batch):
            raise UsageError(
                f"--batch {self.batch}: must be divisible by the data-parallel GPUs × the micro-batch, "
                f"{layout.data} × {self.micro_batch}."
            )
        if not can_be_cut(shape.layers, layout.stages, layout.virtual_stages):
            raise UsageError(
                f"{layout.stages * layout.virtual_stages} stages need as many layers, and the model has "
                f"{plural(shape.layers, 'layer')}."
            )
        if self.recompute_every > shape.layers:
            raise UsageError(
                f"--recompute-every {self.recompute_every}: the model has {plural(shape.layers, 'layer')}."
            )
        for option, degree in (("--tp", layout.tensor), ("--cp", layout.context)):
            if isinstance(shape, LayerStack) and degree > 1:
                raise UsageError(f"{option} {degree}: splits decoders only. Leave it out.")
        if shape.sequence % layout.context:
            raise UsageError(f"--cp {layout.context}: must divide the {plural(shape.sequence, 'token')} of a sample.")
        few, many = sorted((shape.key_value_heads, layout.tensor))
        inside = shape.mlp % (layout.tensor if shape.experts == 1 else layout.expert_split)
        if shape.heads % layout.tensor or many % few or inside:  # GPUs may share a key's head
            raise UsageError(
                f"--tp {layout.tensor}: must divide the {plural(shape.heads, 'head')}, the MLP's width of "
                f"{shape.mlp:,}, and the {plural(shape.key_value_heads, 'head')} of keys, or be a multiple of these."
            )
        self._check_schedule()

    def _check_schedule(self) -> None:
        """Refuse micro-batches that a schedule can't run with, or for which its bubble has no formula."""
        layout, count = self.layout, self.micro_batches
        if layout.schedule == "interleaved" and count % layout.stages:
            must = f"must be a multiple of the {layout.stages} stages"
        elif layout.schedule == "zero-bubble" and count < layout.stages:
            must = f"must be at least as many as the {layout.stages} stages"
        else:
            return
        many = plural(count, "micro-batch", "micro-batches")
        raise UsageError(f"--schedule {layout.schedule}: {many} {must}. Change --batch, --micro-batch or --pp.")

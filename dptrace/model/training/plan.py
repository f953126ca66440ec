"""A training as it is planned: model, number types, GPUs, links, how it is spread, and how much goes into a step."""

from __future__ import annotations

import math

import msgspec

from dptrace.core.units import plural
from dptrace.errors import UsageError
from dptrace.model.training.communication.network import Network
from dptrace.model.training.hardware import Gpu
from dptrace.model.training.layout import Layout
from dptrace.model.training.memory.activations import ActivationPlan
from dptrace.model.training.memory.per_gpu import GpuMemory, gpu_memory
from dptrace.model.training.memory.state import PRECISIONS, StateBytes, state_bytes
from dptrace.model.training.shape import ModelShape

__all__ = ["Plan"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
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
    share: float | None = None
    """Share of the peak that computation reaches by itself; None: by the size of the matrices."""
    bucket_bytes: float = 25 * (1 << 20)
    """DDP's bucket; the last one has nothing left to hide behind."""

    @property
    def micro_batches(self) -> int:
        """Return how many micro-batches a step has."""
        return self.batch // (self.layout.data * self.micro_batch)

    @property
    def balance(self) -> float:
        """Return the layers of the longest stage over the mean: how much slower a pipeline is than with equal ones."""
        stages = self.layout.stages
        return math.ceil(self.shape.layers / stages) * stages / self.shape.layers

    @property
    def recomputed_share(self) -> float:
        """Return the share of the layers that are recomputed, if any are."""
        return math.ceil(self.shape.layers / self.recompute_every) / self.shape.layers

    @property
    def state(self) -> StateBytes:
        """Return the bytes of one parameter's state."""
        return state_bytes(self.precision, self.optimizer, master=self.master, gradient_bytes=self.gradient_bytes)

    @property
    def activation_plan(self) -> ActivationPlan:
        """Return what is kept of a layer on one of the GPUs that share it."""
        number = PRECISIONS[self.precision].activation_bytes
        layout = self.layout
        return ActivationPlan(
            self.recompute, self.flash, self.dropout, layout.tensor, layout.sequence, number, self.recompute_every
        )

    @property
    def memory(self) -> GpuMemory:
        """Return what the fullest GPU holds."""
        memory = gpu_memory(
            self.shape, self.state, self.layout, self.activation_plan, self.micro_batch, self.micro_batches
        )
        return memory.offloaded() if self.offload else memory

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
        if layout.stages * layout.virtual_stages > shape.layers:
            raise UsageError(
                f"{layout.stages * layout.virtual_stages} stages need as many layers, and the model has "
                f"{plural(shape.layers, 'layer')}."
            )
        if self.recompute_every > shape.layers:
            raise UsageError(
                f"--recompute-every {self.recompute_every}: the model has {plural(shape.layers, 'layer')}."
            )
        if shape.heads % layout.tensor:
            raise UsageError(f"--tp {layout.tensor}: must divide the {plural(shape.heads, 'head')}.")

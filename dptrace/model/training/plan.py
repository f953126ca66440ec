"""A training as it is planned: model, number types, GPUs, links, how it is spread, and how much goes into a step."""

from __future__ import annotations

import math

import msgspec

from dptrace.core.units import plural
from dptrace.errors import UsageError
from dptrace.model.gpu_peaks import PEAKS, GpuPeak
from dptrace.model.training.communication import Network
from dptrace.model.training.layout import Layout, can_be_cut
from dptrace.model.training.memory import PRECISIONS, ActivationPlan, GpuMemory, StateBytes, gpu_memory, state_bytes
from dptrace.model.training.shape import LayerStack, ModelShape

# GPUs by their short names: memory, and the peaks of dptrace.model.gpu_peaks.


_PEAK = {peak.name: peak for peak in PEAKS}


class Gpu(msgspec.Struct, frozen=True):
    """One kind of GPU."""

    peaks: GpuPeak
    memory_bytes: float
    """Of a data sheet, in powers of ten."""
    ceiling: float = 0.77
    """Share of the peak that the largest matrix products reach; see dptrace.model.training.step."""

    @property
    def name(self) -> str:
        """Return the name."""
        return self.peaks.name

    @property
    def memory_bytes_per_s(self) -> float:
        """Return the bandwidth of its memory."""
        return self.peaks.bytes_per_s

    def peak(self, number_type: str) -> float:
        """Return the dense peak of matrix products in a number type.

        Raises:
            UsageError: the GPU has no such products.
        """
        tflops = self.peaks.tflops.get(number_type)
        if tflops is None:
            known = ", ".join(self.peaks.tflops)
            raise UsageError(f"--precision: the {self.name} has no products in {number_type}; it has {known}.")
        return tflops * 1e12


GPUS = {
    "v100": Gpu(_PEAK["V100 SXM2"], 32e9, ceiling=0.95),
    "a100-40": Gpu(_PEAK["A100 40 GB"], 40e9, ceiling=0.95),
    "a100": Gpu(_PEAK["A100 80 GB SXM"], 80e9, ceiling=0.95),
    "a100-pcie": Gpu(_PEAK["A100 80 GB PCIe"], 80e9, ceiling=0.95),
    "h100": Gpu(_PEAK["H100 SXM"], 80e9),
    "h100-pcie": Gpu(_PEAK["H100 PCIe"], 80e9),
    "h100-nvl": Gpu(_PEAK["H100 NVL"], 94e9),
    "h200": Gpu(_PEAK["H200"], 141e9),
    "b200": Gpu(_PEAK["B200"], 180e9),
    "gb200": Gpu(_PEAK["GB200"], 186e9),
    "l4": Gpu(_PEAK["L4"], 24e9),
    "a10": Gpu(_PEAK["A10"], 24e9),
    "l40s": Gpu(_PEAK["L40S"], 48e9),
    "rtx4090": Gpu(_PEAK["RTX 4090"], 24e9),
    "mi210": Gpu(_PEAK["MI210"], 64e9),
    "mi250x": Gpu(_PEAK["MI250X, one die"], 64e9),
    "mi300x": Gpu(_PEAK["MI300X"], 192e9),
    "mi325x": Gpu(_PEAK["MI325X"], 256e9),
    "tpu-v4": Gpu(_PEAK["TPU v4"], 32 * (1 << 30)),
    "mi355x": Gpu(_PEAK["MI355X"], 288e9),
}
"""GPUs by their names on the command line."""


def gpu_named(name: str) -> Gpu:
    """Return a GPU by its short name.

    >>> gpu_named("h100").peak("bf16"), gpu_named("h100").memory_bytes
    (989400000000000.0, 80000000000.0)

    Raises:
        UsageError: no GPU has this name.
    """
    if not isinstance(name, str) or name.lower() not in GPUS:
        raise UsageError(f"--gpu {name}: choose from {', '.join(GPUS)}.")
    return GPUS[name.lower()]


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
        if not can_be_cut(shape.layers, layout.stages, layout.virtual_stages):
            raise UsageError(
                f"{layout.stages * layout.virtual_stages} stages need as many layers, and the model has "
                f"{plural(shape.layers, 'layer')}."
            )
        if self.recompute_every > shape.layers:
            raise UsageError(
                f"--recompute-every {self.recompute_every}: the model has {plural(shape.layers, 'layer')}."
            )
        if isinstance(shape, LayerStack) and layout.tensor > 1:
            raise UsageError(f"--tp {layout.tensor}: splits the layers of decoders only. Leave it out.")
        few, many = sorted((shape.key_value_heads, layout.tensor))
        if shape.heads % layout.tensor or many % few or shape.mlp % layout.tensor:  # GPUs may share a key's head
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

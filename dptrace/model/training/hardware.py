"""GPUs by their short names: memory, and the peaks of dptrace.model.gpu_peaks."""

from __future__ import annotations

import msgspec

from dptrace.errors import UsageError
from dptrace.model.gpu_peaks import PEAKS, GpuPeak

__all__ = ["GPUS", "Gpu", "gpu_named"]

_PEAK = {peak.name: peak for peak in PEAKS}


class Gpu(msgspec.Struct, frozen=True):
    """One kind of GPU."""

    peaks: GpuPeak
    memory_bytes: float
    """Of a data sheet, in powers of ten."""
    ceiling: float = 0.77
    """Share of the peak that the largest matrix products reach; see dptrace.model.training.compute."""

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

"""GPUs by name: memory, and dense peak rates."""

from __future__ import annotations

import msgspec

from dptrace.errors import UsageError

__all__ = ["GPUS", "Gpu", "gpu_named"]


class Gpu(msgspec.Struct, frozen=True):
    """One kind of GPU, from its data sheet; rates are dense, without sparsity."""

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    bf16_flops: float
    tf32_flops: float
    fp32_flops: float
    fp8_flops: float | None = None
    ceiling: float = 0.77
    """Share of the peak that the largest matrix products reach; see dptrace.model.training.compute."""

    def peak(self, number_type: str) -> float:
        """Return the peak of matrix products in a number type.

        Raises:
            UsageError: the GPU has no such products.
        """
        if number_type == "fp8" and self.fp8_flops is None:
            raise UsageError(f"--precision fp8: the {self.name} has no products in float8; choose another --gpu.")
        rates = {"fp8": self.fp8_flops, "tf32": self.tf32_flops, "fp32": self.fp32_flops}
        return rates.get(number_type) or self.bf16_flops


GPUS = {
    "v100": Gpu("V100 SXM 32 GB", 32e9, 0.9e12, 125e12, 15.7e12, 15.7e12, ceiling=0.95),
    "a100-40": Gpu("A100 SXM 40 GB", 40e9, 1.555e12, 312e12, 156e12, 19.5e12, ceiling=0.95),
    "a100": Gpu("A100 SXM 80 GB", 80e9, 2.039e12, 312e12, 156e12, 19.5e12, ceiling=0.95),
    "h100": Gpu("H100 SXM 80 GB", 80e9, 3.35e12, 989.4e12, 494.7e12, 66.9e12, 1978.9e12),
    "h100-pcie": Gpu("H100 PCIe 80 GB", 80e9, 2.0e12, 756e12, 378e12, 51e12, 1513e12),
    "h200": Gpu("H200 SXM 141 GB", 141e9, 4.8e12, 989.4e12, 494.7e12, 66.9e12, 1978.9e12),
    "b200": Gpu("B200 180 GB", 180e9, 8.0e12, 2250e12, 1125e12, 80e12, 4500e12),
}


def gpu_named(name: str) -> Gpu:
    """Return a GPU by its name.

    Raises:
        UsageError: no GPU has this name.
    """
    if name.lower() not in GPUS:
        raise UsageError(f"--gpu {name}: choose from {', '.join(GPUS)}.")
    return GPUS[name.lower()]

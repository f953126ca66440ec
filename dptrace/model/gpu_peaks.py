"""Peak arithmetic and memory bandwidth of GPUs, found by what a trace records of its device.

All figures are dense: those with structured sparsity, which data sheets print in large, are twice as high and never
reached by a dense model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec

from dptrace.core.gpu import GpuProperties
from dptrace.core.numbers import Number
from dptrace.errors import UsageError


class GpuPeak(msgspec.Struct, frozen=True):
    """The peak of one GPU as software sees it; of an MI250, one of its two dies."""

    name: str
    pattern: str
    """What the recorded name contains, as a regular expression."""
    tflops: dict[str, float]
    """Dense TFLOP/s by type: ``fp64``, ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``int8``. NVIDIA's fp64 and
    fp32 are those of any unit, tensor cores included; AMD's those of the matrix cores."""
    memory_tbps: float
    """Memory bandwidth in TB/s (10¹²)."""
    sms: int
    source: str
    part: float = 1.0
    """Share of the whole GPU, where the trace shows fewer multiprocessors (MIG, AMD's compute partitions)."""

    def flops_per_s(self, dtype: str) -> float | None:
        """Return the peak for a type in FLOP/s; None where the GPU has no figure for it.

        For fp32 it is that of TF32 where the GPU has it: what matrix products of float32 can reach if torch is allowed
        to (``torch.backends.cuda.matmul.fp32_precision = "tf32"``).
        """
        found = self.tflops.get("tf32", self.tflops.get("fp32")) if dtype == "fp32" else self.tflops.get(dtype)
        return None if found is None else found * 1e12 * self.part

    @property
    def bytes_per_s(self) -> float:
        """The memory bandwidth in bytes/s."""
        return self.memory_tbps * 1e12 * self.part


def _tensor(half: float, tf32: float | None = None, **others: float) -> dict[str, float]:
    """Return peaks of a GPU with one figure for fp16 and bf16."""
    return {"fp16": half, "bf16": half, **({} if tf32 is None else {"tf32": tf32}), **others}


_KLOCK = "glennklockwood.com/garden/processors, citing NVIDIA"
_SPECIFICATIONS = "specification pages (thundercompute, AnandTech, mullet, hmc-tech, waredb, io-tech)"
_TABLES = "public source tables that cite the vendor (pytorch/torchtitan, Lightning-AI/litgpt)"
_SHEET = "the vendor's data sheet"
_A100 = _tensor(312, 156, fp64=19.5, fp32=19.5, int8=624)
_H100 = _tensor(989.4, 494.7, fp64=66.9, fp32=66.9, fp8=1978.9, int8=1978.9)
_MI300 = _tensor(1307.4, 653.7, fp64=163.4, fp32=163.4, fp8=2614.9, int8=2614.9)
_MI200 = _tensor(181, fp64=45.3, fp32=45.3, int8=181)

# The first pattern that is found decides, so the narrower ones come first.
PEAKS = (
    GpuPeak("V100 SXM2", r"\bV100-SXM2\b", {"fp64": 7.8, "fp32": 15.7, "fp16": 125}, 0.9, 80, _SHEET),
    GpuPeak("V100 PCIe", r"\bV100-PCIE\b", {"fp64": 7.0, "fp32": 14, "fp16": 112}, 0.9, 80, _SPECIFICATIONS),
    GpuPeak(
        "A100 80 GB PCIe", r"\bA100.*80GB.*PCIe|\bA100-PCIE-80GB", _A100, 1.935, 108, f"{_KLOCK}; {_SPECIFICATIONS}"
    ),
    GpuPeak("A100 80 GB SXM", r"\bA100\b.*80GB", _A100, 2.039, 108, f"{_KLOCK}; {_SPECIFICATIONS}"),
    GpuPeak("A100 40 GB", r"\bA100\b", _A100, 1.555, 108, f"{_KLOCK}; {_SPECIFICATIONS}"),
    GpuPeak(
        "H100 PCIe",
        r"\bH100 PCIe",
        _tensor(756, 378, fp64=51, fp32=51, fp8=1513, int8=1513),
        2.0,
        114,
        f"{_TABLES}; bandwidth: NVIDIA product brief PB-11133",
    ),
    GpuPeak("H100 NVL", r"\bH100 NVL", _tensor(835, 417.5, fp64=60, fp32=60, fp8=1670, int8=1670), 3.9, 132, _TABLES),
    GpuPeak("H100 SXM", r"\bH100\b", _H100, 3.35, 132, _KLOCK),
    GpuPeak("H200", r"\bH200\b", _H100, 4.8, 132, f"{_TABLES}; rooflinenotes.dev"),
    GpuPeak("B200", r"\bB200\b", _tensor(2250, 1100, fp64=40, fp8=4500, int8=4500), 8.0, 148, _KLOCK),
    GpuPeak("GB200", r"\bGB200\b", _tensor(2500, 1250, fp64=45, fp8=5000, int8=5000), 8.0, 148, _KLOCK),
    GpuPeak(
        "L40S", r"\bL40S\b", _tensor(362, 183, fp64=1.4, fp32=91.6, fp8=733, int8=733), 0.864, 142, _SPECIFICATIONS
    ),
    GpuPeak(
        "L4",
        r"\bL4\b",
        _tensor(121, 60, fp64=0.49, fp32=30.3, fp8=242, int8=242),
        0.3,
        58,
        f"{_SPECIFICATIONS}; {_TABLES}",
    ),
    GpuPeak("A10", r"\bA10\b", _tensor(125, 62.5, fp64=1.0, fp32=31.2, int8=250), 0.6, 72, _SHEET),
    GpuPeak(
        "RTX 4090",
        r"\bRTX 4090\b(?! D| Laptop)",
        _tensor(165.2, 82.6, fp64=1.3, fp32=82.6, fp8=330, int8=661),
        1.008,
        128,
        f"{_SPECIFICATIONS}; with accumulation in fp32",
    ),
    GpuPeak("MI210", r"\bMI210\b", _MI200, 1.6, 104, _SPECIFICATIONS),
    GpuPeak(
        "MI250X, one die",
        r"\bMI250X?\b",
        _tensor(191.5, fp64=47.9, fp32=47.9, int8=191.5),
        1.6,
        110,
        f"{_SPECIFICATIONS}; {_TABLES}; half of the two dies of a module",
    ),
    GpuPeak("MI300X", r"\bMI300X\b", _MI300, 5.3, 304, "AMD ROCm documentation"),
    GpuPeak("MI325X", r"\bMI325X\b", _MI300, 6.0, 304, f"{_TABLES}; rooflinenotes.dev"),
    GpuPeak("TPU v4", r"\bTPU v4\b", {"bf16": 275, "int8": 275}, 1.2, 2, "arXiv 2304.01433, table 4"),
    GpuPeak("MI355X", r"\bMI355X\b", _tensor(2500, fp64=78.6, fp8=5000, int8=5000), 8.0, 256, f"{_TABLES}, citing AMD"),
)
"""The known GPUs."""

# ROCm in containers without its table of names calls all GPUs "AMD Radeon Graphics": capability and units tell
# them apart.
_UNNAMED = {((9, 0), 104): "MI210", ((9, 0), 110): "MI250X, one die", ((9, 4), 304): "MI300X", ((9, 5), 256): "MI355X"}


def gpu_peak(gpu: GpuProperties) -> GpuPeak | None:
    """Return the peak of the GPU that a trace names; None for an unknown one.

    A GPU with fewer multiprocessors than its row is a part of it (MIG, AMD's compute partitions): its peaks are that
    part of the row's. One with more is another model than the row's, so its peaks are unknown.

    >>> gpu_peak(GpuProperties("NVIDIA H100 80GB HBM3")).flops_per_s("bf16")
    989400000000000.0
    """
    row = next((row for row in PEAKS if re.search(row.pattern, gpu.name, re.IGNORECASE)), None)
    if row is None and gpu.name == "AMD Radeon Graphics" and gpu.warp_size == 64:
        row = next((row for row in PEAKS if row.name == _UNNAMED.get((gpu.capability, gpu.sms))), None)
    if row is None or gpu.sms > row.sms:
        return None
    if not gpu.sms:  # an old trace, or run.json
        return None if re.search(r"\bMIG\b", gpu.name) else row
    return msgspec.structs.replace(row, part=gpu.sms / row.sms)


def no_peak_advice(name: str) -> str:
    """Return what to do about a GPU whose peak is not known."""
    known = ", ".join(row.name for row in PEAKS)
    return (
        f"The peak of {name or 'this device'} is not known (known: {known}). "
        "Give its dense TFLOP/s for the type that the model computes in: --peak-tflops 989."
    )


# Nominal figures of known interconnects, and which of them a measured link resembles most.


LATENCY_US, BANDWIDTH_GBPS = Number(0, 1_000_000), Number(1e-6, 1e12)
"""What a user may say of a link: up to a second, and from 1 kB/s to what is as good as free."""
_LATENCY_COUNTS = 0.25
"""Weight of latency against bandwidth: the share of software in latency varies widely."""


class Interconnect(msgspec.Struct, frozen=True):
    """One kind of link at its nominal speed."""

    name: str
    medium: str
    """``nvlink``, ``pcie``, ``network`` or ``memory``."""
    bytes_per_s: float
    """One direction, per GPU or per port."""
    alpha_s: float
    """Typical latency of one message as software sees it."""
    source: str


class InterconnectMatch(msgspec.Struct, frozen=True):
    """The known interconnect that a measured link resembles most."""

    interconnect: Interconnect
    bandwidth_ratio: float
    """Measured / nominal: 0.5 is half as fast."""
    latency_ratio: float | None
    """Measured / typical; None if the measured latency is 0."""


_GUIDE = "latency: the guide 'Distributed Training', section 5.1"
_NVLINK_US, _PCIE_US, _IB_US, _ETHERNET_US = 3e-6, 5e-6, 1.5e-6, 50e-6

INTERCONNECTS = (
    Interconnect(
        "NVLink 3 (A100)", "nvlink", 300e9, _NVLINK_US, f"NVIDIA A100 data sheet: 600 GB/s both ways; {_GUIDE}"
    ),
    Interconnect(
        "NVLink 4 (H100)", "nvlink", 450e9, _NVLINK_US, f"NVIDIA H100 data sheet: 900 GB/s both ways; {_GUIDE}"
    ),
    Interconnect(
        "NVLink 5 (B200)", "nvlink", 900e9, _NVLINK_US, f"NVIDIA B200 data sheet: 1.8 TB/s both ways; {_GUIDE}"
    ),
    Interconnect("PCIe 3.0 x16", "pcie", 15.75e9, _PCIE_US, "PCI-SIG: 8 GT/s, 128b/130b, 16 lanes"),
    Interconnect("PCIe 4.0 x16", "pcie", 31.5e9, _PCIE_US, "PCI-SIG: 16 GT/s, 128b/130b, 16 lanes"),
    Interconnect("PCIe 5.0 x16", "pcie", 63.0e9, _PCIE_US, "PCI-SIG: 32 GT/s, 128b/130b, 16 lanes"),
    Interconnect("InfiniBand HDR", "network", 25e9, _IB_US, f"IBTA: 4 lanes, 200 Gb/s; {_GUIDE}"),
    Interconnect("InfiniBand NDR", "network", 50e9, _IB_US, f"IBTA: 4 lanes, 400 Gb/s; {_GUIDE}"),
    Interconnect("10 Gb Ethernet", "network", 1.25e9, _ETHERNET_US, f"IEEE 802.3ae; {_GUIDE}"),
    Interconnect("25 Gb Ethernet", "network", 3.125e9, _ETHERNET_US, f"IEEE 802.3by; {_GUIDE}"),
    Interconnect("100 Gb Ethernet", "network", 12.5e9, _ETHERNET_US, f"IEEE 802.3ba, 802.3bj; {_GUIDE}"),
    Interconnect("400 Gb Ethernet", "network", 50e9, _ETHERNET_US, f"IEEE 802.3bs; {_GUIDE}"),
    # Not from a standard: kernel copies on one core of a 2020s server, the order of magnitude that iperf3 shows between
    # two processes on one machine.
    Interconnect(
        "TCP over loopback", "memory", 2.5e9, 50e-6, "order of magnitude: one core copying through the kernel"
    ),
)

SHORT_NAMES = {
    "nvlink3": "NVLink 3 (A100)",
    "nvlink4": "NVLink 4 (H100)",
    "nvlink5": "NVLink 5 (B200)",
    "pcie3": "PCIe 3.0 x16",
    "pcie4": "PCIe 4.0 x16",
    "pcie5": "PCIe 5.0 x16",
    "ib-hdr": "InfiniBand HDR",
    "ib-ndr": "InfiniBand NDR",
    "eth-10": "10 Gb Ethernet",
    "eth-25": "25 Gb Ethernet",
    "eth-100": "100 Gb Ethernet",
    "eth-400": "400 Gb Ethernet",
    "loopback": "TCP over loopback",
}
"""The names of the known interconnects on the command line."""


def interconnect_named(name: str) -> Interconnect:
    """Return the interconnect with this short name.

    Raises:
        UsageError: there is none.

    >>> interconnect_named("ib-ndr").bytes_per_s
    50000000000.0
    """
    full = SHORT_NAMES.get(name.strip().lower())
    if full is None:
        raise UsageError(f"--link {name}: choose from {', '.join(SHORT_NAMES)}.")
    return next(interconnect for interconnect in INTERCONNECTS if interconnect.name == full)


def nearest_interconnect(bytes_per_s: float, alpha_s: float, media: Sequence[str]) -> InterconnectMatch:
    """Find the interconnect nearest to a link, by the ratio of bandwidths and, with less weight, of latencies.

    Args:
        bytes_per_s: bandwidth of one link, above 0.
        alpha_s: latency of one message over it; 0 if it was too short to measure.
        media: the media to consider.

    >>> nearest_interconnect(400e9, 4e-6, ["nvlink", "pcie"]).interconnect.name
    'NVLink 4 (H100)'
    """

    def distance(candidate: Interconnect) -> float:
        latency = abs(math.log(alpha_s / candidate.alpha_s)) if alpha_s > 0 else 0.0
        return abs(math.log(bytes_per_s / candidate.bytes_per_s)) + _LATENCY_COUNTS * latency

    nearest = min((candidate for candidate in INTERCONNECTS if candidate.medium in media), key=distance)
    return InterconnectMatch(
        nearest, bytes_per_s / nearest.bytes_per_s, alpha_s / nearest.alpha_s if alpha_s > 0 else None
    )


# Model and hardware FLOPs utilization, and model FLOPs from a number of parameters.
#
# MFU is defined in "PaLM: Scaling Language Modeling with Pathways" (arXiv 2204.02311), appendix B: the FLOPs that the
# model needs, without any recomputation, over what the hardware could do in the time of the step. HFU ("Reducing
# Activation Recomputation in Large Transformer Models", arXiv 2205.05198) counts what was carried out, recomputation
# included. Both papers count attention in full, masked or not.


class ModelFlops(msgspec.Struct, frozen=True):
    """FLOPs of one step of one rank, and where they come from."""

    model: float
    """What the model needs: forward and backward, no recomputation. MFU's numerator."""
    hardware: float | None
    """What was carried out; None where it is not known. HFU's numerator."""
    source: str
    """How they were counted, as the end of a sentence: ``counted by torch in a step of the warm-up``."""


def transformer_flops(
    parameters: float, tokens: float, *, layers: int = 0, width: int = 0, sequence: int = 0, training: bool = True
) -> float:
    """Return the FLOPs of one step of a dense transformer: 6·N + 12·L·(heads·d)·T for each token.

    PaLM, appendix B. The second term is attention, and is left out without *layers*, *width* and *sequence*. A forward
    alone is a third of it.

    Args:
        parameters: N, without embeddings that are only looked up.
        tokens: tokens of the step.
        layers: L.
        width: heads × d, the width of the model.
        sequence: T, tokens of a sequence.
        training: forward and backward; else forward only.

    >>> transformer_flops(7e9, 4096)
    172032000000000.0
    """
    whole = tokens * (6.0 * parameters + 12.0 * layers * width * sequence)
    return whole if training else whole / 3


def achieved_flops_per_s(flops: float, ns: float) -> float | None:
    """Return the rate in FLOP/s; None in no time."""
    return flops / ns * 1e9 if ns > 0 else None


def utilization(flops: float, ns: float, peak_flops_per_s: float) -> float | None:
    """Return the share of the peak that *flops* in *ns* are; MFU or HFU, by what was counted. None in no time.

    >>> round(utilization(5.9866e12, 35.0e6, 989.4e12), 3)
    0.173
    """
    rate = achieved_flops_per_s(flops, ns)
    return rate / peak_flops_per_s if rate is not None and peak_flops_per_s > 0 else None

"""GPUs: peaks, memory and links of the table gpus.csv, found by name or by what a trace records of its device.

All figures are dense: those with structured sparsity, which data sheets print in large, are twice as high and never
reached by a dense model.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from importlib.resources import files

import msgspec

from dptrace.core.gpu import GpuProperties
from dptrace.core.numbers import Number
from dptrace.core.units import nearest
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


def table_rows(table: str) -> list[dict[str, str]]:
    """Return the rows of a table next to this file; lines that begin with # are its comment."""
    text = files(__package__).joinpath(table).read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


class Gpu(msgspec.Struct, frozen=True):
    """One kind of GPU as a training is planned on it."""

    peaks: GpuPeak
    memory_bytes: float
    """What software can allocate at most."""
    within: str
    """The link within a node, and the one between nodes, by the names of :func:`interconnect_named` or typed."""
    between: str
    host: str = "pcie4"
    """The link to the CPU's memory; empty where GPU and CPU have one memory."""
    gpus_per_node: int = 8
    gpus_per_host: int = 8
    """GPUs that share one CPU's memory, and its cores."""
    ceiling: float = 0.77
    """Share of the peak that the largest matrix products reach; see dptrace.model.training.step."""
    flash: float = 0.3
    """Share of the 16-bit peak that FlashAttention's products reach, of those up to the diagonal."""

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
            other = next(
                (f" Give --precision {kind}." for kind in ("bf16", "fp16", "fp32") if kind in self.peaks.tflops), ""
            )
            raise UsageError(f"--precision: the {self.name} has no products in {number_type}; it has {known}.{other}")
        return tflops * 1e12


_TYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")


def _gpu(row: dict[str, str]) -> Gpu:
    tflops = {name: float(row[name]) for name in _TYPES if row[name]}
    peak = GpuPeak(row["name"], row["pattern"], tflops, float(row["memory_tbps"]), int(row["sms"]), row["source"])
    counts = int(row["gpus_per_node"]), int(row["gpus_per_host"])
    links = row["within"], row["between"], row["host"]
    return Gpu(peak, float(row["memory_bytes"]), *links, *counts, float(row["ceiling"]), float(row["flash"]))


GPUS = {row["short"]: _gpu(row) for row in table_rows("gpus.csv")}
"""The known GPUs by their names on the command line."""
LARGEST_BYTES = max(gpu.memory_bytes for gpu in GPUS.values())
"""The memory of the largest of them."""
USUAL_HOST_BYTES = 2e12
"""What hosts have at most, as a rule: a DGX H100 has 2 TB."""
PEAKS = tuple(gpu.peaks for gpu in GPUS.values())
"""Their peaks, in the order in which a recorded name is looked up."""
_FIELDS = ("dense TFLOP/s", "GB of memory", "GB/s of its bandwidth")


def gpu_named(text: str, number_type: str = "bf16") -> Gpu:
    """Return a GPU by its short name, or by name, dense TFLOP/s, memory in GB and its bandwidth in GB/s.

    >>> gpu_named("h100").peak("bf16"), gpu_named("mine:120:24:900").memory_bytes
    (989400000000000.0, 24000000000.0)

    Args:
        number_type: that of the planned products, of which the TFLOP/s of a GPU that is described are.

    Raises:
        UsageError: no GPU has this name, or a number is out of range.
    """
    if isinstance(text, str) and ":" in text:
        return _described(text.strip(), number_type)
    if not isinstance(text, str) or text.strip().lower() not in GPUS:
        raise UsageError(
            f"--gpu {text}: is not known.{nearest(str(text), GPUS)} Choose from {', '.join(GPUS)}; or describe it by "
            "name, dense TFLOP/s of --precision, GB of memory and GB/s of its bandwidth: mine:120:24:900."
        )
    return GPUS[text.strip().lower()]


def _described(text: str, number_type: str) -> Gpu:
    """Return a GPU by its name and its three numbers."""
    name, *words = text.split(":")
    if not name or len(words) != len(_FIELDS):
        raise UsageError(
            f"--gpu {text}: give a name and {len(_FIELDS)} numbers, {', '.join(_FIELDS)}: mine:120:24:900."
        )
    values = []
    for field, word in zip(_FIELDS, words, strict=True):
        try:
            values.append(float(word))
        except ValueError:
            raise UsageError(f"--gpu {text}: {word!r} is no number of {field}.") from None
        Number(1e-3, 1e9).check(values[-1], f"--gpu {text}: {field}")
    half = values[0] / 2 if number_type == "fp8" else values[0]
    peak = GpuPeak(name, "", {"bf16": half, number_type: values[0]}, values[2] / 1e3, 0, "as given")
    return Gpu(peak, values[1] * 1e9, "pcie4", "eth-100")


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
    """``nvlink``, ``xgmi``, ``c2c``, ``pcie``, ``network`` or ``memory``."""
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


_LINKS = {
    row["short"]: Interconnect(
        row["name"], row["medium"], float(row["bytes_per_s"]), float(row["latency_us"]) * 1e-6, row["source"]
    )
    for row in table_rows("links.csv")
}
INTERCONNECTS = tuple(_LINKS.values())
SHORT_NAMES = tuple(_LINKS)
"""The names of the known interconnects on the command line."""


def interconnect_named(name: str) -> Interconnect:
    """Return the interconnect with this short name.

    Raises:
        UsageError: there is none.

    >>> interconnect_named("ib-ndr").bytes_per_s
    50000000000.0
    """
    found = _LINKS.get(name.strip().lower())
    if found is None:
        raise UsageError(f"--link {name}: choose from {', '.join(SHORT_NAMES)}.")
    return found


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

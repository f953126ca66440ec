"""Rows by operator and shape against their GPU's roofline, and the FLOPs that they add up to.

The roofline model ("Roofline: An Insightful Visual Performance Model", Williams, Waterman and Patterson, 2009): a
kernel of I FLOP/byte reaches at most min(peak, I · memory bandwidth). Left of the ridge memory limits it, right of it
the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dptrace.core.gpu import GpuProperties
from dptrace.model.gpu_peaks import GpuPeak, gpu_peak, utilization
from dptrace.timeline.model import Timeline

__all__ = ["CountedFlops", "Roof", "counted_flops", "roof_of", "with_roofline"]


class Roof(msgspec.Struct, frozen=True):
    """The limits of the GPUs of a run; None where they are not known or differ."""

    gpu: GpuPeak | None = None
    peak_flops_per_s: float | None = None
    """What the user gave, for any type."""

    def flops_per_s(self, dtype: str) -> float | None:
        """Return the peak for a type in FLOP/s."""
        if self.peak_flops_per_s is not None:
            return self.peak_flops_per_s
        return None if self.gpu is None else self.gpu.flops_per_s(dtype)

    @property
    def bytes_per_s(self) -> float | None:
        """The memory bandwidth in bytes/s."""
        return None if self.gpu is None else self.gpu.bytes_per_s


class CountedFlops(msgspec.Struct, frozen=True):
    """The FLOPs of all operators with a formula, within the steps."""

    model: float
    """Without recomputation; masked attention in full."""
    hardware: float
    """With recomputation."""
    dtype: str
    """The type of most of them."""
    covered: float
    """Share of the compute time that these operators have: the rest is elementwise, or has no shapes."""
    tflops: float | None
    """Model FLOPs over the time of all steps, in TFLOP/s of one device."""
    mfu: float | None
    hfu: float | None
    peak_tflops: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return msgspec.structs.asdict(self)


def roof_of(timelines: Sequence[Timeline], peak_tflops: float | None = None) -> Roof:
    """Return the limits of the devices of a run.

    Args:
        peak_tflops: peak of one GPU in TFLOP/s, in place of the table's.
    """
    gpus = [None if t.on_cpu else gpu_peak(t.gpu or GpuProperties(t.device_name)) for t in timelines]
    gpu = gpus[0] if gpus and all(one == gpus[0] for one in gpus) else None
    return Roof(gpu, None if peak_tflops is None else peak_tflops * 1e12)


def with_roofline(row: dict[str, Any], roof: Roof) -> dict[str, Any]:
    """Add to a row by operator and shape its arithmetic intensity, and the shares of its GPU's peaks.

    ``share_of_roofline`` is the rate over what the roofline allows: by arithmetic, or by memory where that is less.
    """
    flops, size, tflops, gbps = row["flops"], row["bytes"], row["tflops"], row["gbps"]
    peak, bandwidth = roof.flops_per_s(row["dtype"]), roof.bytes_per_s
    arithmetic = None if tflops is None or peak is None else tflops * 1e12 / peak
    memory = None if gbps is None or bandwidth is None else gbps * 1e9 / bandwidth
    shares = [share for share in (arithmetic, memory) if share is not None]
    columns = {
        "flops_per_byte": None if flops is None or not size else round(flops / size, 6),
        "peak_tflops": None if peak is None or flops is None else round(peak / 1e12, 6),
        "share_of_peak": _rounded(arithmetic),
        "share_of_bandwidth": _rounded(memory),
        "share_of_roofline": _rounded(max(shares, default=None)),
        "bound": _bound(arithmetic, memory, flops),
    }
    at = list(row).index("gbps") + 1
    items = list(row.items())
    return dict(items[:at]) | columns | dict(items[at:])


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 6)


def _bound(arithmetic: float | None, memory: float | None, flops: float | None) -> str | None:
    """Return which limit is nearer: the larger share says so."""
    if memory is None or (arithmetic is None and flops is not None):
        return None
    return "memory" if arithmetic is None or memory >= arithmetic else "compute"


def counted_flops(rows: Sequence[dict[str, Any]], wall_ns: int, roof: Roof) -> CountedFlops | None:
    """Add up the FLOPs of rows by operator and shape; None where none has a formula.

    Calls outside the steps are left out by their share of time.

    Args:
        wall_ns: length of all steps of all devices.
    """
    model = hardware = covered = compute = 0.0
    types: dict[str, float] = {}
    for row in rows:
        inside = row["step_ns"] / row["total_ns"] if row["total_ns"] else 0.0
        compute += row["compute_ns"] * inside
        if row["flops"] is None:
            continue
        covered += row["compute_ns"] * inside
        hardware += row["counted_flops"] * row["count"] * inside
        model += row["model_flops"] * (row["count"] - row["recompute_count"]) * inside
        types[row["dtype"]] = types.get(row["dtype"], 0.0) + row["counted_flops"] * row["count"]
    if not types:
        return None
    dtype = max(types, key=lambda name: types[name])
    peak = roof.flops_per_s(dtype)
    return CountedFlops(
        model=model,
        hardware=hardware,
        dtype=dtype,
        covered=covered / compute if compute else 0.0,
        tflops=model / wall_ns / 1e3 if wall_ns else None,
        mfu=None if peak is None else utilization(model, wall_ns, peak),
        hfu=None if peak is None else utilization(hardware, wall_ns, peak),
        peak_tflops=None if peak is None else peak / 1e12,
    )

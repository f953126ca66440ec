"""What each step computes, as a share of what its GPU could: MFU and HFU, FLOP/s, samples and tokens per second."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dptrace.core.checks import rank_entries
from dptrace.core.gpu import GpuProperties
from dptrace.core.numbers import AMOUNT
from dptrace.core.table import with_missing
from dptrace.model.gpu_peaks import (
    ModelFlops,
    achieved_flops_per_s,
    gpu_peak,
    no_peak_advice,
    transformer_flops,
    utilization,
)

if TYPE_CHECKING:
    from dptrace.analysis.per_gpu.device import DeviceFigures


class Workload(msgspec.Struct, frozen=True):
    """What the user says about a step, which overrides run.json; None where the user says nothing."""

    parameters: float | None = None
    """Of the whole model."""
    tokens: float | None = None
    """Of one step, over all ranks."""
    samples: float | None = None
    """Of one step, over all ranks."""
    peak_tflops: float | None = None
    """Dense peak of one GPU, in TFLOP/s."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if (value := getattr(self, name)) is not None:
                AMOUNT.check(value, "--params" if name == "parameters" else f"--{name.replace('_', '-')}")


class StepUtilization(msgspec.Struct, frozen=True):
    """One step of one rank; None where a figure is not known."""

    rank: int
    device: int
    step: str
    wall_ns: int
    model_flops: float | None
    hardware_flops: float | None
    tflops: float | None
    """Model FLOPs over the wall time, in TFLOP/s."""
    mfu: float | None
    hfu: float | None
    samples_per_s: float | None
    """Of all ranks together, at this rank's wall time."""
    tokens_per_s: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return msgspec.structs.asdict(self)


class Utilization(msgspec.Struct, frozen=True):
    """The figures of all steps, and what they were computed from."""

    steps: tuple[StepUtilization, ...]
    source: str
    """Where the FLOPs come from; empty without any."""
    dtype: str
    """The type whose peak counts; empty where the user gave the peak."""
    gpu: str
    """The GPUs whose peak counts; empty without one."""
    peak_tflops: float | None
    """Of the first GPU that has one."""
    note: str
    """Why there is no MFU although the FLOPs are known, or why it can't be right, and what to do; else empty."""
    mfu: float | None
    """Over all ranks and steps: FLOPs over time × peak. None where a rank lacks either."""
    hfu: float | None
    tflops: float | None
    """Of one rank, mean over all."""
    samples_per_s: float | None
    """Of all ranks together."""
    tokens_per_s: float | None

    def of_wall(self, seconds: float) -> tuple[float | None, float | None]:
        """Return TFLOP/s of a rank and MFU if a step took *seconds*, as one that was timed without the profiler."""
        flops = [step.model_flops for step in self.steps if step.model_flops is not None]
        if not flops or len(flops) < len(self.steps) or seconds <= 0:
            return None, None
        tflops = fmean(flops) / seconds / 1e12
        return tflops, None if self.mfu is None or self.peak_tflops is None else tflops / self.peak_tflops

    @property
    def known(self) -> bool:
        """Whether there is any figure."""
        return any(value is not None for value in (self.tflops, self.samples_per_s, self.tokens_per_s))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data, as --json has them."""
        figures = {name: getattr(self, name) for name in self.__struct_fields__ if name != "steps"}
        return with_missing(figures) | {"steps": [step.to_dict() for step in self.steps]}


def utilization_of(
    devices: Sequence[DeviceFigures],
    metadata: Mapping[str, Any],
    world_size: int,
    workload: Workload | None = None,
) -> Utilization:
    """Return what the steps of a run compute; *metadata* is run.json.

    FLOPs come from *workload* (6 · parameters · tokens, divided among the ranks), else of a run that dptrace recorded
    from the operators of each step; an older run has those of one step in run.json. Batch and tokens come from
    *workload*, else from run.json's options ``batch_size`` and ``tokens_per_sample``. The peak comes from *workload*,
    else from the table of GPUs, for the type of most FLOPs.
    """
    workload = workload or Workload()
    options = metadata.get("options")
    options = options if isinstance(options, dict) else {}
    samples, tokens = _batch(options, workload)
    if workload.parameters and tokens:
        ranks = max(world_size, len({device.timeline.rank for device in devices}), 1)
        whole = transformer_flops(workload.parameters, tokens)
        said = ModelFlops(whole / ranks, None, "6 · parameters · tokens")
        flops: list[_Flops | None] = [_Flops(_dtype_of(options), [said])] * len(devices)
    else:
        flops = [_recorded_flops(metadata, device) for device in devices]
    dtype = next((found.dtype for found in flops if found is not None), "")
    peaks = [
        _peak(device, found.dtype if found else "", workload) for device, found in zip(devices, flops, strict=True)
    ]
    steps = tuple(
        _step(device, k, found.of_step(k) if found else None, peak, samples, tokens)
        for device, found, peak in zip(devices, flops, peaks, strict=True)
        for k in range(len(device.split.names))
    )
    overall = _overall(steps, {(d.timeline.rank, d.timeline.device): p for d, p in zip(devices, peaks, strict=True)})
    given = workload.peak_tflops is not None
    named = next((device for device, peak in zip(devices, peaks, strict=True) if peak is not None), None)
    return Utilization(
        steps=steps,
        source=next((found.of_step(0).source for found in flops if found is not None), ""),
        dtype="" if given else _peak_type(named, dtype),
        gpu="" if given or named is None else _gpu_name(named),
        peak_tflops=next((peak / 1e12 for peak in peaks if peak is not None), None),
        note=_above_peak(workload) if (overall["mfu"] or 0) > 1 else _note(devices, flops, peaks, dtype),
        **overall,
    )


def _number(value: object) -> float | None:
    """Return a positive number of run.json, which people edit; else None."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if good else None  # type: ignore[arg-type]


def _batch(options: Mapping[str, Any], workload: Workload) -> tuple[float | None, float | None]:
    """Return samples and tokens of a step, over all ranks."""
    samples = workload.samples or _number(options.get("batch_size"))
    each = _number(options.get("tokens_per_sample"))
    return samples, workload.tokens or (samples * each if samples and each else None)


class _Flops(NamedTuple):
    """What the steps of a device compute."""

    dtype: str
    """The type of most of it."""
    steps: Sequence[ModelFlops]
    """Of each step, or one for all of them."""

    def of_step(self, k: int) -> ModelFlops:
        return self.steps[min(k, len(self.steps) - 1)]


def _recorded_flops(metadata: Mapping[str, Any], device: DeviceFigures) -> _Flops | None:
    """Return the FLOPs of a rank that dptrace recorded, as counted in its trace, or in a step of an older run."""
    entry = next((entry for entry in rank_entries(metadata) if entry.get("rank") == device.timeline.rank), None)
    counted = entry.get("flops") if entry is not None else None
    if isinstance(counted, dict) and (model := _number(counted.get("model"))) is not None:
        hardware = _number(counted.get("hardware"))
        return _Flops(str(counted.get("dtype", "")), [ModelFlops(model, hardware, "counted in a step of the warm-up")])
    if entry is None or (flops := device.flops) is None:
        return None
    columns = zip(flops.model.tolist(), flops.hardware.tolist(), strict=True)
    return _Flops(flops.dtype, [ModelFlops(*step, "counted from the shapes of operators") for step in columns])


_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}


def _dtype_of(options: Mapping[str, Any]) -> str:
    """Return the type that the options name, also that of mixed precision; bf16 where they name none."""
    amp, dtype = str(options.get("amp") or ""), str(options.get("dtype") or "")
    return _SHORT.get(amp) or (amp if amp in _SHORT.values() else "") or _SHORT.get(dtype, "bf16")


def _peak(device: DeviceFigures, dtype: str, workload: Workload) -> float | None:
    """Return the peak of a GPU in FLOP/s; None on a CPU and for an unknown GPU."""
    if workload.peak_tflops is not None:
        return workload.peak_tflops * 1e12
    timeline = device.timeline
    if timeline.on_cpu or not dtype:
        return None
    row = gpu_peak(timeline.gpu or GpuProperties(timeline.device_name))
    return None if row is None else row.flops_per_s(dtype)


def _peak_type(device: DeviceFigures | None, dtype: str) -> str:
    """Return the type whose peak counts for FLOPs of a type: that of fp32 may be TF32's."""
    row = None if device is None else gpu_peak(device.timeline.gpu or GpuProperties(device.timeline.device_name))
    return "tf32" if dtype == "fp32" and row is not None and "tf32" in row.tflops else dtype


def _gpu_name(device: DeviceFigures) -> str:
    row = gpu_peak(device.timeline.gpu or GpuProperties(device.timeline.device_name))
    return "" if row is None else row.name if row.part == 1 else f"{100 * row.part:.0f} % of {row.name}"


def _step(
    device: DeviceFigures,
    k: int,
    flops: ModelFlops | None,
    peak: float | None,
    samples: float | None,
    tokens: float | None,
) -> StepUtilization:
    wall = int(device.split.figures["wall_ns"][k])
    model, hardware = (flops.model, flops.hardware) if flops is not None else (None, None)
    rate = None if model is None else achieved_flops_per_s(model, wall)
    return StepUtilization(
        rank=device.timeline.rank,
        device=device.timeline.device,
        step=device.split.names[k],
        wall_ns=wall,
        model_flops=model,
        hardware_flops=hardware,
        tflops=None if rate is None else rate / 1e12,
        mfu=None if model is None or peak is None else utilization(model, wall, peak),
        hfu=None if hardware is None or peak is None else utilization(hardware, wall, peak),
        samples_per_s=None if samples is None else achieved_flops_per_s(samples, wall),
        tokens_per_s=None if tokens is None else achieved_flops_per_s(tokens, wall),
    )


def _overall(steps: Sequence[StepUtilization], peaks: dict[tuple[int, int], float | None]) -> dict[str, float | None]:
    """Return the figures over all steps: sums of FLOPs over sums of time, not means of rates."""
    wall = sum(step.wall_ns for step in steps)
    could = [step.wall_ns * (peaks[step.rank, step.device] or 0.0) / 1e9 for step in steps]

    def over(values: list[float | None], total: float) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / total if known and len(known) == len(values) and total > 0 else None

    complete = bool(could) and all(could)
    model, hardware = [step.model_flops for step in steps], [step.hardware_flops for step in steps]
    return {
        "mfu": over(model, sum(could)) if complete else None,
        "hfu": over(hardware, sum(could)) if complete else None,
        "tflops": over(model, wall * 1e3),
        # Each rate holds for all ranks together, so their mean over time is that of all ranks too.
        "samples_per_s": over([_times(step.samples_per_s, step.wall_ns) for step in steps], wall),
        "tokens_per_s": over([_times(step.tokens_per_s, step.wall_ns) for step in steps], wall),
    }


def _times(rate: float | None, wall: int) -> float | None:
    return None if rate is None else rate * wall


def _above_peak(workload: Workload) -> str:
    """Return a doubt about an MFU that no GPU can have."""
    flops = "--params and --tokens" if workload.parameters and workload.tokens else "the FLOPs in run.json"
    peak = " and --peak-tflops" if workload.peak_tflops is not None else ", or give the peak with --peak-tflops"
    return f"An MFU above 100 % can't be right: check {flops}{peak}."


def _note(
    devices: Sequence[DeviceFigures], flops: Sequence[object | None], peaks: Sequence[float | None], dtype: str
) -> str:
    """Return why there is no MFU, and what to do."""
    on_cpu = all(device.timeline.on_cpu for device in devices)
    if on_cpu or all(found is None for found in flops) or all(peak is not None for peak in peaks):
        return ""
    lacking = next(device.timeline for device, peak in zip(devices, peaks, strict=True) if peak is None)
    row = gpu_peak(lacking.gpu or GpuProperties(lacking.device_name))
    if row is not None:
        return f"The peak of {row.name} for {dtype} is not known: give it with --peak-tflops."
    return no_peak_advice(lacking.device_name)

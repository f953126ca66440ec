"""Synthetic training timelines of any size, for tests of pages and speed."""

from __future__ import annotations

import numpy as np

from dptrace import Run
from dptrace.timeline.model import Collective, Kind, Phase, Timeline, Windows

_NAMES = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "Memcpy HtoD (Pinned -> Device)",
)


def training_timeline(
    rank: int, kernels: int, steps: int = 3, seed: int = 0, names: tuple[str, ...] = _NAMES
) -> Timeline:
    """Make about *kernels* compute kernels in *steps* steps, with two streams of collectives and some copies."""
    draw = np.random.default_rng(seed)
    gaps, lengths = draw.exponential(2_000, kernels), draw.lognormal(9.5, 1.0, kernels) * (1 + rank / 100)
    start = np.cumsum(gaps + lengths).astype(np.int64) + 1_700_000_000_000_000_000
    end = start + lengths.astype(np.int64)  # may run into the next: kernels of two streams
    per_step = kernels // steps
    place = (np.arange(kernels) % per_step) / per_step
    phase = np.select(
        [place < 0.3, place < 0.9, place < 0.98], [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER], Phase.OTHER
    )
    every = max(per_step // 24, 1)
    comm = np.flatnonzero((place > 0.5) & (np.arange(kernels) % every == 0))
    copies = np.flatnonzero(np.arange(kernels) % (every * 3) == 0)
    width = int(lengths.mean() * every * 0.7)
    starts = np.concatenate((start, start[comm] + 500, start[copies] - 900))
    ends = np.concatenate((end, start[comm] + 500 + width, start[copies] + 300))
    kind = np.repeat([Kind.COMPUTE, Kind.COMMUNICATION, Kind.MEMORY], [kernels, len(comm), len(copies)])
    name = np.concatenate((np.arange(kernels) % 2, np.full(len(comm), 2), np.full(len(copies), 3)))
    phases = np.concatenate((phase, np.full(len(comm), Phase.BACKWARD), np.full(len(copies), Phase.OTHER)))
    entry = np.concatenate((np.full(kernels, -1), np.arange(len(comm)), np.full(len(copies), -1)))
    lane = np.concatenate((np.full(kernels, 7), 20 + np.arange(len(comm)) % 2, np.full(len(copies), 7)))
    order = np.argsort(starts, kind="stable")
    bounds = np.concatenate((start[0:1], start[per_step : per_step * steps : per_step], [ends.max() - 1_000]))
    step = np.clip(np.searchsorted(bounds, starts, side="right") - 1, -1, steps - 1)
    return Timeline(
        rank=rank,
        device=rank,
        device_name="NVIDIA H100 80GB HBM3",
        start_ns=starts[order],
        end_ns=ends[order],
        name=name[order].astype(np.int32),
        names=names,
        kind=kind[order].astype(np.uint8),
        phase=phases[order].astype(np.uint8),
        step=step[order].astype(np.int32),
        lane=lane[order].astype(np.int64),
        collective=entry[order].astype(np.int32),
        collectives=tuple(Collective("all_reduce", 26_214_400, "float", "default_pg", 4) for _ in comm),
        windows=Windows(tuple(f"ProfilerStep#{k + 4}" for k in range(len(bounds) - 1)), bounds),
    )


def training_run(
    kernels: int = 3_000, ranks: int = 2, steps: int = 3, names: tuple[str, ...] = _NAMES, path: str = "runs/synthetic"
) -> Run:
    """Make a run of *ranks* such timelines."""
    timelines = tuple(training_timeline(rank, kernels // ranks, steps, names=names) for rank in range(ranks))
    return Run(path, timelines, {"mode": "interleaved"}, ("Made by hand.",), ranks)

"""Recordings for the self-test's checks: healthy ones, from which a test removes what it is about."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dptrace.doctor.selftest import RecordedRun
from dptrace.run.run import Run
from dptrace.timeline.model import Collective, Phase, Timeline
from tests.support.builders import TimelineBuilder

__all__ = ["bare", "gpu_timelines", "recorded"]

ALL_REDUCE = Collective("all_reduce", 4096, "Float", "0", 2, ranks=(0, 1), description="default_pg")
STEPS = 3


def gpu_timelines(ranks: int = 2) -> tuple[Timeline, ...]:
    """Return three healthy steps of each rank in µs-sized ns, each kernel launched 10 µs before it starts."""
    timelines = []
    for rank in range(ranks):
        build = TimelineBuilder(rank, bounds=tuple(range(1_000_000, 1_000_000 + 200_000 * STEPS + 1, 200_000)))
        for t in range(1_000_000, 1_000_000 + 200_000 * STEPS, 200_000):
            build.compute(t + 20_000, t + 60_000).compute(t + 60_000, t + 120_000, Phase.BACKWARD, "gemm_backward")
            build.collective(t + 70_000 + 5_000 * rank, t + 140_000, ALL_REDUCE)
            build.compute(t + 145_000, t + 160_000, Phase.OPTIMIZER, "multi_tensor_apply")
        timeline = build.build()
        timelines.append(replace(timeline, launch_ns=timeline.start_ns - 10_000))
    return tuple(timelines)


def recorded(timelines: tuple[Timeline, ...] | None = None, on_gpus: bool = True, **settings: Any) -> RecordedRun:
    """Return a recording of two ranks on GPUs; *settings* are fields of RecordedRun and ``metadata`` of its run."""
    metadata = settings.pop("metadata", {"profiler_overhead": 0.05, "notes": []})
    run = Run("selftest", gpu_timelines() if timelines is None else timelines, metadata, world_size=2)
    return RecordedRun(run, ranks=2, steps=STEPS, on_gpus=on_gpus, **settings)


def bare(timeline: Timeline, **without: Any) -> Timeline:
    """Return a timeline whose collectives lack something: ``bytes=0`` for their sizes."""
    return replace(timeline, collectives=tuple(replace(call, **without) for call in timeline.collectives))

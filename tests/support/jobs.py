"""Runs of a synthetic job with known parts: each part's length is drawn around one that the test chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from dptrace import Run
from dptrace.timeline.model import Collective, Phase, Timeline
from tests.support.builders import TimelineBuilder

MS = 1_000_000

LENGTHS = {
    "forward": 30_000_000,
    "backward": 60_000_000,
    "exposed": 10_000_000,
    "optimizer": 5_000_000,
    "idle": 4_000_000,
}
"""Lengths of a step's parts in ns."""


def job(
    steps: int = 8,
    ranks: int = 2,
    seed: int = 0,
    noise: float = 0.005,
    factors: Mapping[str, float] | None = None,
    first: float = 1.0,
    **more: Any,
) -> Run:
    """Make a run.

    Args:
        noise: relative standard deviation of a part's length, shared by the ranks of a step.
        factors: factor of each part's length in LENGTHS.
        first: factor of the first step's length.
        more: fields of the run: ``path``, ``metadata``, ``world_size``.
    """
    draw = np.random.default_rng(seed)
    jitter = 1 + noise * draw.standard_normal((steps, len(LENGTHS)))
    jitter[0] *= first
    own = 1 + noise / 10 * draw.standard_normal((ranks, steps, len(LENGTHS)))
    base = np.array([length * (factors or {}).get(part, 1) for part, length in LENGTHS.items()])
    lengths = (base * jitter * own).astype(np.int64)
    return run_of([_timeline(rank, lengths[rank]) for rank in range(ranks)], **more)


def late_run(*starts: int, size: int = 0) -> Run:
    """Make ranks of one step of 100 ms that compute until *starts* ms, then join an all-reduce that ends at 80 ms.

    Args:
        size: ranks of the job, if more than are recorded.
    """
    comm = Collective("all_reduce", 4_096, "float", "0", size or len(starts))
    builders = [
        TimelineBuilder(rank, bounds=(0, 100 * MS)).compute(0, start * MS).collective(start * MS, 80 * MS, comm)
        for rank, start in enumerate(starts)
    ]
    return Run("runs/late", tuple(build.build() for build in builders), world_size=size or len(starts))


def on_nodes(run: Run, size: int) -> Run:
    """Return a run with *size* ranks on each host: node-0, node-1 …"""
    timelines = (replace(one, host_name=f"node-{one.rank // size}") for one in run.timelines)
    return Run(run.path, tuple(timelines), world_size=run.world_size)


def run_of(timelines: list[Timeline], **more: Any) -> Run:
    """Make a run of timelines; *more* are fields of the run."""
    options: dict[str, Any] = {"path": "runs/job", "world_size": len(timelines), **more}
    return Run(timelines=tuple(timelines), **options)


def _timeline(rank: int, lengths: np.ndarray[Any, np.dtype[np.int64]]) -> Timeline:
    """Place the parts of each step in sequence; overlapped communication is half as long as the exposed."""
    bounds = np.concatenate(([0], np.cumsum(lengths.sum(axis=1)))) + 1_000_000_000
    build = TimelineBuilder(rank, bounds=tuple(bounds.tolist()))
    for at, (forward, backward, exposed, optimizer, _idle) in zip(bounds.tolist(), lengths.tolist(), strict=False):
        turn = at + forward
        build.compute(at, turn, name="void gemm<float>(int)")
        half = turn + backward // 2
        build.compute(turn, half, Phase.BACKWARD, "gemm_backward").compute(
            half, turn + backward, Phase.BACKWARD, "relu"
        )
        end = turn + backward + exposed
        build.all_reduce(turn + backward - exposed // 2, end)
        build.compute(end, end + optimizer, Phase.OPTIMIZER, "adam")
    timeline = build.build()
    return replace(
        timeline, windows=replace(timeline.windows, names=tuple(f"ProfilerStep#{k + 4}" for k in range(len(lengths))))
    )

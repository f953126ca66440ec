"""Timelines for tests that need a run but no file."""

from __future__ import annotations

import numpy as np

from dptrace.timeline.model import Collective, Kind, Phase, Timeline, Windows


class TimelineBuilder:
    """Collect intervals in ns, then :meth:`build`: ``TimelineBuilder(0).compute(0, 30).all_reduce(20, 50)``."""

    def __init__(self, rank: int = 0, device: int | None = None, bounds: tuple[int, ...] = (0, 100)) -> None:
        self.rank, self.device, self.bounds = rank, rank if device is None else device, bounds
        self.rows: list[tuple[int, int, str, Kind, Phase, int, Collective | None]] = []

    def _add(
        self, start: int, end: int, name: str, kind: Kind, phase: Phase, lane: int, comm: Collective | None = None
    ) -> TimelineBuilder:
        self.rows.append((start, end, name, kind, phase, lane, comm))
        return self

    def compute(
        self, start: int, end: int, phase: Phase = Phase.FORWARD, name: str = "gemm", lane: int = 7
    ) -> TimelineBuilder:
        return self._add(start, end, name, Kind.COMPUTE, phase, lane)

    def memory(self, start: int, end: int, name: str = "Memcpy HtoD") -> TimelineBuilder:
        return self._add(start, end, name, Kind.MEMORY, Phase.OTHER, 7)

    def all_reduce(self, start: int, end: int, bytes: int = 4096, lane: int = 20) -> TimelineBuilder:
        comm = Collective("all_reduce", bytes, "float", "default_pg", 2)
        return self._add(start, end, "ncclDevKernel_AllReduce", Kind.COMMUNICATION, Phase.BACKWARD, lane, comm)

    def collective(self, start: int, end: int, comm: Collective, lane: int = 20) -> TimelineBuilder:
        return self._add(start, end, f"ncclDevKernel_{comm.kind}", Kind.COMMUNICATION, Phase.BACKWARD, lane, comm)

    def build(self) -> Timeline:
        rows = sorted(self.rows, key=lambda row: (row[0], row[1]))
        number = {name: place for place, name in enumerate(dict.fromkeys(row[2] for row in rows))}
        start = np.array([row[0] for row in rows], np.int64)
        collectives = tuple(row[6] for row in rows if row[6] is not None)
        is_comm = np.array([row[6] is not None for row in rows], np.bool_)
        bounds = np.array(self.bounds, np.int64)
        step = np.clip(np.searchsorted(bounds, start, side="right") - 1, -1, len(bounds) - 2)
        return Timeline(
            rank=self.rank,
            device=self.device,
            device_name="CPU" if self.device < 0 else "NVIDIA H100",
            start_ns=start,
            end_ns=np.array([row[1] for row in rows], np.int64),
            name=np.array([number[row[2]] for row in rows], np.int32),
            names=tuple(number),
            kind=np.array([row[3] for row in rows], np.uint8),
            phase=np.array([row[4] for row in rows], np.uint8),
            step=step.astype(np.int32),
            lane=np.array([row[5] for row in rows], np.int64),
            collective=np.where(is_comm, np.cumsum(is_comm) - 1, -1).astype(np.int32),
            collectives=collectives,
            windows=Windows(tuple(f"ProfilerStep#{k}" for k in range(len(bounds) - 1)), bounds),
        )


def two_rank_timelines() -> tuple[Timeline, Timeline]:
    """Two ranks of two steps in µs-sized ns: forward, backward with a half-hidden all-reduce, optimizer, idle."""
    both = []
    for rank in (0, 1):
        build = TimelineBuilder(rank, bounds=(1_000_000, 1_100_000, 1_200_000))
        for t in (1_000_000, 1_100_000):
            build.memory(t, t + 2_000).compute(t + 2_000, t + 30_000).compute(
                t + 30_000, t + 70_000, Phase.BACKWARD, "gemm_backward"
            )
            build.all_reduce(t + 50_000, t + 80_000 + 1_000 * rank)
            build.compute(t + 82_000, t + 90_000, Phase.OPTIMIZER, "multi_tensor_apply")
        both.append(build.build())
    return both[0], both[1]

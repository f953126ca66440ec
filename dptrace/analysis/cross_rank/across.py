"""What the analysis of a run's ranks against each other finds, before it says what that costs."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from dptrace.analysis.cross_rank.clocks import Clocks
from dptrace.analysis.cross_rank.ddp_buckets import Buckets
from dptrace.analysis.cross_rank.stragglers import Stragglers
from dptrace.analysis.cross_rank.transfers import AlphaBeta, ExposedWait, Latency, Timing
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.units import ranks_text


class AcrossRanks(msgspec.Struct, frozen=True, dict=True):
    """The figures of a run's ranks against each other."""

    devices: tuple[DeviceFigures, ...]
    matches: Matches
    clocks: Clocks
    timing: Timing
    exposed_waits: tuple[ExposedWait, ...]
    """For each device, how much of its exposed communication is waiting for later ranks."""
    buckets: Buckets | None
    names: tuple[str, ...]
    """Name of each matched collective: ``bucket 0``, ``FSDP::all_gather (layers.3)``, or empty."""
    latencies: tuple[Latency, ...]
    fits: tuple[AlphaBeta, ...]
    stragglers: Stragglers
    world_size: int
    """Number of ranks in the job; 0 where it is not known."""

    @property
    def not_recorded(self) -> str:
        """Which ranks of the job have no trace, in words; empty for none."""
        absent = set(range(self.world_size)) - {rank for rank, _ in self.matches.device_ids}
        return not_recorded(absent) if absent else ""


def not_recorded(ranks: Collection[int]) -> str:
    """Say of ranks that they were not recorded.

    >>> not_recorded([2]), not_recorded([3, 4])
    ('rank 2 was not recorded', 'ranks 3, 4 were not recorded')
    """
    return f"{ranks_text(ranks)} {'was' if len(ranks) == 1 else 'were'} not recorded"

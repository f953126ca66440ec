"""What the analysis of a run's ranks against each other finds, before it says what that costs."""

from __future__ import annotations

import msgspec

from dptrace.analysis.cross_rank.clocks import Clocks
from dptrace.analysis.cross_rank.ddp_buckets import Buckets
from dptrace.analysis.cross_rank.stragglers import Stragglers
from dptrace.analysis.cross_rank.transfers import AlphaBeta, ExposedWait, Latency, Timing
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures


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

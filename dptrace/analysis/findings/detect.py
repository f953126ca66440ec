"""The findings of a run: what each costs per step, where to look, and what to do about it.

Every finding has a cost of at least one percent of the step. No time counts in two findings: waiting for late ranks is
the stragglers', together with their own idle time during it, and what a detailed finding explains (small messages, a
large first bucket, low bandwidth, a pipeline's bubble) is not part of the general one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dptrace.analysis.cross_rank.alpha_beta import AlphaBeta
from dptrace.analysis.cross_rank.clocks.estimate import Clocks
from dptrace.analysis.cross_rank.delays.stragglers import Stragglers
from dptrace.analysis.cross_rank.exposed_wait import ExposedWait
from dptrace.analysis.cross_rank.latency import Latency
from dptrace.analysis.cross_rank.transfers import Timing
from dptrace.analysis.findings.bandwidth import low_bandwidth, slow_collectives
from dptrace.analysis.findings.communication import exposed_communication, first_bucket, small_messages
from dptrace.analysis.findings.finding import MIN_SHARE, Finding, FindingContext
from dptrace.analysis.findings.host import idle, recompute, unused_parameters
from dptrace.analysis.findings.overlap import without_overlap
from dptrace.analysis.findings.pipeline import bubbles
from dptrace.analysis.findings.stragglers import stragglers
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures

if TYPE_CHECKING:
    from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline

__all__ = ["Finding", "findings"]

_CROSS_RANK_DETECTORS = (
    stragglers,
    exposed_communication,
    small_messages,
    first_bucket,
    low_bandwidth,
    slow_collectives,
)
_PER_GPU_DETECTORS = (bubbles, unused_parameters, idle, recompute)


def findings(
    devices: Sequence[DeviceFigures],
    matches: Matches,
    late: Stragglers,
    timing: Timing | None = None,
    fits: Sequence[AlphaBeta] = (),
    latencies: Sequence[Latency] = (),
    names: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    clocks: Clocks | None = None,
    waits: Sequence[ExposedWait] = (),
) -> tuple[Finding, ...]:
    """Return the findings, most expensive first.

    Args:
        devices: the figures of each GPU.
        matches: the collectives across ranks.
        late: which rank arrived last at which collective.
        timing: their transfer times; required for findings on bandwidth.
        fits: latency and time per byte; required for findings on small messages.
        latencies: groups of comparable collectives; required for findings on slow collectives.
        names: the name of each instance of the matches.
        metadata: the contents of ``run.json``.
        clocks: offsets of the devices' clocks; required for findings on pipelines.
        waits: how much of each device's exposed communication is waiting; none by default.
    """
    known = tuple(device for device in devices if len(device.timeline.windows))
    if not known:
        return ()
    formed = _pipelines(devices, clocks) if clocks and any(len(d.timeline.actions) for d in devices) else ()
    context = FindingContext(
        known, matches, late, timing, tuple(fits), tuple(latencies), names, metadata or {}, formed, tuple(waits)
    )
    found = [finding for finder in (*_CROSS_RANK_DETECTORS, *_PER_GPU_DETECTORS) for finding in finder(context)]
    found = without_overlap(found)
    return tuple(sorted((f for f in found if f.share >= MIN_SHARE), key=lambda finding: -finding.cost_ns))


def _pipelines(devices: Sequence[DeviceFigures], clocks: Clocks) -> tuple[Pipeline, ...]:
    # Most runs have none.
    from dptrace.analysis.cross_rank.pipeline_bubble import pipelines

    return pipelines(devices, clocks)

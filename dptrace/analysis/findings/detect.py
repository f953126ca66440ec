"""The few things that matter about a run: what each costs in a step, where it shows, and what to do about it.

No finding is without its cost, and none is told that costs less than a hundredth of the step. Their costs don't add
up: ``small_messages``, ``first_bucket``, ``low_bandwidth`` and ``slow_collectives`` tell why a part of
``exposed_comm`` is there, ``unused_parameters`` of ``host_bound``, and ``bubble`` of ``exposed_comm`` and of idling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dptrace.analysis.cross_rank.alpha_beta import AlphaBeta
from dptrace.analysis.cross_rank.clocks import Clocks
from dptrace.analysis.cross_rank.latency import Latency
from dptrace.analysis.cross_rank.pipeline_bubble import pipelines
from dptrace.analysis.cross_rank.stragglers import Stragglers
from dptrace.analysis.cross_rank.transfers import Timing
from dptrace.analysis.findings.bandwidth import low_bandwidth, slow_collectives
from dptrace.analysis.findings.communication import exposed, first_bucket, small_messages
from dptrace.analysis.findings.finding import Finding, FindingContext
from dptrace.analysis.findings.host import idle, recompute, unused_parameters
from dptrace.analysis.findings.pipeline import bubbles
from dptrace.analysis.findings.stragglers import stragglers
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures

__all__ = ["Finding", "findings"]

_MIN_SHARE = 0.01
"""Share of the step below which nothing is said."""
_CROSS_RANK_DETECTORS = (stragglers, exposed, small_messages, first_bucket, low_bandwidth, slow_collectives)
_PER_GPU_DETECTORS = (bubbles, idle, recompute, unused_parameters)


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
) -> tuple[Finding, ...]:
    """Say what matters, the dearest first.

    Args:
        devices: what each GPU's own file tells.
        matches: the collectives across ranks.
        late: who came last at which of them.
        timing: how fast they were; without it nothing is said of bandwidth.
        fits: latency and time per byte; without them nothing is said of messages too small.
        latencies: like collectives beside each other; without them no single slow ones are told.
        names: what each instance of the matches is called.
        info: the contents of ``run.json``.
        clocks: how far the devices' clocks are apart; without them nothing is said of pipelines.
    """
    known = tuple(device for device in devices if len(device.timeline.windows))
    if not known:
        return ()
    formed = pipelines(devices, clocks) if clocks and any(len(d.timeline.actions) for d in devices) else ()
    context = FindingContext(known, matches, late, timing, tuple(fits), tuple(latencies), names, metadata or {}, formed)
    found = [finding for finder in (*_CROSS_RANK_DETECTORS, *_PER_GPU_DETECTORS) for finding in finder(context)]
    return tuple(sorted((f for f in found if f.share >= _MIN_SHARE), key=lambda finding: -finding.cost_ns))

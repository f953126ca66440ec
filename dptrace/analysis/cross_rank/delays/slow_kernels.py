"""Name the kernel behind a delay in compute: the one that took longer than on the ranks that waited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dptrace.analysis.cross_rank.delays.delay import Delay
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import median
from dptrace.timeline.model import Kind

__all__ = ["name_slow_kernels"]

_MOST_NAMED = 20
"""Number of delays that are named, the most expensive first: each takes a search through the intervals."""
_MOST_COMPARED = 4
_KINDS = {"compute": Kind.COMPUTE, "memory_copies": Kind.MEMORY}


def name_slow_kernels(delays: Sequence[Delay], matches: Matches, devices: Sequence[DeviceFigures]) -> None:
    """Set ``what`` of the delays in compute and copies, in place; it stays empty where intervals were dropped."""
    wanted = [delay for delay in delays if delay.cause in _KINDS and not delay.what]
    for delay in wanted[:_MOST_NAMED]:
        own = _kernels(delay, delay.device, matches, devices)
        others = [_kernels(delay, device, matches, devices) for device in delay.waiting[:_MOST_COMPARED]]
        excess = {name: ns - float(median([other[name] for other in others])) for name, ns in own.items()}
        if excess and (name := max(excess, key=lambda name: excess[name])) and excess[name] > 0:
            delay.what = name


def _kernels(delay: Delay, device: int, matches: Matches, devices: Sequence[DeviceFigures]) -> Counter[str]:
    """Return the ns by name of what ran on a device from the previous to the first collective that was delayed."""
    instance, kind = delay.collectives[0], _KINDS[delay.cause]
    until = int(matches.start_ns[(matches.instance == instance) & (matches.device == device)][0])
    own = matches.end_ns[(matches.device == device) & (matches.end_ns < until)]
    timeline = devices[device].timeline
    since = int(own.max(initial=0))
    chosen = (timeline.kind == kind) & (timeline.start_ns >= since) & (timeline.start_ns < until)
    total: Counter[str] = Counter()
    for name, ns in zip(
        timeline.name[chosen].tolist(), (timeline.end_ns - timeline.start_ns)[chosen].tolist(), strict=True
    ):
        total[timeline.names[name]] += ns
    return total

"""Name the longest idle gaps: where they are, and what the host did in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.units import duration
from dptrace.timeline.model import HostCause, HostLabel

__all__ = ["HOST_CAUSES", "Gap", "gaps_text", "longest_gaps", "main_activity"]

_EXAMINED = 20
"""Number of a device's longest gaps that are looked at."""
_NOTABLE = 0.1
"""Share of the idle time of a cause from which a gap is named."""
_COUNTED = 500
"""Number of a device's longest gaps that are added up."""
_STANDS_OUT = 0.15
_LEAST_NS = 300_000
_MOST_NAMED = 2
HOST_CAUSES = {
    "data_loading_ns": (HostCause.DATA_LOADING,),
    "allocator_ns": (HostCause.ALLOCATOR,),
    "synchronizing_ns": (HostCause.SYNCHRONIZING,),
    "host_bound_ns": (HostCause.OPERATOR, HostCause.PYTHON, HostCause.NOTHING_RECORDED, HostCause.PASSIVE),
}
"""What the host did in idle time of a cause; causes without host activity are missing."""


class Gap(msgspec.Struct, frozen=True):
    """The part of an idle gap that one thing on the host filled."""

    ns: int
    step: str
    label: HostLabel


def longest_gaps(
    device: DeviceFigures, cause: str, total_ns: int, claimed: Sequence[tuple[int, int, int]] = ()
) -> list[Gap]:
    """Return the gaps of a cause that are a notable part of its idle time on a device, the longest first.

    Args:
        cause: one of ``idle.CAUSES``; causes without host activity have no gaps.
        total_ns: the idle time of the cause.
        claimed: starts and ends of segments, and how much of their idle time other findings explain, in ns.
    """
    if cause not in HOST_CAUSES:
        return []
    starts, ends = device.host_gaps
    least = max(_NOTABLE * total_ns, _LEAST_NS)
    found = []
    for number in np.argsort(starts - ends, kind="stable")[:_EXAMINED].tolist():
        start, end = int(starts[number]), int(ends[number])
        if any(start < last and end > first and 2 * ns > end - start for first, last, ns in claimed):
            continue
        spent = device.timeline.host.spent(start, end)
        own = {label: ns for label, ns in spent.items() if label.cause in HOST_CAUSES[cause]}
        if own and sum(own.values()) >= least:
            label = max(own, key=lambda label: own[label])
            found.append(Gap(sum(own.values()), _step_at(device, start), label))
    return sorted(found, key=lambda gap: -gap.ns)[:_MOST_NAMED]


def main_activity(device: DeviceFigures, cause: str) -> str:
    """Return a clause on what the host did in most of the gaps of a cause; empty if nothing stands out."""
    if cause not in HOST_CAUSES:
        return ""
    starts, ends = device.host_gaps
    longest = np.argsort(starts - ends, kind="stable")[:_COUNTED]
    spent = Counter[HostLabel]()
    for start, end in zip(starts[longest].tolist(), ends[longest].tolist(), strict=True):
        for label, ns in device.timeline.host.spent(start, end).items():
            if label.cause in HOST_CAUSES[cause]:
                spent[label] += ns
    places = Counter[str]()
    for label, ns in spent.items():
        places[label.where or label.what] += ns
    if not places:
        return ""
    place, ns = places.most_common(1)[0]
    share = ns / spent.total()
    if not place or share < _STANDS_OUT:
        return ""
    most = next(label.what for label, _ in spent.most_common() if (label.where or label.what) == place)
    inner = f", most in “{most}”" if most and most != place else ""
    return f"{100 * share:.0f} % of the longer gaps are in “{place}”{inner}"


def _step_at(device: DeviceFigures, time: int) -> str:
    windows = device.timeline.windows
    place = int(np.searchsorted(windows.bounds, time, side="right")) - 1
    return windows.names[min(max(place, 0), len(windows) - 1)]


def gaps_text(gaps: Sequence[Gap], rank: int | None) -> str:
    """Return a clause on the longest gaps; empty without any.

    >>> gap = Gap(156_000_000, "ProfilerStep#4", HostLabel(HostCause.ALLOCATOR, "cudaMalloc", "forward"))
    >>> gaps_text([gap], 0)
    'the longest gap is 156.0 ms in ProfilerStep#4 on rank 0: “cudaMalloc” in “forward”'
    """
    if not gaps:
        return ""
    on = f" on rank {rank}" if rank is not None else ""
    if len(gaps) == 1:
        return f"the longest gap is {duration(gaps[0].ns)} in {gaps[0].step}{on}: {_activity(gaps[0].label)}"
    first, second = gaps
    if (first.step, first.label) == (second.step, second.label):
        lengths = f"{duration(first.ns)} and {duration(second.ns)}"
        return f"the two longest gaps are {lengths} in {first.step}{on}: {_activity(first.label)}"
    parts = (f"{duration(gap.ns)} in {gap.step}, {_activity(gap.label)}" for gap in gaps)
    return f"the longest gaps{on} are {'; '.join(parts)}"


def _activity(label: HostLabel) -> str:
    if label.cause == HostCause.NOTHING_RECORDED:
        return "nothing is recorded there"
    what = f"“{label.what}”" if label.what else "short operators"
    return f"{what} in “{label.where}”" if label.where and label.where != label.what else what

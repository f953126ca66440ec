"""Bounds on clock offsets from messages between ranks: a message cannot arrive before it was sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.matching.match import Matches
from dptrace.analysis.matching.offsets import Offset
from dptrace.analysis.per_gpu.device import DeviceFigures

__all__ = ["connect_by_messages"]

_MOST = 512
"""Most sets of ranks compared with each other; the work grows with the third power."""
_BELIEVED = 100
"""One message in this many, the tightest, is ignored: a wrong bound is worse than a loose one."""


def connect_by_messages(
    matches: Matches,
    devices: Sequence[DeviceFigures],
    offsets: list[Offset],
    reference: list[int],
    misfits: Sequence[int] = (),
) -> set[int]:
    """Compare, in place, the clocks of devices that only messages connect; return these devices.

    A receive ends after its send began. This bounds the offset of the two clocks from one side; messages in the other
    direction, or around a ring, bound it from the other side. The offset is the midpoint.

    Args:
        misfits: devices whose collectives do not match the others'; their messages are ignored.
    """
    heads = sorted(set(reference) - set(misfits))
    if not 1 < len(heads) <= _MOST:
        return set()
    bounds = _closed(_bounds(matches, devices, offsets, reference, heads))
    connected = set()
    for place, head in enumerate(heads[1:], 1):
        least, most = -bounds[place, 0], bounds[0, place]
        if not (np.isfinite(least) and np.isfinite(most) and least <= most):
            continue
        middle, half_range = (least + most) / 2, (most - least) / 2
        for device, other in enumerate(reference):
            if other == head:
                offset = offsets[device]
                offsets[device] = replace(
                    offset, ahead_ns=offset.ahead_ns + middle, uncertainty_ns=offset.uncertainty_ns + half_range
                )
                reference[device] = heads[0]
                connected.add(device)
    return connected


def _bounds(
    matches: Matches,
    devices: Sequence[DeviceFigures],
    offsets: Sequence[Offset],
    reference: Sequence[int],
    heads: Sequence[int],
) -> NDArray[np.float64]:
    """Return, for each pair of sets of devices, the most by which the second's clock can be ahead, in ns."""
    bounds = np.full((len(heads), len(heads)), np.inf)
    np.fill_diagonal(bounds, 0.0)
    pairs: dict[tuple[int, int], list[float]] = {}
    sends = [_sends(device) for device in devices]
    for row in np.flatnonzero((matches.kind == "send_recv") & (np.diff(matches.first) == 2)).tolist():
        members = list(range(matches.first[row], matches.first[row + 1]))
        sender = [bool(sends[matches.device[m]][matches.index[m]]) for m in members]
        source, target = members if sender[0] else members[::-1]
        source_device, target_device = int(matches.device[source]), int(matches.device[target])
        if sum(sender) != 1 or not {reference[source_device], reference[target_device]} <= set(heads):
            continue
        began, ended = matches.start_ns[source : source + 1], matches.end_ns[target : target + 1]
        source_ahead, target_ahead = (
            float(offsets[source_device].ahead_at(began)[0]),
            float(offsets[target_device].ahead_at(ended)[0]),
        )
        open_ns = offsets[source_device].uncertainty_ns + offsets[target_device].uncertainty_ns
        ahead = float(ended[0] - began[0]) - target_ahead + source_ahead + open_ns
        pairs.setdefault((heads.index(reference[source_device]), heads.index(reference[target_device])), []).append(
            ahead
        )
    for (source_device, target_device), ahead_ns in pairs.items():
        if source_device != target_device:
            bounds[source_device, target_device] = sorted(ahead_ns)[len(ahead_ns) // _BELIEVED]
    return bounds


def _sends(device: DeviceFigures) -> NDArray[np.bool_]:
    """Return whether each of a device's communication intervals is a send."""
    timeline = device.timeline
    collective_ids = timeline.collective[timeline.collective >= 0].tolist()
    return np.array([timeline.collectives[i].kind == "send" for i in collective_ids], np.bool_)


def _closed(bounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the tightest bounds over all paths."""
    for between in range(len(bounds)):
        bounds = np.minimum(bounds, bounds[:, between : between + 1] + bounds[between])
    return bounds

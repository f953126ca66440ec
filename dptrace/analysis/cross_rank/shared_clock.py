"""Ranks that share a clock: recordings of CPUs on one machine need no comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dptrace.analysis.matching.offsets import Offset
from dptrace.analysis.per_gpu.device import DeviceFigures

__all__ = ["shared_clock_devices", "unify_shared_clocks"]

_READ_NS = 10_000.0
"""Each process reads the machine's clock by a counter that it calibrates for itself; that is as good as so much."""


def shared_clock_devices(devices: Sequence[DeviceFigures], metadata: Mapping[str, Any]) -> list[int]:
    """Give for each device the first one that shares its clock: itself where none before it does.

    Times of kernels are a GPU's, brought to its host's clock by the driver, so that they are left out.

    Args:
        info: the contents of ``run.json``, which names each rank's host.
    """
    entries_json = metadata.get("ranks")
    entries = [entry for entry in entries_json if isinstance(entry, Mapping)] if isinstance(entries_json, list) else []
    # Machines may share a name; what the launcher counts as two nodes is not taken for one.
    host = {entry.get("rank"): (entry.get("node"), str(entry["host"])) for entry in entries if entry.get("host")}
    first: dict[object, int] = {}
    shared = []
    for place, device in enumerate(devices):
        timeline = device.timeline
        known = timeline.on_cpu and timeline.rank in host
        shared.append(first.setdefault(host[timeline.rank], place) if known else place)
    return shared


def unify_shared_clocks(offsets: list[Offset], reference: list[int], shared: Sequence[int]) -> None:
    """Give devices that share a clock one offset, in place: that of the first of them."""
    for place, other in enumerate(shared):
        if other != place:
            uncertainty = offsets[other].uncertainty_ns + _READ_NS
            offsets[place] = replace(offsets[other], uncertainty_ns=uncertainty)
            reference[place] = reference[other]
    for place in range(len(reference)):
        while reference[place] != reference[reference[place]]:
            reference[place] = reference[reference[place]]

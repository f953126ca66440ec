"""Ranks that share a clock: CPUs of one machine need no clock comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from dptrace.analysis.matching.offsets import READ_NS, Offset
from dptrace.analysis.per_gpu.device import DeviceFigures

__all__ = ["shared_clock_devices", "unify_shared_clocks"]


def shared_clock_devices(
    devices: Sequence[DeviceFigures],
    metadata: Mapping[str, Any],
    offsets: Sequence[Offset] = (),
    reference: Sequence[int] = (),
) -> list[int]:
    """Return for each device the first device that shares its clock: itself if no earlier one does.

    GPU kernels are excluded: the driver converts their times from the GPU's clock to the host's. Where ``run.json``
    does not name a rank's host, its trace may. Since several machines may have that name, it counts only where the
    collectives agree: by the clocks as they are, no rank leaves one before all others have arrived.

    Args:
        metadata: the contents of ``run.json``, which names each rank's host.
        offsets, reference: of the devices, from the ends of their collectives; without them, ``run.json`` decides.
    """
    entries_json = metadata.get("ranks")
    entries = [entry for entry in entries_json if isinstance(entry, Mapping)] if isinstance(entries_json, list) else []
    # Different machines may have the same host name, so the node that the launcher assigned counts too.
    host = {entry.get("rank"): (entry.get("node"), str(entry["host"])) for entry in entries if entry.get("host")}
    first: dict[object, int] = {}
    shared = []
    for place, device in enumerate(devices):
        timeline = device.timeline
        machine: object = host.get(timeline.rank)
        if machine is None and timeline.host_name and offsets and offsets[place].agrees:
            machine = reference[place], timeline.host_name
        shared.append(first.setdefault(machine, place) if timeline.on_cpu and machine is not None else place)
    return shared


def unify_shared_clocks(offsets: list[Offset], reference: list[int], shared: Sequence[int]) -> None:
    """Assign devices that share a clock the offset of the first of them, in place."""
    for place, other in enumerate(shared):
        if other != place:
            uncertainty = offsets[other].uncertainty_ns + READ_NS
            offsets[place] = replace(offsets[other], uncertainty_ns=uncertainty)
            reference[place] = reference[other]
    for place in range(len(reference)):
        while reference[place] != reference[reference[place]]:
            reference[place] = reference[reference[place]]

"""What a finding is, and what all of them are told from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.alpha_beta import AlphaBeta
from dptrace.analysis.cross_rank.latency import Latency
from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline
from dptrace.analysis.cross_rank.stragglers import Stragglers
from dptrace.analysis.cross_rank.transfers import Timing
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import Int64

__all__ = ["Finding", "FindingContext", "exposures", "megabytes", "milliseconds"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that costs time."""

    kind: str
    """``straggler``, ``exposed_comm``, ``small_messages``, ``host_bound``, ``data_loading``, ``copies`` …"""
    text: str
    """What it is, in a sentence, with its numbers."""
    advice: str
    """What to do about it."""
    cost_ns: int
    """By how much a step would be shorter without it, as far as that can be told: on the mean GPU that it holds up."""
    share: float
    """The same as a share of the step's wall time, from 0 to 1."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """Where to look: step, rank, collective."""

    def to_dict(self) -> dict[str, Any]:
        """Give the finding as plain data."""
        names = ("kind", "text", "advice", "cost_ns", "share", "evidence")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class FindingContext:
    """What is known of a run, and what several findings ask of it."""

    devices: tuple[DeviceFigures, ...]
    """Those with steps."""
    matches: Matches
    stragglers: Stragglers
    timing: Timing | None = None
    fits: tuple[AlphaBeta, ...] = ()
    latencies: tuple[Latency, ...] = ()
    names: Sequence[str] = ()
    """Of each instance of the matches; none at all where they are not known."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The contents of ``run.json``."""
    pipelines: tuple[Pipeline, ...] = ()
    """Those that the devices form, by their places in the matches."""

    @cached_property
    def steps(self) -> int:
        """Give how many steps all devices have together: a sum over it is the mean of a step on a GPU."""
        return sum(len(device.timeline.windows) for device in self.devices)

    @cached_property
    def wall(self) -> float:
        """Give the mean wall time of a step in ns."""
        return sum(int(device.split.figures["wall_ns"].sum()) for device in self.devices) / self.steps

    def finding(
        self, kind: str, text: str, advice: str, total_ns: float, evidence: dict[str, Any] | None = None
    ) -> Finding:
        """Make a finding from what it costs in all steps of all devices."""
        cost = int(total_ns) // self.steps
        return Finding(kind, text, advice, cost, cost / self.wall if self.wall else 0.0, evidence or {})

    @cached_property
    def device_of_match(self) -> NDArray[np.int32]:
        """Give for each device of the matches which of ``devices`` it is, or -1."""
        own = {(d.timeline.rank, d.timeline.device): number for number, d in enumerate(self.devices)}
        return np.array([own.get(place, -1) for place in self.matches.device_ids], np.int32)

    @cached_property
    def waits(self) -> list[Int64]:
        """Give, for each collective of each device, how much of its exposed time is waiting for later ranks."""
        matches = self.matches
        waits = [np.zeros(len(exposures(device)), np.int64) for device in self.devices]
        if not len(matches):
            return waits
        length = matches.end_ns - matches.start_ns
        shortest = np.minimum.reduceat(length, matches.first[:-1])[matches.instance]
        wait = np.where(matches.synchronizing[matches.instance], length - shortest, 0)
        for number, own in enumerate(self.device_of_match.tolist()):
            if own >= 0:
                members = matches.device == number
                index = matches.index[members]
                waits[own][index] = np.minimum(wait[members], self.devices[own].shared_exposed()[index])
        return waits

    @cached_property
    def net_ns(self) -> Int64:
        """Give, per member of the matches, the exposed time that is not waiting for later ranks."""
        net = np.zeros(len(self.matches.device), np.int64)
        for number, own in enumerate(self.device_of_match.tolist()):
            if own >= 0:
                members = self.matches.device == number
                net[members] = (exposures(self.devices[own]) - self.waits[own])[self.matches.index[members]]
        return net

    def members(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Tell of each member of the matches whether its instance is chosen."""
        chosen: NDArray[np.bool_] = rows[self.matches.instance]
        return chosen

    def instances(self, device: int) -> Int64:
        """Give, for each collective of one of ``devices``, the instance that it belongs to, or -1."""
        found = np.full(len(exposures(self.devices[device])), -1, np.int64)
        for number in np.flatnonzero(self.device_of_match == device).tolist():
            members = self.matches.device == number
            found[self.matches.index[members]] = self.matches.instance[members]
        return found

    def name(self, instance: int) -> str:
        """Give what an instance is called, or nothing."""
        return self.names[instance] if 0 <= instance < len(self.names) else ""


def exposures(device: DeviceFigures) -> Int64:
    """Give the exposed time of each of a device's collectives."""
    return device.exposed_ns[device.timeline.collective >= 0]


def megabytes(size: float) -> str:
    """Write bytes for people: ``10.5 MB``, ``40 kB``."""
    if size >= 999_500:
        return f"{size / 1e6:,.1f} MB"
    return f"{size / 1e3:,.0f} kB" if size >= 1e3 else f"{size:.0f} bytes"


def milliseconds(ns: float) -> str:
    """Write a time for people: ``3.2 ms``."""
    value = float(ns) / 1e6
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.2f} ms"

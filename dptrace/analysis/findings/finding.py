"""A finding, and the context that all detectors share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.alpha_beta import AlphaBeta
from dptrace.analysis.cross_rank.delays.stragglers import Stragglers
from dptrace.analysis.cross_rank.exposed_wait import ExposedWait
from dptrace.analysis.cross_rank.latency import Latency
from dptrace.analysis.cross_rank.transfers import Timing
from dptrace.analysis.findings.gain import Gain
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import Int64, IntervalSet, covered, intersect
from dptrace.timeline.model import HostCause

if TYPE_CHECKING:
    from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline

__all__ = ["MIN_SHARE", "Finding", "FindingContext", "by_gain", "exposures"]

MIN_SHARE = 0.01
"""Smallest share of the step that a reported finding costs."""


class Finding(msgspec.Struct, frozen=True):
    """A cause of lost time."""

    kind: str
    """``straggler``, ``exposed_comm``, ``small_messages``, ``host_bound``, ``data_loading``, ``copies`` …"""
    text: str
    """A sentence that states the problem with its numbers."""
    advice: str
    """What to do about it."""
    cost_ns: int
    """Estimated time that a step would be shorter without it, on the mean GPU that it affects."""
    share: float
    """The cost as a share of the step's wall time, from 0 to 1."""
    evidence: dict[str, Any] = msgspec.field(default_factory=dict)
    """Where to look: step, rank, collective."""
    gain: Gain | None = None
    """What a step would gain without it; None where no replay was asked for."""

    @property
    def figure(self) -> tuple[int, float]:
        """What it is shown with: its gain, or where that is unknown its cost, in ns and as a share of a step."""
        gain = self.gain
        if gain is None or gain.shown_ns is None or gain.share is None:
            return self.cost_ns, self.share
        return gain.shown_ns, gain.share

    @property
    def is_minor(self) -> bool:
        """Whether a replay shows that a step would gain less than 1 % without it, and that it hides no other."""
        share = None if self.gain is None else self.gain.share
        return share is not None and share < MIN_SHARE and not self.evidence.get("hides_others")

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data, with what it would gain where that was asked for."""
        names = ("kind", "text", "advice", "cost_ns", "share", "evidence")
        own = {name: getattr(self, name) for name in names}
        return own if self.gain is None else own | self.gain.to_dict()


def by_gain(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by what a step would gain without each alone; by their cost where that is not known.

    What happened in one of several steps comes last: it may not happen again. A straggler stands before those that
    gain only after it.
    """
    listed = list(found)
    keys, after = [], Counter[bool]()
    for finding in reversed(listed):
        once, gain = bool(finding.evidence.get("once")), finding.gain
        figure = finding.cost_ns if gain is None or gain.ns is None else gain.ns
        if finding.kind == "straggler" and gain is not None and gain.ns is not None:
            figure = after[once] = max(after[once], figure, gain.next_ns or 0)
        keys.append((once, -figure))
    return tuple(finding for _, finding in sorted(zip(reversed(keys), listed, strict=True), key=lambda pair: pair[0]))


class FindingContext(msgspec.Struct, frozen=True, dict=True):
    """The data of a run, and the figures that several detectors use."""

    devices: tuple[DeviceFigures, ...]
    """The devices with steps."""
    matches: Matches
    stragglers: Stragglers
    timing: Timing | None = None
    fits: tuple[AlphaBeta, ...] = ()
    latencies: tuple[Latency, ...] = ()
    names: Sequence[str] = ()
    """Name of each instance of the matches; empty if unknown."""
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The contents of ``run.json``."""
    pipelines: tuple[Pipeline, ...] = ()
    """The pipelines, with indices into the devices of the matches."""
    exposed_waits: tuple[ExposedWait, ...] = ()
    """The waiting of each device of the matches; empty if not computed."""

    @property
    def on_cpu(self) -> bool:
        """Whether the run has no GPU, so that operators are its compute."""
        return all(device.timeline.on_cpu for device in self.devices)

    @cached_property
    def steps(self) -> int:
        """Number of steps of all devices together: a total divided by it is the mean per step and GPU."""
        return sum(len(device.timeline.windows) for device in self.devices)

    @cached_property
    def wall(self) -> float:
        """Mean wall time of a step in ns."""
        return sum(int(device.split.figures["wall_ns"].sum()) for device in self.devices) / self.steps

    def finding(
        self, kind: str, text: str, advice: str, total_ns: float, evidence: dict[str, Any] | None = None
    ) -> Finding:
        """Create a finding from its total cost in all steps of all devices."""
        cost = int(total_ns) // self.steps
        return Finding(kind, text, advice, cost, cost / self.wall if self.wall else 0.0, evidence or {})

    @cached_property
    def idle_ns(self) -> list[dict[str, Int64]]:
        """For each device, its idle time by cause and step that no finding claims yet."""
        return [{cause: values.copy() for cause, values in device.idle_causes.items()} for device in self.devices]

    @cached_property
    def claimed(self) -> list[list[tuple[int, int, int]]]:
        """For each device, starts and ends of segments, and how much of their idle time findings claimed, in ns."""
        return [[] for _ in self.devices]

    def claim_idle(self, number: int, cause: str, ns: int, step: int | None = None) -> int:
        """Take idle time of a device for a finding, so that no other finding counts it; return how much there was.

        Args:
            step: index of the step to take it from; None takes it from the steps with the most.
        """
        left = self.idle_ns[number][cause]
        taken = 0
        for k in np.argsort(-left, kind="stable").tolist() if step is None else [step]:
            part = min(int(left[k]), ns - taken)
            left[k] -= part
            taken += part
        return taken

    @cached_property
    def _host_gaps(self) -> dict[tuple[int, tuple[HostCause, ...]], IntervalSet]:
        return {}

    def host_gaps(self, number: int, causes: tuple[HostCause, ...]) -> IntervalSet:
        """Return the idle gaps of a device during which its host was busy with any of these causes."""
        key, device = (number, causes), self.devices[number]
        if key not in self._host_gaps:
            self._host_gaps[key] = intersect(device.host_gaps, device.timeline.host.intervals(*causes))
        return self._host_gaps[key]

    @cached_property
    def device_of_match(self) -> NDArray[np.int32]:
        """Index into ``devices`` of each device of the matches, or -1."""
        own = {(d.timeline.rank, d.timeline.device): number for number, d in enumerate(self.devices)}
        return np.array([own.get(place, -1) for place in self.matches.device_ids], np.int32)

    @cached_property
    def waits(self) -> list[Int64]:
        """For each collective of each device, the part of its exposed time that is wait for later ranks."""
        matches = self.matches
        waits = [np.zeros(len(exposures(device)), np.int64) for device in self.devices]
        if not len(matches):
            return waits
        length = matches.end_ns - matches.start_ns
        shortest = np.minimum.reduceat(length, matches.first[:-1])[matches.instance]
        known = matches.synchronizing & matches.complete
        wait = np.where(known[matches.instance], length - shortest, 0)
        for number, own in enumerate(self.device_of_match.tolist()):
            if own >= 0:
                members = matches.device == number
                index = matches.index[members]
                device, start = self.devices[own], matches.start_ns[members]
                within = covered(device.exposed, start + wait[members]) - covered(device.exposed, start)
                waits[own][index] = np.minimum(within, device.shared_exposed()[index])
        return waits

    def unmatched_ns(self, kind: str) -> int:
        """Return the exposed time of incomplete collectives of a kind, over all devices."""
        found = (wait.by_kind.get(kind) for wait in self.exposed_waits)
        return sum(int(figures.unmatched_ns.sum()) for figures in found if figures)

    def waited_ns(self, kind: str, number: int, rows: Int64) -> int:
        """Return how long one of ``devices`` waited in exposed communication of a kind; *rows* are its collectives."""
        of_match = np.flatnonzero(self.device_of_match == number)
        if not self.exposed_waits or not len(of_match):
            return int(self.waits[number][rows].sum())
        figures = self.exposed_waits[int(of_match[0])].by_kind.get(kind)
        return int(figures.wait_ns.sum()) if figures else 0

    @cached_property
    def net_ns(self) -> Int64:
        """Per member of the matches, the exposed time without the wait for later ranks."""
        net = np.zeros(len(self.matches.device), np.int64)
        for number, own in enumerate(self.device_of_match.tolist()):
            if own >= 0:
                members = self.matches.device == number
                net[members] = (exposures(self.devices[own]) - self.waits[own])[self.matches.index[members]]
        return net

    def members(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return for each member of the matches whether its instance is selected."""
        chosen: NDArray[np.bool_] = rows[self.matches.instance]
        return chosen

    def instances(self, device: int) -> Int64:
        """Return the instance of each collective of one of ``devices``, or -1."""
        found = np.full(len(exposures(self.devices[device])), -1, np.int64)
        for number in np.flatnonzero(self.device_of_match == device).tolist():
            members = self.matches.device == number
            found[self.matches.index[members]] = self.matches.instance[members]
        return found

    def name(self, instance: int) -> str:
        """Return the name of an instance, or an empty string."""
        return self.names[instance] if 0 <= instance < len(self.names) else ""


def exposures(device: DeviceFigures) -> Int64:
    """Return the exposed time of each of a device's collectives."""
    return device.exposed_ns[device.timeline.collective >= 0]

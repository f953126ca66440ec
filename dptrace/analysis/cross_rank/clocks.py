"""The ranks' clocks against each other, and whether a figure is larger than what they leave open."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.message_bounds import connect_by_messages
from dptrace.analysis.cross_rank.shared_clock import shared_clock_devices, unify_shared_clocks
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.matching.offsets import Offset, estimate_offsets
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import Int64

__all__ = ["UNKNOWN_NS", "Clocks", "estimate"]

UNKNOWN_NS = -1
"""Uncertainty between two clocks that nothing connects."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Of each device, how far its clock is ahead of the first one's; one entry per device in each column."""

    offset_ns: Int64
    """At ``at_ns``; 0 where unknown."""
    drift_ppm: NDArray[np.float64]
    """Change of it in millionths of the time; 0 unless it is beyond doubt."""
    at_ns: Int64
    uncertainty_ns: Int64
    """Against the reference; 0 of the reference itself."""
    collectives: NDArray[np.int32]
    """Of how many collectives the offset is the median; of the fewest on the way where others are between."""
    reference: NDArray[np.int32]
    """Which device it is compared with; itself where nothing connects it with an earlier one."""
    corrected: NDArray[np.bool_]
    """Whether the clock is off by more than the uncertainty: others are left as they are."""
    misfit: NDArray[np.bool_]
    """Whether its collectives end so differently from the others' that no clock explains it: they are not the same."""
    notes: tuple[str, ...]
    """What is to be known of the clocks, a sentence each."""

    def align(self, device: int, times: Int64) -> Int64:
        """Bring times that a device's clock shows to that of its reference, in ns; unchanged where it agrees."""
        if not self.corrected[device]:
            return times
        drift = self.drift_ppm[device] * 1e-6 * (times - self.at_ns[device])
        aligned: Int64 = times - self.offset_ns[device] - np.rint(drift).astype(np.int64)
        return aligned

    def between(self, first: NDArray[np.int32], second: NDArray[np.int32]) -> Int64:
        """Give how well the times of pairs of devices can be compared, in ns; UNKNOWN_NS where not at all."""
        apart = self.uncertainty_ns[first] + self.uncertainty_ns[second]
        connected = self.reference[first] == self.reference[second]
        return np.where(first == second, 0, np.where(connected, apart, UNKNOWN_NS))

    def resolve(self, figure_ns: int, first: int, second: int) -> int | None:
        """Give a difference between two devices' times, or nothing when their clocks are not told as closely."""
        open_ns = int(self.between(np.array([first], np.int32), np.array([second], np.int32))[0])
        return figure_ns if open_ns != UNKNOWN_NS and abs(figure_ns) > open_ns else None


def estimate(matches: Matches, devices: Sequence[DeviceFigures], metadata: Mapping[str, Any] | None = None) -> Clocks:
    """Compare the clocks of a run's devices.

    Collectives that no rank can leave before all have come end on all ranks nearly together, however late one came:
    the offset is the median difference of those ends. Devices that share no such collective are compared through
    others, with the uncertainties added; those that share none at all, by the messages that they sent each other.
    Recordings of CPUs on one machine have one clock.

    Args:
        info: the contents of ``run.json``, which tells where each rank ran.
    """
    together = matches.synchronizing[matches.instance]
    offsets, reference = estimate_offsets(
        matches.instance[together],
        matches.device[together],
        matches.start_ns[together],
        matches.end_ns[together],
        len(devices),
    )
    shared = shared_clock_devices(devices, metadata or {})
    unify_shared_clocks(offsets, reference, shared)
    misfits = [i for i, other in enumerate(reference) if other != i and _misfit(offsets[i]) and shared[i] == i]
    for i in misfits:
        offsets[i], reference[i] = replace(offsets[i], ahead_ns=0.0, drift=0.0, uncertainty_ns=0.0, count=0), i
    by_messages = connect_by_messages(matches, devices, offsets, reference, misfits)
    ahead = np.array([offset.ahead_ns for offset in offsets])
    uncertainty = np.array([offset.uncertainty_ns for offset in offsets])
    drift = np.array([offset.drift for offset in offsets])
    return Clocks(
        offset_ns=np.rint(ahead).astype(np.int64),
        drift_ppm=drift * 1e6,
        at_ns=np.array([offset.at_ns for offset in offsets], np.int64),
        uncertainty_ns=np.ceil(uncertainty).astype(np.int64),
        collectives=np.array([offset.count for offset in offsets], np.int32),
        reference=np.array(reference, np.int32),
        corrected=(np.abs(ahead) > uncertainty) | (drift != 0),
        misfit=np.isin(np.arange(len(devices)), misfits),
        notes=(
            *_shared_note(shared),
            *_notes(offsets, reference, [device.timeline.rank for device in devices], misfits, shared, by_messages),
        ),
    )


def _shared_note(shared: Sequence[int]) -> tuple[str, ...]:
    if len(shared) > 1 and not any(shared):
        return ("The ranks ran on the CPUs of one machine: their clocks are one.",)
    if any(other != i for i, other in enumerate(shared)):
        return ("Ranks that ran on the CPUs of one machine have one clock.",)
    return ()


_DRIFT = 1e-3
"""No clock of a computer drifts by a thousandth: those of the field by less than a ten-thousandth."""
_APART_NS = 20e6
_ENOUGH = 8
"""Of so many collectives the ends scatter by less than 20 ms, if they are the same ones."""


def _misfit(offset: Offset) -> bool:
    scattered = offset.uncertainty_ns > _APART_NS and offset.count >= _ENOUGH
    return abs(offset.drift) > _DRIFT or scattered


def _time(ns: float) -> str:
    """Say a time as people do: µs below a millisecond."""
    return f"{ns / 1e6:,.1f} ms" if abs(ns) >= 1e6 else f"{ns / 1e3:,.0f} µs"


def _notes(
    offsets: Sequence[Offset],
    reference: Sequence[int],
    ranks: Sequence[int],
    misfits: Sequence[int],
    shared: Sequence[int],
    by_messages: Collection[int],
) -> tuple[str, ...]:
    compared = [i for i, other in enumerate(reference) if other != i and shared[i] == i]
    alone = [i for i, other in enumerate(reference) if other == i and i not in reference[:i] and i > 0]
    alone = [i for i in alone if i not in misfits]
    off = [i for i in compared if abs(offsets[i].ahead_ns) > offsets[i].uncertainty_ns or offsets[i].drift]
    notes = []
    if compared and not off:
        worst = max(offsets[i].uncertainty_ns for i in compared)
        notes.append(
            f"The ranks' clocks agree within {_time(worst)}, as closely as can be told; times are left as they are."
        )
    for i in off:
        source = "messages between them" if i in by_messages else f"{offsets[i].count:,} collectives"
        word = "ahead of" if offsets[i].ahead_ns > 0 else "behind"
        drifts = f", drifting by {offsets[i].drift * 1e6:,.1f} ppm" if offsets[i].drift else ""
        notes.append(
            f"Rank {ranks[i]}'s clock is {_time(abs(offsets[i].ahead_ns))} {word} rank {ranks[reference[i]]}'s "
            f"(± {_time(offsets[i].uncertainty_ns)}, from {source}{drifts})."
        )
    notes += [
        f"Rank {ranks[i]}'s collectives do not fit the others': no clock is as far off as their ends are apart. Is it "
        "of another job, or are its steps numbered otherwise? It is not compared with them."
        for i in misfits
    ]
    if alone:
        listed = ", ".join(str(ranks[i]) for i in alone[:8]) + (f" and {len(alone) - 8} more" if len(alone) > 8 else "")
        notes.append(
            f"No collective connects {'rank' if len(alone) == 1 else 'ranks'} {listed} with rank {ranks[0]}: "
            "how far their clocks are apart is unknown."
        )
    return tuple(notes)

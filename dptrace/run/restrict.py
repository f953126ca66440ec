"""The analysis of some of a run's ranks, from that of all: who waits for whom does not depend on who is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks import Clocks
from dptrace.analysis.cross_rank.latency import Latency
from dptrace.analysis.cross_rank.stragglers import Stragglers
from dptrace.analysis.cross_rank.transfers import Timing
from dptrace.analysis.findings.detect import Finding
from dptrace.analysis.matching.match import Matches
from dptrace.core.intervals import Int64
from dptrace.run.cross_rank import CrossRankAnalysis

__all__ = ["restricted"]


def restricted(whole: CrossRankAnalysis, numbers: Sequence[int]) -> CrossRankAnalysis:
    """Return the analysis with some of its devices; figures and findings remain those of the whole run.

    Args:
        numbers: indices of the devices to keep, ascending.
    """
    kept = _Kept(whole.matches, numbers)
    return replace(
        whole,
        devices=tuple(whole.devices[number] for number in numbers),
        matches=kept.matches(),
        clocks=kept.clocks(whole.clocks),
        timing=kept.timing(whole.timing),
        exposed_waits=tuple(whole.exposed_waits[number] for number in numbers),
        buckets=replace(whole.buckets, bucket=whole.buckets.bucket[kept.instances]) if whole.buckets else None,
        names=tuple(name for name, stays in zip(whole.names, kept.instances.tolist(), strict=True) if stays),
        latencies=tuple(latency for old in whole.latencies if len((latency := kept.latency(old)).instances)),
        stragglers=kept.stragglers(whole.stragglers),
        offsets=tuple(row for number, row in enumerate(whole.clock_rows()) if number in numbers),
        findings=tuple(map(kept.finding, whole.findings)),
    )


class _Kept:
    """What stays of the matches of all devices, and under which number."""

    def __init__(self, matches: Matches, numbers: Sequence[int]) -> None:
        self._whole, self._numbers = matches, np.array(numbers, np.int64)
        self._device = np.full(len(matches.device_ids) + 1, -1, np.int32)  # -1 stays -1
        self._device[self._numbers] = np.arange(len(numbers))
        self.members: NDArray[np.bool_] = self._device[matches.device] >= 0
        count = np.add.reduceat(self.members.astype(np.int64), matches.first[:-1]) if len(matches) else np.empty(0, int)
        self.instances: NDArray[np.bool_] = count > 0
        self._count = count[self.instances]
        self._instance = np.where(self.instances, np.cumsum(self.instances) - 1, -1)

    def matches(self) -> Matches:
        whole, rows, members = self._whole, self.instances, self.members
        device_notes = [(int(self._device[device]), note) for device, note in whole.device_notes]
        columns = ("kind", "bytes", "group", "step", "phase", "synchronizing", "size", "complete")
        return replace(
            whole,
            device_ids=tuple(whole.device_ids[number] for number in self._numbers.tolist()),
            collectives=tuple(c for c, stays in zip(whole.collectives, rows.tolist(), strict=True) if stays),
            **{column: getattr(whole, column)[rows] for column in columns},
            first=np.concatenate((np.zeros(1, np.int64), np.cumsum(self._count))),
            device=self._device[whole.device[members]],
            **{column: getattr(whole, column)[members] for column in ("index", "start_ns", "end_ns")},
            unmatched=tuple(whole.unmatched[number] for number in self._numbers.tolist()),
            device_notes=tuple((device, note) for device, note in device_notes if device >= 0),
        )

    def clocks(self, whole: Clocks) -> Clocks:
        """Return the kept clocks; one whose reference is not kept has itself as reference, with the same offset."""
        reference = self._device[whole.reference[self._numbers]]
        columns = ("offset_ns", "drift_ppm", "at_ns", "uncertainty_ns", "collectives", "corrected", "misfit")
        return replace(
            whole,
            **{column: getattr(whole, column)[self._numbers] for column in columns},
            reference=np.where(reference >= 0, reference, np.arange(len(reference), dtype=np.int32)),
        )

    def timing(self, whole: Timing) -> Timing:
        rows, members = self.instances, self.members
        return replace(
            whole,
            **{column: getattr(whole, column)[rows] for column in ("transfer_ns", "algbw", "busbw")},
            **{column: getattr(whole, column)[members] for column in ("wait_ns", "late_ns", "late_known")},
            last=self._device[whole.last[rows]],
        )

    def latency(self, whole: Latency) -> Latency:
        chosen = self.instances[whole.instances]
        instances: Int64 = self._instance[whole.instances[chosen]]
        return replace(whole, instances=instances, transfer_ns=whole.transfer_ns[chosen], slow=whole.slow[chosen])

    def stragglers(self, whole: Stragglers) -> Stragglers:
        """Return the late arrivals of the kept devices, with their delays."""
        rows = self._device[whole.device] >= 0
        used, delay = np.unique(whole.delay[rows], return_inverse=True)
        delays = [whole.delays[number] for number in used.tolist()]
        return Stragglers(
            instance=self._instance[whole.instance[rows]],
            device=self._device[whole.device[rows]],
            late_ns=whole.late_ns[rows],
            cost_ns=whole.cost_ns[rows],
            cause=tuple(cause for cause, stays in zip(whole.cause, rows.tolist(), strict=True) if stays),
            delay=delay,
            delays=tuple(
                replace(
                    delay,
                    device=int(self._device[delay.device]),
                    waiting=tuple(int(self._device[d]) for d in delay.waiting if self._device[d] >= 0),
                    collectives=[int(self._instance[i]) for i in delay.collectives],
                )
                for delay in delays
            ),
        )

    def finding(self, whole: Finding) -> Finding:
        """Let the evidence name the collective by its new number; None if it is not kept."""
        if not isinstance(instance := whole.evidence.get("instance"), int):
            return whole
        moved = int(self._instance[instance])
        return replace(whole, evidence=whole.evidence | {"instance": moved if moved >= 0 else None})

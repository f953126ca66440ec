"""Distribution of the transfer times of comparable collectives, and which of them were slow."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.transfers import Timing
from dptrace.analysis.matching.match import Matches
from dptrace.core.intervals import Int64, median
from dptrace.timeline.model import Phase

__all__ = ["UNKNOWN_PHASE", "Latency", "latencies", "merge_groups", "with_phase_in_name"]

UNKNOWN_PHASE = -1
_FEWEST = 5
"""Fewest instances among which slow ones are identified."""
_ALIKE = 1.25
"""Largest ratio of sizes that should take equally long."""


class Latency(msgspec.Struct, frozen=True):
    """Instances that should take equally long: same kind, group and size, or same name and phase."""

    name: str
    """Their name besides the kind: ``bucket 0``, ``FSDP::all_gather (layers.3)``; may be empty."""
    kind: str
    group: int
    """Index into the matches' groups."""
    bytes: int
    """Message bytes; the median if the sizes vary, as those of tokens sent to experts do."""
    instances: Int64
    """Indices into the matches, in order of time."""
    transfer_ns: Int64
    """Of each instance."""
    wait_ns: float | None
    """Mean wait of a rank in one of them; None for a kind in which ranks do not wait for each other."""
    busbw: float | None
    """Median bus bandwidth in bytes per second; None if the bytes are unknown."""
    slow: NDArray[np.bool_]
    """Of each instance: whether it took over 1.5 times the median, and five median deviations above it."""
    phase: int = UNKNOWN_PHASE
    """The phase that launched named instances, a ``timeline.model.Phase``; UNKNOWN_PHASE without a name."""

    def quantile(self, share: float) -> int:
        """Return the transfer time in ns that this share of the instances does not exceed."""
        return int(np.quantile(self.transfer_ns, share, method="higher"))

    def histogram(self, bins: int = 10) -> tuple[NDArray[np.int64], Int64]:
        """Count the instances in equal bins of transfer time; return the counts and the *bins* + 1 edges in ns."""
        counts, edges = np.histogram(self.transfer_ns, bins)
        return counts.astype(np.int64), np.rint(edges).astype(np.int64)


def latencies(matches: Matches, timing: Timing, names: Sequence[str] | None = None) -> tuple[Latency, ...]:
    """Group comparable collectives, sorted by total transfer time, longest first.

    Instances with missing ranks are left out, since their wait is unknown, and so are groups of one rank, which send
    nothing.

    Args:
        names: one per instance of the matches; instances with different names are not grouped.
    """
    instance_names = np.array(names if names is not None else [""] * len(matches), object)
    chosen = np.flatnonzero(matches.complete & (matches.size > 1))
    kinds = np.unique(matches.kind[chosen].astype(str), return_inverse=True)[1]
    called = np.unique(instance_names[chosen].astype(str), return_inverse=True)[1]
    named = instance_names[chosen] != ""
    # Named instances may vary in size, and one name may occur in forward and backward: FSDP gathers a unit in both.
    size = np.where(named, 0, matches.bytes[chosen])
    phase = np.where(named, matches.phase[chosen].astype(np.int64), UNKNOWN_PHASE)
    keys = np.stack((kinds, matches.group[chosen], size, called, phase), axis=1).astype(np.int64)
    which = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.argsort(which, kind="stable")
    parts = np.split(chosen[order], np.flatnonzero(np.diff(which[order])) + 1) if len(chosen) else []
    groups = [_latency(matches, timing, part, str(instance_names[part[0]])) for part in parts]
    return tuple(sorted(groups, key=lambda latency: -int(latency.transfer_ns.sum())))


def merge_groups(groups: Sequence[Latency], matches: Matches, timing: Timing) -> tuple[Latency, ...]:
    """Merge entries that differ only in their group, and the layers of a label whose sizes vary, longest first.

    Groups are equivalent if they have the same purpose (``mesh_tp`` of each replica) and number of ranks.
    """
    varied = {_family(latency.name) for latency in groups if latency.name and np.ptp(matches.bytes[latency.instances])}
    mergeable: dict[tuple[object, ...], list[Latency]] = {}
    for latency in groups:
        group = matches.groups[latency.group]
        purpose = (group.description, group.size) if group.description else latency.group
        name, size = latency.name, latency.bytes
        if _family(name) in varied:  # the label without its layer: MoE::dispatch of MoE::dispatch (1.mlp)
            name, size = name.partition(" (")[0], 0
        mergeable.setdefault((latency.kind, name, size, latency.phase, purpose), []).append(latency)
    rows = []
    for (_, merged_name, *_), parts in mergeable.items():
        if len(parts) == 1:
            rows.append(parts[0])
            continue
        instances = np.concatenate([part.instances for part in parts])
        slow = np.concatenate([part.slow for part in parts])
        order = np.argsort(instances, kind="stable")
        rows.append(replace(_latency(matches, timing, instances[order], str(merged_name)), slow=slow[order]))
    return tuple(sorted(rows, key=lambda latency: -int(latency.transfer_ns.sum())))


def with_phase_in_name(groups: Sequence[Latency]) -> tuple[Latency, ...]:
    """Add the phase to names that occur in several phases."""
    phases: dict[tuple[str, str], set[int]] = {}
    for latency in groups:
        phases.setdefault((latency.kind, latency.name), set()).add(latency.phase)
    return tuple(
        replace(latency, name=f"{latency.name}, {Phase(latency.phase).name.lower()}")
        if len(phases[latency.kind, latency.name]) > 1
        else latency
        for latency in groups
    )


def _family(name: str) -> str:
    """Return the prefix of a trainer's labels: ``MoE``."""
    return name.partition("::")[0]


def _latency(matches: Matches, timing: Timing, part: Int64, name: str) -> Latency:
    one = part[0]
    transfer = timing.transfer_ns[part]
    middle = median(transfer)
    deviation = median(np.abs(transfer - middle))
    # With unknown sizes, larger messages would seem slow.
    sizes = matches.bytes[part]
    comparable = len(part) >= _FEWEST and (sizes.min() > 0 or bool(name)) and sizes.max() <= _ALIKE * sizes.min()
    slow = (transfer > middle + 5 * deviation) & (transfer > 1.5 * middle) & comparable
    size = np.diff(matches.first)[part]
    waited = (np.add.reduceat(timing.wait_ns, matches.first[:-1])[part] / size)[matches.synchronizing[part]]
    rates = timing.busbw[part][~np.isnan(timing.busbw[part])]
    return Latency(
        name=name,
        kind=str(matches.kind[one]),
        group=int(matches.group[one]),
        bytes=int(median(sizes)),
        instances=part,
        transfer_ns=transfer,
        wait_ns=float(waited.mean()) if len(waited) else None,
        busbw=float(median(rates)) if len(rates) else None,
        slow=slow,
        phase=int(matches.phase[one]) if name else UNKNOWN_PHASE,
    )

"""How long like collectives took: their distribution, and which of them were slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.transfers import Timing
from dptrace.analysis.matching.match import Matches
from dptrace.core.intervals import Int64
from dptrace.timeline.model import Phase

__all__ = ["UNKNOWN_PHASE", "Latency", "latencies", "merge_groups", "with_phase_in_name"]

UNKNOWN_PHASE = -1
_FEWEST = 5
"""Of fewer, none can be told to be slow."""
_ALIKE = 1.25
"""Sizes that differ by no more than this factor should take equally long."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Instances that should take equally long: of one kind, group and size, or of one name and phase."""

    name: str
    """What they are called beside their kind: ``bucket 0``, ``FSDP::all_gather (layers.3)``; or nothing."""
    kind: str
    group: int
    """Index into the matches' groups."""
    bytes: int
    """Their median, where a label's sizes vary, as those of tokens on their way to experts do."""
    instances: Int64
    """Indices into the matches, in order of time."""
    transfer_ns: Int64
    """Of each."""
    wait_ns: float
    """How long a rank waited in one of them, on average."""
    busbw: float | None
    """Median bus bandwidth in bytes per second; nothing where the bytes are not known."""
    slow: NDArray[np.bool_]
    """Of each: whether it took over 1.5 times the median, and over five times the usual deviation more."""
    phase: int = UNKNOWN_PHASE
    """What those with a name were launched for, a ``model.Phase``; UNTOLD_PHASE of those without."""

    def quantile(self, share: float) -> int:
        """Give the transfer time in ns that this share of the instances do not exceed."""
        return int(np.quantile(self.transfer_ns, share, method="higher"))

    def histogram(self, bins: int = 10) -> tuple[NDArray[np.int64], Int64]:
        """Count the instances in ranges of transfer time of equal width; give counts and edges in ns, one more."""
        counts, edges = np.histogram(self.transfer_ns, bins)
        return counts.astype(np.int64), np.rint(edges).astype(np.int64)


def latencies(matches: Matches, timing: Timing, names: Sequence[str] | None = None) -> tuple[Latency, ...]:
    """Put like collectives together, those that took longest in all first.

    Instances of which not all ranks are here are left out, since how much of them was waiting is not known, and those
    of groups of one rank, in which nothing is sent.

    Args:
        names: what tells instances apart beside kind, group and size: one per instance of the matches.
    """
    instance_names = np.array(names if names is not None else [""] * len(matches), object)
    chosen = np.flatnonzero(matches.complete & (matches.size > 1))
    kinds = np.unique(matches.kind[chosen].astype(str), return_inverse=True)[1]
    called = np.unique(instance_names[chosen].astype(str), return_inverse=True)[1]
    named = instance_names[chosen] != ""
    # What has a name may be of any size, and the same in forward and in backward: FSDP gathers a unit in both.
    size = np.where(named, 0, matches.bytes[chosen])
    phase = np.where(named, matches.phase[chosen].astype(np.int64), UNKNOWN_PHASE)
    keys = np.stack((kinds, matches.group[chosen], size, called, phase), axis=1).astype(np.int64)
    which = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.argsort(which, kind="stable")
    parts = np.split(chosen[order], np.flatnonzero(np.diff(which[order])) + 1) if len(chosen) else []
    found = [_latency(matches, timing, part, str(instance_names[part[0]])) for part in parts]
    return tuple(sorted(found, key=lambda latency: -int(latency.transfer_ns.sum())))


def merge_groups(found: Sequence[Latency], matches: Matches, timing: Timing) -> tuple[Latency, ...]:
    """Put together what differs in its group alone, and the layers of what varies in size, the longest first.

    Groups are alike that serve one purpose (``mesh_tp`` of each replica) and have as many ranks.
    """
    varied = {_family(one.name) for one in found if one.name and np.ptp(matches.bytes[one.instances])}
    alike: dict[tuple[object, ...], list[Latency]] = {}
    for one in found:
        group = matches.groups[one.group]
        purpose = (group.description, group.size) if group.description else one.group
        # A label without its layer: MoE::dispatch of MoE::dispatch (1.mlp).
        called, size = (one.name.partition(" (")[0], 0) if _family(one.name) in varied else (one.name, one.bytes)
        alike.setdefault((one.kind, called, size, one.phase, purpose), []).append(one)
    rows = []
    for (_, name, *_), parts in alike.items():
        if len(parts) == 1:
            rows.append(parts[0])
            continue
        instances = np.concatenate([part.instances for part in parts])
        slow = np.concatenate([part.slow for part in parts])
        order = np.argsort(instances, kind="stable")
        rows.append(replace(_latency(matches, timing, instances[order], str(name)), slow=slow[order]))
    return tuple(sorted(rows, key=lambda latency: -int(latency.transfer_ns.sum())))


def with_phase_in_name(found: Sequence[Latency]) -> tuple[Latency, ...]:
    """Add the phase to the names of those that have one name in several."""
    phases: dict[tuple[str, str], set[int]] = {}
    for one in found:
        phases.setdefault((one.kind, one.name), set()).add(one.phase)
    return tuple(
        replace(one, name=f"{one.name}, {Phase(one.phase).name.lower()}")
        if len(phases[one.kind, one.name]) > 1
        else one
        for one in found
    )


def _family(name: str) -> str:
    """Give what labels of one trainer begin with: ``MoE``."""
    return name.partition("::")[0]


def _latency(matches: Matches, timing: Timing, part: Int64, name: str) -> Latency:
    one = part[0]
    transfer = timing.transfer_ns[part]
    middle = np.median(transfer)
    deviation = np.median(np.abs(transfer - middle))
    # Of unknown sizes, the larger would seem slow.
    sizes = matches.bytes[part]
    alike = len(part) >= _FEWEST and (sizes.min() > 0 or bool(name)) and sizes.max() <= _ALIKE * sizes.min()
    slow = (transfer > middle + 5 * deviation) & (transfer > 1.5 * middle) & alike
    size = np.diff(matches.first)[part]
    waited = np.add.reduceat(timing.wait_ns, matches.first[:-1])[part] / size
    rates = timing.busbw[part][~np.isnan(timing.busbw[part])]
    return Latency(
        name=name,
        kind=str(matches.kind[one]),
        group=int(matches.group[one]),
        bytes=int(np.median(sizes)),
        instances=part,
        transfer_ns=transfer,
        wait_ns=float(waited.mean()),
        busbw=float(np.median(rates)) if len(rates) else None,
        slow=slow,
        phase=int(matches.phase[one]) if name else UNKNOWN_PHASE,
    )

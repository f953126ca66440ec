"""How long like collectives took: their distribution, and which of them were slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dptrace.intervals import Int64
from dptrace.ranks.match import Matches
from dptrace.ranks.timing import Timing

__all__ = ["Latency", "latencies"]

_FEWEST = 5
"""Of fewer, none can be told to be slow."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Instances that should take equally long: of one kind, group and size, or one DDP bucket over the steps."""

    name: str
    """What they are called beside their kind: ``bucket 0``, ``FSDP::all_gather (layers.3)``; or nothing."""
    kind: str
    group: int
    """Index into the matches' groups."""
    bytes: int
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

    def quantile(self, share: float) -> int:
        """Give the transfer time in ns that this share of the instances do not exceed."""
        return int(np.quantile(self.transfer_ns, share, method="higher"))

    def histogram(self, bins: int = 10) -> tuple[NDArray[np.int64], Int64]:
        """Count the instances in ranges of transfer time of equal width; give counts and edges in ns, one more."""
        counts, edges = np.histogram(self.transfer_ns, bins)
        return counts.astype(np.int64), np.rint(edges).astype(np.int64)


def latencies(matches: Matches, timing: Timing, names: Sequence[str] | None = None) -> tuple[Latency, ...]:
    """Put like collectives together, those that took longest in all first.

    Instances of which not all ranks are here are left out, since how much of them was waiting is not known.

    Args:
        names: what tells instances apart beside kind, group and size: one per instance of the matches.
    """
    told = np.array(names if names is not None else [""] * len(matches), object)
    chosen = np.flatnonzero(matches.complete)
    kinds = np.unique(matches.kind[chosen].astype(str), return_inverse=True)[1]
    called = np.unique(told[chosen].astype(str), return_inverse=True)[1]
    keys = np.stack((kinds, matches.group[chosen], matches.bytes[chosen], called), axis=1).astype(np.int64)
    which = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.argsort(which, kind="stable")
    parts = np.split(chosen[order], np.flatnonzero(np.diff(which[order])) + 1) if len(chosen) else []
    found = [_latency(matches, timing, part, str(told[part[0]])) for part in parts]
    return tuple(sorted(found, key=lambda latency: -int(latency.transfer_ns.sum())))


def _latency(matches: Matches, timing: Timing, part: Int64, name: str) -> Latency:
    one = part[0]
    transfer = timing.transfer_ns[part]
    middle = np.median(transfer)
    deviation = np.median(np.abs(transfer - middle))
    # Of unknown sizes, the larger would seem slow.
    alike = len(part) >= _FEWEST and (matches.bytes[one] > 0 or bool(name))
    slow = (transfer > middle + 5 * deviation) & (transfer > 1.5 * middle) & alike
    size = np.diff(matches.first)[part]
    waited = np.add.reduceat(timing.wait_ns, matches.first[:-1])[part] / size
    rates = timing.busbw[part][~np.isnan(timing.busbw[part])]
    return Latency(
        name=name,
        kind=str(matches.kind[one]),
        group=int(matches.group[one]),
        bytes=int(matches.bytes[one]),
        instances=part,
        transfer_ns=transfer,
        wait_ns=float(waited.mean()),
        busbw=float(np.median(rates)) if len(rates) else None,
        slow=slow,
    )

"""Blocks of memory: which free belongs to which allocation."""

from __future__ import annotations

import numpy as np

from dptrace.analysis.memory.usage import NOWHERE, Blocks
from dptrace.readers.trace import TOTAL_UNKNOWN, MemoryEvents

__all__ = ["blocks_of", "continued_totals"]


def blocks_of(events: MemoryEvents) -> Blocks:
    """Pair the allocations and frees of one device by their addresses, in the order of their time.

    An allocation whose free is missing has none; a free without an allocation is of a block that was there before.
    """
    # Sorted by address and then time, a free lies right behind its allocation:
    #     +8 at a, -8 at a, +4 at a, +2 at b   →   blocks (+8 -8), (+4), (+2)
    order = np.lexsort((np.arange(len(events)), events.address))
    address, size = events.address[order], events.bytes[order]
    paired = (address[:-1] == address[1:]) & (size[:-1] > 0) & (size[:-1] == -size[1:])
    begins = size > 0
    ends_alone = (size < 0) & ~np.append(False, paired)[: len(size)]
    freed = np.full(len(order), NOWHERE, np.int64)
    freed[np.flatnonzero(paired)] = order[1:][paired]
    born = np.concatenate((order[begins], np.full(int(ends_alone.sum()), NOWHERE, np.int64)))
    freed = np.concatenate((freed[begins], order[ends_alone]))
    sizes = np.abs(events.bytes[np.where(born >= 0, born, freed)])
    by_time = np.argsort(np.where(born >= 0, born, freed), kind="stable")
    return Blocks(sizes[by_time], born[by_time], freed[by_time])


def continued_totals(events: MemoryEvents) -> tuple[MemoryEvents, int]:
    """Return a device's events with totals everywhere, and how often a total does not continue the one before.

    Files of torch before 1.11 have none: there, the totals are sums from 0.
    """
    if (events.allocated == TOTAL_UNKNOWN).any():
        from msgspec.structs import replace

        return replace(events, allocated=np.cumsum(events.bytes)), 0
    return events, int((np.diff(events.allocated) != events.bytes[1:]).sum())

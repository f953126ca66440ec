"""What a block of memory is for, as far as its lifetime and its origin show it.

::

    forward │ backward │ step │ forward │ backward │ step
       ├──── activation ─┤ │
       ├ ┤ temporary   ├─ gradient ─────┤ │        │
                          │  ├ optimizer state ─────────── …
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.memory.usage import NOWHERE, Blocks, MemoryKind, Origins
from dptrace.core.intervals import Int64
from dptrace.readers.trace import MemoryEvents
from dptrace.timeline.model import Phase

__all__ = ["kinds_of"]

_NEVER = np.iinfo(np.int64).max


def kinds_of(
    blocks: Blocks, events: MemoryEvents, origins: Origins, backward: Int64, optimizer: Int64
) -> NDArray[np.uint8]:
    """Return the :class:`MemoryKind` of each block. The first that holds counts:

    1. before recording: no allocation is recorded;
    2. gradient: allocated in backward, alive when an optimizer's step begins;
    3. optimizer state: allocated in the optimizer's phase, never freed;
    4. communication buffer: allocated within a collective's call;
    5. temporary: freed in the step and phase that allocated it;
    6. activation: allocated in forward, alive when a backward function begins, freed within the next step;
    7. other.

    Args:
        events, origins: those of the blocks' device.
        backward: when each backward function began, ascending, in ns.
        optimizer: when each step of an optimizer began, in the same way.
    """
    born, freed = blocks.born, blocks.freed
    known, kept = born != NOWHERE, freed == NOWHERE
    birth = events.time_ns[born]
    death = np.where(kept, _NEVER, events.time_ns[freed])
    phase = origins.phase[born]
    together = ~kept & (phase == origins.phase[freed]) & (origins.step[born] == origins.step[freed])
    last = origins.step.max(initial=0)
    outlives = np.where(kept, last, origins.step[freed]) - origins.step[born] > 1
    conditions = [
        ~known,
        (phase == Phase.BACKWARD) & _within(optimizer, birth, death),
        (phase == Phase.OPTIMIZER) & kept,
        origins.communicates[born],
        together,
        (phase == Phase.FORWARD) & _within(backward, birth, death) & ~outlives,
    ]
    kinds = (
        MemoryKind.PREEXISTING,
        MemoryKind.GRADIENT,
        MemoryKind.OPTIMIZER_STATE,
        MemoryKind.COMMUNICATION,
        MemoryKind.TEMPORARY,
        MemoryKind.ACTIVATION,
    )
    return np.select(conditions, [np.uint8(kind) for kind in kinds], np.uint8(MemoryKind.OTHER)).astype(np.uint8)


def _within(times: Int64, birth: Int64, death: Int64) -> NDArray[np.bool_]:
    """Return for each block whether one of *times* (ascending) lies within its life."""
    found: NDArray[np.bool_] = np.searchsorted(times, death, side="left") > np.searchsorted(times, birth, side="right")
    return found

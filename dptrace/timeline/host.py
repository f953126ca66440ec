"""What the host did at each instant: pieces of time with one label each."""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import EMPTY, Int64, IntervalSet, union

__all__ = ["NO_ACTIVITY", "HostActivity", "HostCause", "HostLabel"]


class HostCause(IntEnum):
    """What the host was busy with."""

    NOTHING_RECORDED = 0
    DATA_LOADING = 1
    ALLOCATOR = 2
    SYNCHRONIZING = 3
    OPERATOR = 4
    PYTHON = 5
    """Code outside operators, inside an annotation or a Python function."""
    PASSIVE = 6
    """A blocking call while the device itself waits in a collective: another rank is the reason."""


class HostLabel(msgspec.Struct, frozen=True):
    """One thing that a host did."""

    cause: int
    """A :class:`HostCause`."""
    what: str = ""
    """The innermost call, operator, function or annotation; empty for many short operators."""
    where: str = ""
    """The annotation around it, or else its outermost operator; empty if there is none."""


class HostActivity(msgspec.Struct, frozen=True):
    """Pieces of time without gap, one label each, on the rank's own clock."""

    start_ns: Int64
    """Ascending starts; a piece ends where the next one starts, and the last one at ``end_ns``."""
    end_ns: int
    label: NDArray[np.int32]
    """Index into ``labels``, one per piece."""
    labels: tuple[HostLabel, ...]
    returned_ns: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    """Ascending ends of the calls that synchronize with the device."""
    step_ns: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    """Start of each step on the host."""

    def cut(self, since: int, until: int) -> tuple[Int64, Int64, NDArray[np.int32]]:
        """Return starts, ends and labels of the pieces between two times; what is not recorded is missing."""
        first = max(int(np.searchsorted(self.start_ns, since, side="right")) - 1, 0)
        last = max(int(np.searchsorted(self.start_ns, until, side="left")), first)
        ends = np.append(self.start_ns[first + 1 : last + 1], self.end_ns)[: last - first]
        return np.maximum(self.start_ns[first:last], since), np.minimum(ends, until), self.label[first:last]

    def spent(self, since: int, until: int) -> dict[HostLabel, int]:
        """Return the ns of each label between two times; they add up to the whole time."""
        start, end, label = self.cut(since, until)
        length = np.maximum(end - start, 0)
        total = np.bincount(label, length, len(self.labels)).astype(np.int64)
        spent = {self.labels[i]: int(total[i]) for i in np.flatnonzero(total).tolist()}
        if rest := until - since - int(length.sum()):
            nothing = HostLabel(HostCause.NOTHING_RECORDED)
            spent[nothing] = spent.get(nothing, 0) + rest
        return spent

    def intervals(self, *causes: HostCause) -> IntervalSet:
        """Return when the host was busy with any of these causes."""
        chosen = np.array([label.cause in causes for label in self.labels], np.bool_)[self.label]
        ends = np.append(self.start_ns[1:], self.end_ns)
        return union(self.start_ns[chosen], ends[chosen])


NO_ACTIVITY = HostActivity(EMPTY[0], 0, np.empty(0, np.int32), ())
"""A recording without host events."""

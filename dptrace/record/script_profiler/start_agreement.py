"""Agree between ranks when to record, where the scripts of only some ranks profile themselves."""

from __future__ import annotations

from datetime import timedelta

from dptrace.record.ranks.distributed import RankStore
from dptrace.record.script_profiler.guard import ProfilerGuard

__all__ = ["StartAgreement"]

_ANNOUNCEMENT = "script_profiler"
_TIMEOUT = timedelta(seconds=10)
"""How long a rank waits for the others before it decides alone: they may not train together."""


class StartAgreement:
    """Whether a rank cannot record now, so that all ranks warm up and start at the same steps.

    Ranks ask each other only after one of them has announced a profiler of the script, so that others cost nothing.
    """

    def __init__(self, rank_store: RankStore, guard: ProfilerGuard) -> None:
        self._rank_store, self._guard = rank_store, guard
        self._announced = False
        self._alone = False

    def announce(self) -> None:
        """Publish, once, that the script profiles itself."""
        if self._guard.foreign_seen and not self._announced:
            self._announced = True
            self._rank_store.publish(_ANNOUNCEMENT, "1")

    def blocked(self, own: bool, step: int) -> bool:
        """Return whether this rank or another cannot record now.

        Args:
            own: whether this rank cannot.
            step: number of the step at whose end the ranks ask, equal on all ranks.
        """
        self.announce()
        if self._alone or not self._rank_store.is_published(_ANNOUNCEMENT):
            return own
        answer = self._rank_store.any(f"blocked{step}", own, _TIMEOUT)
        self._alone = answer is None
        return own if answer is None else answer

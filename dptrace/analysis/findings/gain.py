"""What a step would gain without what a finding is about, as a replay of the run without it shows."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["Gain"]


class Gain(msgspec.Struct, frozen=True):
    """The answer of one counterfactual; times are ns of a step."""

    change: str = ""
    """What is different in it, in words; empty where no counterfactual fits."""
    ns: int | None = None
    """How much earlier the run would end, per step; None where a replay cannot tell, or none was made."""
    low_ns: int | None = None
    high_ns: int | None = None
    """Range of ``ns``: by the choice of steps, by what was inferred, and by the error of the replay."""
    next_ns: int | None = None
    """What it gains after the findings above it: of a straggler, after the stragglers above it, so that these and
    ``rest_ns`` add up to no straggler. None where that was not replayed."""
    rest_ns: int | None = None
    """Of a straggler: what is left of the gain of no straggler, in delays too small for a finding."""
    share: float | None = None
    """What it gains after the findings above it, as a share of the mean step, from 0 to 1."""
    median_step_ns: int | None = None
    """How much shorter the median step would be."""
    reason: str = ""
    """Why there is no number, or why it is far below what the finding counts."""
    doubts: tuple[str, ...] = ()
    """Kinds of the doubts about it, as ``dptrace whatif`` names them."""

    @property
    def shown_ns(self) -> int | None:
        """What to show and to add up: the gain after the findings above, or alone where that was not replayed."""
        return self.ns if self.ns is None or self.next_ns is None else self.next_ns

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, with the names that a finding has it under."""
        return {
            "gain_ns": self.ns,
            "gain_low_ns": self.low_ns,
            "gain_high_ns": self.high_ns,
            "gain_next_ns": self.next_ns,
            "gain_rest_ns": self.rest_ns,
            "gain_share": self.share,
            "gain_of_median_step_ns": self.median_step_ns,
            "gain_change": self.change or None,
            "gain_reason": self.reason or None,
            "gain_doubts": list(self.doubts),
        }

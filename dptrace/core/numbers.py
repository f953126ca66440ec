"""Which numbers an option takes: the same for its text on the command line and for its value in Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from dptrace.errors import UsageError


def _short(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


# No Struct: dptrace doctor, which reports a broken msgspec, imports this.
@dataclass(frozen=True, slots=True)
class Number:
    """The numbers that an option takes: finite ones, whole or not, within limits."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    whole: bool = False
    show: Callable[[float], str] = _short
    """Formats the limits in messages."""

    def refusal(self, value: Any) -> str:
        """Return why a value is refused, as the end of a sentence; empty for one that is not.

        >>> Number(1, whole=True).refusal(0), Number(0).refusal(float("nan")), Number(most=9).refusal(9)
        ('must be at least 1', 'is not a finite number', '')
        """
        kind: Any = Integral if self.whole else Real  # those of NumPy are registered as such
        if isinstance(value, bool) or not isinstance(value, kind):
            return f"is not a {'whole ' * self.whole}number"
        if not isinstance(value, int) and not math.isfinite(value):
            return "is not a finite number"
        beyond = (
            (self.least is not None and value < self.least)
            or (self.most is not None and value > self.most)
            or (self.above is not None and value <= self.above)
        )
        return f"must be {self._limits()}" if beyond else ""

    def check(self, value: Any, option: str) -> None:
        """Refuse a value that the option does not take.

        Args:
            option: what the user calls it.

        Raises:
            UsageError: the message says which numbers it takes.
        """
        if refusal := self.refusal(value):
            shown = repr(value) if isinstance(value, str) else value
            raise UsageError(f"{option} {shown}: {refusal}.")

    def _limits(self) -> str:
        if self.least is not None and self.most is not None:
            return f"from {self.show(self.least)} to {self.show(self.most)}"
        named = (("above", self.above), ("at least", self.least), ("at most", self.most))
        return " and ".join(f"{name} {self.show(limit)}" for name, limit in named if limit is not None)


COUNT = Number(1, 1 << 31, whole=True)
"""A number of things."""
AMOUNT = Number(above=0, most=1e30)
"""How much there is of something large: parameters, tokens, FLOP/s."""

"""A what-if for several values of one option, and which value is best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dptrace.replay.whatif import LEAST_ERROR, WhatIf

__all__ = ["Point", "Sweep"]


class Point(msgspec.Struct, frozen=True):
    """The answer for one value."""

    value: float
    answer: WhatIf


class Sweep(msgspec.Struct, frozen=True):
    """The answers for several values of an option."""

    option: str
    """``bucket-cap-mb`` or ``world-size``."""
    points: tuple[Point, ...]

    @classmethod
    def of(cls, option: str, values: Sequence[float], answers: Sequence[WhatIf]) -> Sweep:
        """Put values and answers together, by value."""
        points = [Point(value, answer) for value, answer in zip(values, answers, strict=True)]
        return cls(option, tuple(sorted(points, key=lambda point: point.value)))

    @property
    def best(self) -> Point | None:
        """The shortest predicted step, of equals with the largest value.

        None for numbers of ranks: with more of them, a step has more samples.
        """
        if self.option == "world-size":
            return None
        return min(self.points, key=lambda point: (point.answer.predicted_step_ns, -point.value))

    @property
    def alike(self) -> bool:
        """Whether all predicted steps are equal up to what a prediction is uncertain by at least."""
        steps = [point.answer.predicted_step_ns for point in self.points]
        return max(steps) <= (1 + LEAST_ERROR) * min(steps)

    @property
    def clearly_best(self) -> Point | None:
        """The best, where values make a difference."""
        return None if self.alike else self.best

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, as ``dptrace whatif --json`` prints it."""
        return {
            "schema": 1,
            "swept": self.option,
            "best": None if self.best is None else self.best.value,
            "points": [{"value": point.value, **point.answer.to_dict()} for point in self.points],
        }

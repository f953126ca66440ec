"""The types of options that are numbers."""

from __future__ import annotations

import re
from typing import Any

import click

from dptrace.core.numbers import Number

_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}

_AMOUNT = re.compile(r"(-?(?:\d{1,3}(?:[,_]\d{3})+|\d+)(?:\.\d+)?(?:e\+?\d+)?)\s*([KMBGT]?)B?", re.IGNORECASE)
"""A comma stands between thousands only: 1,5 is no 15. A negative one is read, to be refused by its limits."""


class NumberType(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases of click only
    """A finite number within limits; click's own types let NaN pass, and name limits as ``x>=1``."""

    name = "number"
    example = ""
    """How to write it, for messages about what is no number."""

    def __init__(self, *limits: Any, **more: Any) -> None:
        """Take the arguments of :class:`dptrace.core.numbers.Number`, or one."""
        self.number = limits[0] if limits and isinstance(limits[0], Number) else Number(*limits, **more)

    def read(self, text: str) -> float:
        """Return the number that a text stands for.

        Raises:
            ValueError: it stands for none.
        """
        return int(text) if self.number.whole else float(text)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read and check the value of an option."""
        try:
            number = self.read(value.strip()) if isinstance(value, str) else value
        except (ValueError, OverflowError):
            advice = f"; {self.example}" if self.example else ""
            kind = "whole number" if self.number.whole and self.name == "number" else self.name
            self.fail(f"{value!r} is not a {kind}{advice}.", param, ctx)
        if refusal := self.number.refusal(number):
            self.fail(f"{value!r} {refusal}.", param, ctx)
        return number


class Whole(NumberType):
    """A whole number within limits."""

    def __init__(self, least: int | None = None, most: int | None = None) -> None:
        super().__init__(least, most, whole=True)


class Amount(NumberType):
    """A large number: 7e9, 7B or 350M; of bytes, 80GB."""

    example = "write it as 7e9, 7B or 350M"

    def read(self, text: str) -> float:
        """Read a number with or without a suffix."""
        match = _AMOUNT.fullmatch(text)
        if match is None:
            raise ValueError(text)
        return float(re.sub("[,_]", "", match[1])) * _UNITS[match[2].upper()]

"""Limits on a comparison, for continuous integration: ``exposed_comm > +5%``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dptrace.comparison.changes import Change
from dptrace.comparison.summary import FIGURE_NAMES, ComparisonFigures, too_few
from dptrace.core.units import duration
from dptrace.errors import UsageError

__all__ = ["GRAMMAR", "Threshold", "ThresholdResult", "parse"]

GRAMMAR = (
    "FIGURE > +5% (grew by more than that), FIGURE > +2ms, FIGURE < -10% (fell by more), FIGURE > 20ms (in B), "
    "FIGURE > 30% (of B's step); < works the same way. FIGURE is one of "
    + ", ".join(name.removesuffix("_ns") for name in FIGURE_NAMES)
    + ", overlap, whose unit is % of communication, or mfu, whose unit is % of the GPU's peak"
)

_UNITS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
_FORM = re.compile(r"\s*([A-Za-z][\w -]*?)\s*([<>])\s*([+\-−]?)\s*(\d{1,12}(?:\.\d{1,9})?)\s*(%|[a-zµμ]+)\s*")
_OTHER_NAMES = {
    **{word.replace(" ", "_").replace("-", "_"): name.removesuffix("_ns") for name, word in FIGURE_NAMES.items()},
    "step": "wall",
    "other_compute": "other",
    "overlap_percent": "overlap",
    "exposed": "exposed_comm",
}
_UNKNOWN = {
    "overlap": "a run has no communication",
    "mfu": "a run's FLOPs or its GPU's peak are not known (--params and --tokens, --peak-tflops)",
}
"""The figures that are shares, and why a comparison may lack them."""


@dataclass(frozen=True, slots=True)
class ThresholdResult:
    """The result of checking a comparison against a limit."""

    limit: str
    """The limit as the user wrote it."""
    crossed: bool
    """Whether the value is beyond the limit."""
    failed: bool
    """Whether the crossing counts: not where the difference may be noise."""
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a row of JSON."""
        return {"limit": self.limit, "crossed": self.crossed, "failed": self.failed, "text": self.text}


@dataclass(frozen=True, slots=True)
class Threshold:
    """A limit on the change from A to B if it has a sign, otherwise on B itself."""

    text: str
    figure: str
    """``wall_ns``, ``overlap`` or ``mfu``."""
    above: bool
    """Whether values above the limit cross it, or values below."""
    signed: bool
    value: float
    """In ns or percent; for ``overlap``, in percentage points."""
    percent: bool

    def check(self, comparison: ComparisonFigures, even_noise: bool = False) -> ThresholdResult:
        """Check a comparison against the limit.

        Args:
            even_noise: let a limit on a change fail also where the change may be noise.
        """
        change = self._change(comparison)
        if change is None:
            why = _UNKNOWN.get(self.figure, "no collective has all its ranks recorded in both runs")
            return ThresholdResult(self.text, False, False, f"{self.text}: not checked; {why}.")
        crossed, value = self._beyond(change, comparison.change("wall_ns").b)
        # "> -5%" requires a gain, so a gain that may be noise fails.
        guarded = self.signed and (self.value > 0) == self.above and not even_noise
        if not crossed:
            return ThresholdResult(self.text, False, False, f"{self.text}: kept; {value}.")
        if guarded and not change.beyond:
            return ThresholdResult(self.text, True, False, f"{self.text}: {value}, but {_why_not(change, comparison)}.")
        return ThresholdResult(self.text, True, True, f"{self.text}: crossed; {value}.")

    def _change(self, comparison: ComparisonFigures) -> Change | None:
        """Return the change that the limit is on; None where these runs do not have it."""
        if self.figure == "overlap":
            return comparison.overlap
        if self.figure == "mfu":
            return comparison.mfu
        known = {change.name: change for change in (*comparison.changes, *comparison.wait_and_transfer)}
        return known.get(self.figure)

    def _beyond(self, change: Change, wall: float) -> tuple[bool, str]:
        """Return whether the value is beyond the limit, and the value as text."""
        if self.figure == "overlap":
            number = change.delta if self.signed else change.b
            text = f"it went from {change.a:.1f} % to {change.b:.1f} %" if self.signed else f"B has {change.b:.1f} %"
        elif self.figure == "mfu":
            number = (change.delta_percent or 0.0) if self.signed else change.b
            relative = f" ({change.delta_percent or 0.0:+.1f} %)" if self.signed else ""
            text = f"it went from {change.a:.1f} % to {change.b:.1f} %{relative}"
        elif not self.signed:
            number = 100 * change.b / wall if self.percent and wall else change.b
            text = f"B has {number:.1f} % of its step" if self.percent else f"B has {duration(change.b)}"
        else:
            share = change.delta_percent
            number = (float("inf") if share is None else share) if self.percent else change.delta
            relative = "" if share is None else f" ({share:+.1f} %)"
            text = f"it went from {duration(change.a)} to {duration(change.b)}{relative}"
        return (number > self.value if self.above else number < self.value), text


def _why_not(change: Change, comparison: ComparisonFigures) -> str:
    """Return why a crossing does not count."""
    if few := comparison.too_few_steps:
        return f"{too_few(few)} to separate that from noise"
    if comparison.unlike:
        return f"that cannot be decided: {comparison.unlike}"
    if change.verdict == "cannot tell":
        return "these recordings cannot separate that from noise"
    return "that is within noise"


def parse(text: str) -> Threshold:
    """Read a limit.

    Raises:
        UsageError: *text* is not a limit; the message has the grammar.
    """
    match = _FORM.fullmatch(text)
    if not match:
        raise UsageError(f"{text!r} is not a limit. {_grammar()}")
    name, sign, number, unit = match[1], match[3], float(match[4]), match[5]
    figure = re.sub(r"[ -]+", "_", name.lower()).removesuffix("_ns")
    figure = _OTHER_NAMES.get(figure, figure)
    if figure not in _UNKNOWN and f"{figure}_ns" not in FIGURE_NAMES:
        raise UsageError(f"{text!r}: unknown figure {name!r}. {_grammar()}")
    if unit != "%" and unit not in _UNITS:
        raise UsageError(f"{text!r}: unknown unit {unit!r}; use %, s, ms, us or ns. {_grammar()}")
    if figure in _UNKNOWN and unit != "%":
        raise UsageError(f"{text!r}: the unit of {figure} is %. {_grammar()}")
    if figure == "wall" and unit == "%" and not sign:
        raise UsageError(f"{text!r}: the wall time is always 100 % of the step; did you mean {match[2]} +{match[4]}%?")
    value = number * (1.0 if unit == "%" else _UNITS[unit]) * (-1 if sign in ("-", "−") else 1)
    whole = figure if figure in _UNKNOWN else f"{figure}_ns"
    return Threshold(text.strip(), whole, match[2] == ">", bool(sign), value, unit == "%")


def _grammar() -> str:
    return f"Write a limit in quotes: {GRAMMAR}."

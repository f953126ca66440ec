"""Limits on a comparison, for continuous integration: ``exposed_comm > +5%``, and what these recordings can decide."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dptrace.comparison.changes import FIGURE_NAMES, Change
from dptrace.core.units import MINUS, duration
from dptrace.errors import UsageError


class Comparison(Protocol):
    """What a limit needs of a :class:`dptrace.Comparison`."""

    @property
    def changes(self) -> Sequence[Change]: ...
    @property
    def wait_and_transfer(self) -> Sequence[Change]: ...
    @property
    def overlap(self) -> Change | None: ...
    @property
    def mfu(self) -> Change | None: ...
    @property
    def before(self) -> Sequence[object]: ...
    @property
    def after(self) -> Sequence[object]: ...
    @property
    def unlike(self) -> str: ...
    @property
    def too_few_steps(self) -> str | None: ...
    def change(self, name: str) -> Change: ...


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
    """Whether the crossing counts: not where the difference may be noise. Or whether it counts that nothing was
    checked, or decided."""
    text: str
    checked: bool = True
    """Whether the runs have the figure."""
    decided: bool = True
    """Whether these recordings tell on which side of the limit the change is."""
    detectable: float | None = None
    """Change, in the figure's unit, that fails the limit in 80 % of such comparisons; None for a limit on B itself."""
    needed: int | None = None
    """Recordings of each side that would find a change of the limit's size, where these are too few."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a row of JSON."""
        names = ("limit", "checked", "decided", "crossed", "failed", "detectable", "needed", "text")
        return {name: getattr(self, name) for name in names}


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

    def check(self, comparison: Comparison, even_noise: bool = False, even_unchecked: bool = False) -> ThresholdResult:
        """Check a comparison against the limit.

        Args:
            even_noise: let a limit on a change fail also where the change may be noise.
            even_unchecked: let it fail also where the runs do not have the figure, or can't tell whether it is crossed.
        """
        change = self._change(comparison)
        if change is None:
            why = _UNKNOWN.get(self.figure, "no collective has all its ranks recorded in both runs")
            text = f"{self.text}: not checked; {why}."
            return ThresholdResult(self.text, False, even_unchecked, text, checked=False, decided=False)
        crossed, value = self._beyond(change, comparison.change("wall_ns").b)
        # "> -5%" requires a gain, so a gain that may be noise fails.
        guarded = self.signed and (self.value > 0) == self.above and not even_noise
        if not guarded:
            return ThresholdResult(self.text, crossed, crossed, f"{self.text}: {_WORD[crossed]}; {value}.")
        size = self._size(change)
        found, needed = self._power(change, size)
        decided = crossed and change.beyond if crossed else self._excluded(change, size)
        failed = (crossed and change.beyond) or (even_unchecked and not decided)
        if decided:
            power = f" A change of {self._amount(change, found)} would have failed it in 4 of 5 comparisons." * bool(
                found
            )
            text = f"{self.text}: {_WORD[crossed]}; {value}.{'' if crossed else power}"
        else:
            text = f"{self.text}: not decided; {value}, but {self._why_not(change, comparison, size, needed)}."
        return ThresholdResult(self.text, crossed, failed, text, True, decided, found, needed)

    def _size(self, change: Change) -> float:
        """Return the limit as a positive difference in the figure's unit."""
        relative = self.percent and self.figure != "overlap"
        return abs(self.value) * (change.a / 100 if relative else 1.0)

    def _excluded(self, change: Change, size: float) -> bool:
        """Return whether the 95 % interval of the difference lies on this side of the limit."""
        if change.verdict == "same":
            return True
        end = change.high if self.above else change.low
        return end is not None and not change.drifts and (end <= size if self.above else end >= -size)

    def _power(self, change: Change, size: float) -> tuple[float | None, int | None]:
        """Return the change that fails the limit in 80 % of cases, and the recordings that find one of its size."""
        if change.detectable is None or change.power is None:
            return None, None
        found = max(change.detectable, change.power.with_limit(size))
        if change.a:  # a longer step varies more
            found *= ((1 + (1 + found / change.a) ** 2) / 2) ** 0.5
        if change.detectable <= size or size <= 0:
            return found, None
        return found, change.power.recordings_for(size)

    def _amount(self, change: Change, size: float | None) -> str:
        """Return a difference in words."""
        if size is None:
            return ""
        if self.figure == "overlap":
            return f"{size:.1f} percentage points"
        share = f"{100 * size / change.a:.1f} %" if change.a else ""
        return share if self.percent and share else duration(size)

    def _why_not(self, change: Change, comparison: Comparison, size: float, needed: int | None) -> str:
        """Return why a limit is not decided, which change would have failed it, and how many recordings are needed."""
        if few := comparison.too_few_steps:
            return f"{too_few(few)} to separate that from noise"
        if comparison.unlike:
            return f"that cannot be decided: {comparison.unlike}"
        if change.low is None or change.high is None:
            return "these recordings cannot separate that from noise"
        if change.drifts:
            return "the steps of a recording drift by more"
        least, most = (self._signed(change, end) for end in (change.low, change.high))
        text = f"noise may make it {least} to {most}"
        if change.verdict in ("within noise", "same"):
            text = f"that is within noise, which may make it {least} to {most}"
        found, _ = self._power(change, size)
        if found is not None:
            text += f": these recordings fail it in 4 of 5 cases only for a change of {self._amount(change, found)}"
        if needed is not None:
            have = min(len(comparison.before), len(comparison.after))
            here = f"here {have}" if have > 1 else "here 1, which does not show how recordings differ"
            return f"{text}; about {needed} recordings of each side ({here}) find one of {self._amount(change, size)}"
        return text

    def _signed(self, change: Change, ns: float) -> str:
        sign = MINUS if ns < 0 else "+"
        return f"{sign}{self._amount(change, abs(ns))}"

    def _change(self, comparison: Comparison) -> Change | None:
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
            relative = f" ({change.delta_percent or 0.0:+.1f} %)".replace("-", MINUS) if self.signed else ""
            text = f"it went from {change.a:.1f} % to {change.b:.1f} %{relative}"
        elif not self.signed:
            number = 100 * change.b / wall if self.percent and wall else change.b
            text = f"B has {number:.1f} % of its step" if self.percent else f"B has {duration(change.b)}"
        else:
            share = change.delta_percent
            number = (float("inf") if share is None else share) if self.percent else change.delta
            relative = "" if share is None else f" ({share:+.1f} %)".replace("-", MINUS)
            text = f"it went from {duration(change.a)} to {duration(change.b)}{relative}"
        return (number > self.value if self.above else number < self.value), text


_WORD = {True: "crossed", False: "kept"}


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


def too_few(steps: str) -> str:
    """Return that a number of steps is too small for a claim.

    >>> too_few("2 steps per run"), too_few("1 step per run")
    ('2 steps per run are too few', '1 step per run is too few')
    """
    return f"{steps} {'is' if steps.startswith('1 step ') else 'are'} too few"

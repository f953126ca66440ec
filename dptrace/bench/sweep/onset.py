"""Where less communication stops paying off: s against the validation loss, from point to point of a sweep."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from dptrace.bench.sweep.points import Point

__all__ = ["Onset", "Step", "find_onset", "onset_sentences"]

_LEAST_FALL = 0.1
"""Fall of s with a doubling of the value, as a share of s, below which returns count as diminished."""
_HURTS = 0.01
"""Rise of the validation loss over the least, as a share of it, above which less communication counts as harmful."""


class Step(msgspec.Struct, frozen=True):
    """From one point to the next."""

    start: str
    end: str
    factor: float
    """s of the end over s of the start, for a doubling of the value: 0.5 where doubling it halves s."""


class Onset(msgspec.Struct, frozen=True):
    """Along the points, from the most communication to the least."""

    order: list[str]
    """Labels of the points with s and a validation loss."""
    steps: list[Step]
    """Empty where the values are no numbers, or several options were swept."""
    diminishing: str | None
    """The first point from which no further step lowers s by a tenth with each doubling of the value."""
    harmful: str | None
    """The first point from which all further ones have a validation loss of more than 1 % above the least."""


def find_onset(points: Sequence[Point], swept: Sequence[str]) -> Onset | None:
    """Find where less communication stops to lower s, and where it begins to cost validation loss.

    Points are taken in the order of their value, where one option with numbers was swept, otherwise by falling s.
    None for fewer than two points with both figures.
    """
    known = [point for point in points if point.communication_fraction and point.validation_loss is not None]
    numbers = len(swept) == 1 and swept[0] != "compress"
    known.sort(key=lambda point: float(point.options[swept[0]]) if numbers else -_s(point))
    if len(known) < 2:
        return None
    steps = [_step(a, b, swept[0]) for a, b in itertools.pairwise(known)] if numbers else []
    diminishing = _first_of_rest([step.factor > 1 - _LEAST_FALL for step in steps])
    least = min(_loss(point) for point in known)
    harmful = _first_of_rest([_loss(point) > (1 + _HURTS) * least for point in known])
    return Onset(
        [point.label for point in known],
        steps,
        None if diminishing is None else known[diminishing].label,
        None if harmful is None else known[harmful].label,
    )


def _s(point: Point) -> float:
    return point.communication_fraction or 0.0


def _loss(point: Point) -> float:
    return 0.0 if point.validation_loss is None else point.validation_loss


def _step(start: Point, end: Point, option: str) -> Step:
    doublings = math.log2(float(end.options[option]) / float(start.options[option]))
    return Step(start.label, end.label, (_s(end) / _s(start)) ** (1 / doublings))


def _first_of_rest(held: Sequence[bool]) -> int | None:
    """Return from where on all hold; None if the last does not.

    >>> _first_of_rest([True, False, True, True]), _first_of_rest([True, False])
    (2, None)
    """
    begin = len(held)
    while begin and held[begin - 1]:
        begin -= 1
    return begin if begin < len(held) else None


def onset_sentences(onset: Onset | None) -> list[str]:
    """Return what the points say of the trade of communication for quality."""
    if onset is None:
        return []
    sentences = []
    if onset.steps:
        factors = [step.factor for step in onset.steps]
        where = (
            f"from {onset.diminishing} on, that is less than a tenth"
            if onset.diminishing is not None
            else "no value is reached from which that is less than a tenth"
        )
        ends = " to ".join(dict.fromkeys(f"{factor:.2f}" for factor in (min(factors), max(factors))))
        sentences.append(f"Doubling the value leaves s at {ends} of what it was (0.50 would halve it); {where}.")
    if onset.harmful is None:
        sentences.append(
            f"Less communication costs no validation loss: at {onset.order[-1]} it is within 1 % of the least."
        )
    else:
        sentences.append(
            f"From {onset.harmful} on, less communication costs validation loss: more than 1 % above the least."
        )
    return sentences

"""What ranks of different programs take longer in their steps: the stages of a pipeline, a rank in two groups.

Such ranks do not pass the same points, so that late once and late always can't be told apart within a step. Over the
steps they can: what is usual of each place is compared between ranks, so that chance at many places of a step does not
hide what one does in each step; and what is unusual of a step counts where it is notable. Chance only makes work
longer, as where a core is busy: usual is what three of four steps take at least.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, unique
from dptrace.replay.transforms.pieces import Pieces
from dptrace.replay.transforms.roles import Peers

_USUAL = 0.25
"""Share of the steps in which a place takes no longer than it usually does."""
_NOTABLE_NS, _NOTABLE = 1_000_000, 0.2
"""How much longer than usual, and which share of a step's own time, a rank is late at least in one step."""


def longer_by_step(pieces: Sequence[Pieces], peers: Peers, count: Int64, labels: int) -> Int64:
    """Return what each rank takes longer in each segment for each thing, in ns: segments × ranks × labels.

    Args:
        pieces: those of each rank.
        count: for how many ranks each stands.
        labels: number of things that time is spent on.
    """
    segments = peers.times_ns.shape[1] + 1
    longer = np.zeros((segments, len(pieces), labels), np.int64)
    # A step that some rank lacks, or has not recorded whole, has no pieces.
    steps = unique(np.concatenate([own.segment for own in pieces]))
    steps = steps[(steps > 0) & (steps < segments - 1)]
    if not len(steps):
        return longer
    spent = np.stack([_spent(own, labels, segments)[steps] for own in pieces], axis=1)
    usual = np.stack([_usual(own, labels, steps) for own in pieces])
    always = usual.sum(axis=1, keepdims=True)
    always = np.maximum(always - peers.always(always, count), 0)
    as_usual = peers.usual_of_as_many(usual, _numbers(pieces, labels, steps), count)
    longer[steps] = _shared(usual - as_usual, always)
    # What a step takes beyond what its rank usually takes.
    notable = np.maximum(_NOTABLE_NS, _NOTABLE * usual.sum(axis=1))[:, None]
    low, middle = np.quantile(spent, (_USUAL, 0.5), axis=0).astype(np.int64)
    chance = (middle - low).sum(axis=1, keepdims=True) < notable
    unusual = spent - np.where(chance, middle, low)
    total = unusual.sum(axis=2).T
    more = np.maximum(total - peers.usual(total, count), 0)
    more[more < notable] = 0
    for step in np.flatnonzero(more.any(axis=0)).tolist():
        longer[steps[step]] += _shared(unusual[step], more[:, [step]])
    return longer


def _shared(by_label: Int64, ns: Int64) -> Int64:
    """Divide what each rank takes longer in all among the labels for which it takes longer: ranks × labels."""
    rest = np.maximum(by_label, 0)
    share = np.minimum(1.0, ns / np.maximum(rest.sum(axis=1, keepdims=True), 1))
    result: Int64 = np.rint(rest * share).astype(np.int64)
    return result


def _spent(own: Pieces, labels: int, segments: int) -> Int64:
    """Return what a rank spends on each thing in each segment: segments × labels."""
    table = np.bincount(own.segment * labels + own.label, own.length_ns, segments * labels)
    return table.astype(np.int64).reshape(segments, labels)


def _numbers(pieces: Sequence[Pieces], labels: int, steps: Int64) -> NDArray[np.float64]:
    """Return how many times a step each rank does each thing, those apart that are short beside most of its time."""
    number = np.zeros((len(pieces), labels))
    squares, sums = (
        np.sum([np.bincount(own.label, own.length_ns.astype(np.float64) ** power, labels) for own in pieces], axis=0)
        for power in (2, 1)
    )
    long = _NOTABLE * squares / np.maximum(sums, 1)
    for rank, own in enumerate(pieces):
        kept = np.flatnonzero((own.length_ns > long[own.label]) & np.isin(own.segment, steps))
        at = np.searchsorted(steps, own.segment[kept]) * labels + own.label[kept]
        number[rank] = np.median(np.bincount(at, minlength=len(steps) * labels).reshape(-1, labels), axis=0)
    return number


def _usual(own: Pieces, labels: int, steps: Int64) -> Int64:
    """Return what a rank spends on each thing in a step as a rule: what is usual of each of its pieces over the steps.

    At a place that steps pass more or less often, it is what is usual of their sum.
    """
    inside = np.flatnonzero(np.isin(own.segment, steps))
    places, place = np.unique(own.place[inside], return_inverse=True)
    order = np.lexsort((own.at_ns[inside], own.segment[inside], place))
    place, inside = place[order], inside[order]
    step, length = np.searchsorted(steps, own.segment[inside]), own.length_ns[inside]
    number = np.bincount(place * len(steps) + step, minlength=len(places) * len(steps)).reshape(-1, len(steps))
    sums = np.bincount(place * len(steps) + step, length, number.size).reshape(number.shape)
    usual = np.quantile(sums, _USUAL, axis=1)
    bounds = np.append(0, np.cumsum(number.sum(axis=1)))
    for one in np.flatnonzero((number == number[:, :1]).all(axis=1)).tolist():
        usual[one] = np.quantile(length[bounds[one] : bounds[one + 1]].reshape(len(steps), -1), _USUAL, axis=0).sum()
    # What a place is spent on may be named in another way in some steps.
    table = np.bincount(place * labels + own.label[inside], length, len(places) * labels).reshape(-1, labels)
    share = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    result: Int64 = np.rint(usual @ share).astype(np.int64)
    return result

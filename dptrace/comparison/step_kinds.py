"""Which kinds of steps two sides have in common: a step is compared only with steps that do the same work.

Steps may alternate, for example where an optimizer acts, or gradients are reduced, every second step. A kind
is what a step does (its signature); only if all steps do the same, its length, where two lengths clearly alternate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dptrace.comparison.samples import RunSample, Signature
from dptrace.comparison.significance import FEWEST_EVIDENT
from dptrace.comparison.step_noise import Float
from dptrace.core.units import plural

__all__ = ["StepKinds", "step_kinds", "two_lengths"]

_FEWEST = 2
"""Steps of a kind that each recording needs for the kind to be compared."""
_MOST_KINDS, _LEAST_COVERED = 4, 0.25
"""With more signatures, as of experts that are called irregularly, the shared ones must cover this share of each
recording's steps; otherwise the optimizer alone decides the kind."""
_EXPLAINED, _FEWEST_OF_LENGTH, _FEWEST_SWITCHES = 0.95, 3, 3
"""Two lengths are kinds if they explain this share of the variance, have this many steps each, and alternate."""


@dataclass(frozen=True)
class StepKinds:
    """The kinds of steps that are compared."""

    labels: tuple[str, ...]
    """What distinguishes each kind, in words; one empty label where all steps are of one kind."""
    of_steps: tuple[NDArray[np.int64], ...]
    """For each recording, the kind of each step; -1 for steps that have no counterpart."""
    only: tuple[str, ...]
    """The kinds that cannot be compared, a sentence each."""
    unlike: str = ""
    """Why no kind has enough steps in both sides; empty where one has. Then all steps are compared as one kind."""
    comparable: bool = True
    """Whether some kind is in every recording, if only in few steps."""


def step_kinds(before: Sequence[RunSample], after: Sequence[RunSample]) -> StepKinds:
    """Find the kinds that every recording of both sides has."""
    samples = [*before, *after]
    if len({signature for sample in samples for signature in sample.signatures}) == 1:
        return _by_length(samples)
    keys: tuple[Callable[[Signature], Hashable], ...] = (lambda s: s, lambda s: s.optimizer)
    for key in keys:
        counts = [Counter(map(key, sample.signatures)) for sample in samples]
        # A recording of a single step has one step of its kind.
        shared = [k for k in counts[0] if all(c[k] >= min(_FEWEST, c.total()) for c in counts)]
        covered = min(sum(c[k] for k in shared) / c.total() for c in counts)
        regular = len(set().union(*counts)) <= _MOST_KINDS
        if shared and (regular or covered >= _LEAST_COVERED):
            found = _by_signature(samples, len(before), key, shared)
            if not _leaves_too_few(found, before, after):
                return found
        if regular and any(all(c[k] for c in counts) for k in counts[0]):
            return _one_kind(samples, "too few steps of any kind that every recording has")
    return replace(
        _one_kind(samples, "A's and B's steps are of different kinds: " + _sides_in_words(before, after)),
        comparable=False,
    )


def _leaves_too_few(kinds: StepKinds, before: Sequence[RunSample], after: Sequence[RunSample]) -> bool:
    """Return whether both sides have enough steps for what is evident, but one keeps too few with a counterpart."""
    counts = [int((own >= 0).sum()) for own in kinds.of_steps]
    kept = min(sum(counts[: len(before)]), sum(counts[len(before) :]))
    whole = min(sum(len(sample.steps) for sample in side) for side in (before, after))
    return kept < FEWEST_EVIDENT <= whole


def _one_kind(samples: Sequence[RunSample], unlike: str = "") -> StepKinds:
    return StepKinds(("",), tuple(np.zeros(len(s.steps), np.int64) for s in samples), (), unlike)


def _by_signature(
    samples: Sequence[RunSample], before: int, key: Callable[[Signature], Hashable], shared: list[Hashable]
) -> StepKinds:
    examples = {key(signature): signature for sample in samples for signature in sample.signatures}
    coarse = key(next(iter(examples.values()))) in (True, False)
    words = dict(zip(examples, _in_words(list(examples.values()), coarse), strict=True))
    number = {kind: index for index, kind in enumerate(shared)}
    of_steps = tuple(np.array([number.get(key(s), -1) for s in sample.signatures], np.int64) for sample in samples)
    only = []
    for kind in examples:
        if kind not in number:
            counts = [sum(key(s) == kind for s in sample.signatures) for sample in samples]
            only.append(_absent(words[kind], sum(counts[:before]), sum(counts[before:])))
    labels = tuple(words[kind] for kind in shared) if len(examples) > 1 else ("",)
    return StepKinds(labels, of_steps, tuple(only))


def _absent(label: str, a: int, b: int) -> str:
    if a and b:
        return f"Cannot tell for steps of kind “{label}”: too few in some recording ({a} in A, {b} in B)."
    return f"Cannot tell: steps of kind “{label}” are only in {'A' if a else 'B'} ({plural(a or b, 'step')}, left out)."


def _in_words(signatures: Sequence[Signature], coarse: bool) -> list[str]:
    """Describe what distinguishes each signature from the others."""
    differs = len({s.optimizer for s in signatures}) > 1
    names = dict.fromkeys(kind for s in signatures for kind, _ in s.collectives)
    counts = [dict(s.collectives) for s in signatures]
    kinds = [] if coarse else [kind for kind in names if len({c.get(kind, 0) for c in counts}) > 1]
    words = []
    for signature, count in zip(signatures, counts, strict=True):
        parts = ["with optimizer" if signature.optimizer else "without optimizer"] if differs else []
        words.append(", ".join([*parts, *(f"{count.get(kind, 0)} {kind}" for kind in kinds)]))
    return words


def _sides_in_words(before: Sequence[RunSample], after: Sequence[RunSample]) -> str:
    optimizer = [any(s.optimizer for sample in side for s in sample.signatures) for side in (before, after)]
    if optimizer[0] != optimizer[1]:
        return f"only {'A' if optimizer[0] else 'B'}'s run the optimizer"
    return "no kind is in every recording"


def _by_length(samples: Sequence[RunSample]) -> StepKinds:
    """Separate kinds by length where every recording has two lengths that alternate."""
    long = [two_lengths(sample.wall) for sample in samples]
    if any(one is None for one in long):
        return _one_kind(samples)
    kinds = tuple(one.astype(np.int64) for one in long if one is not None)
    return StepKinds(("shorter steps", "longer steps"), kinds, ())


def two_lengths(walls: Float) -> NDArray[np.bool_] | None:
    """Return which steps are the longer ones; None where the lengths are not two that alternate.

    The cut of the sorted lengths that explains most of their variance (2-means, exact in one dimension).
    """
    n = len(walls)
    if n < 2 * _FEWEST_OF_LENGTH or np.ptp(walls) == 0:
        return None
    ordered = np.sort(walls)
    low = np.arange(_FEWEST_OF_LENGTH, n - _FEWEST_OF_LENGTH + 1)
    sums = np.cumsum(ordered)[low - 1]
    left, right = sums / low, (ordered.sum() - sums) / (n - low)
    explained = low * (n - low) / n * (left - right) ** 2 / ((ordered - ordered.mean()) ** 2).sum()
    best = int(explained.argmax())
    longer: NDArray[np.bool_] = walls >= ordered[low[best]]
    alternates = int((np.diff(longer.astype(int)) != 0).sum()) >= _FEWEST_SWITCHES
    return longer if explained[best] > _EXPLAINED and alternates else None

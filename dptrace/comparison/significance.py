"""Decide whether two sides of a comparison differ by more than noise, or whether that cannot be decided.

The noise is that of :mod:`dptrace.comparison.significance`. Many figures are judged at once: Holm's correction
(Scandinavian Journal of Statistics, 1979), weighted, so that the wall time gets half of the false alarms and all other
figures the other half. A figure is called unchanged only where its interval lies within a margin (two one-sided tests,
Schuirmann 1987).

The test holds from three steps a side: with few, Student's t has heavy tails, and phi counts with all its values.
Where an odd step or steps of unlike kinds hide the noise, some differences are still evident: each step of one side
takes longer than each of the other, by much more than steps of a side differ. If sides did not matter, 3 and 3 steps
would fall apart in that way in at most 1 of 10 divisions (4 and 4 in 1 of 35), and only if steps had two lengths by
themselves. docs/guides/compare.md has the rates of false alarms and of changes found; benchmarks/diff_noise.py measures
them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64

# The noise of a difference between steps that depend on each other, for one recording per side or several.
#
# The samples are steps, each the mean of its ranks, since the ranks of a step wait for each other. Steps follow each
# other: a slow one is likely to be followed by a slow one. For one recording per side, a step is modelled as::
#
#     value[r, t] = mean[r, kind(t)] + start[r] + e[t],   e[t] = phi · e[t − 1] + innovation   (AR(1), variance sigma²)
#
# for recording r, step t. The difference is the mean of B minus the mean of A, kind by kind, with the same weights on
# both sides. Its variance for a known phi is sigma² · (c'Ωc + START² · (1/R_A + 1/R_B)), where c holds the weights of
# the steps and Ω = phi^|t − u|; sigma² is the residual sum of squares of generalized least squares over its degrees of
# freedom, so that the ratio follows Student's t (Aitken 1935). A few steps do not determine phi: the p-value is
# averaged over phi, weighted by its restricted likelihood (Patterson and Thompson 1971, Harville 1974), which at few
# steps stays close to uniform over 0 to 0.9. START covers how two starts of one job differ, which one recording per
# side can't show.
#
# With several recordings on a side, recordings are the samples: t on their means (Student 1908), whose variance is
# never taken below the one that their steps explain, with R_A + R_B − 2 degrees of freedom.


Float = NDArray[np.float64]

MIN_FREE = 2
"""Degrees of freedom that the steps must leave to estimate their noise."""
START = 0.3
"""Standard deviation of starts of one job, in standard deviations of its steps, where each side has one recording."""
_PHI = np.linspace(0, 0.9, 19)
_DOUBLINGS, _BISECTIONS = 60, 24
"""Steps of the search for a half width: to find its order of magnitude, and then to a ten-millionth of it."""
_MAX_FREE = 200
"""Degrees of freedom beyond which Student's t is taken to stay the same."""


@dataclass(frozen=True)
class Steps:
    """The compared steps of both sides, in the order in which they ran: arrays of one entry per step."""

    side: Int64
    """0 for A, 1 for B."""
    recording: Int64
    """Number of the recording, over both sides, ascending."""
    kind: Int64
    """Number of the kind of step; every recording has at least one step of each."""
    place: Int64
    """Number of the step in its recording, also counting steps left out."""
    enough: bool = True
    """Whether the sides have enough steps of the same kinds to estimate their noise."""
    comparable: bool = True
    """Whether the sides have a kind of step in common."""

    @property
    def free(self) -> int:
        """Degrees of freedom that the means of kinds and recordings leave."""
        return len(self.cell) - int(self.cell.max(initial=-1)) - 1

    def select(self, chosen: NDArray[np.bool_]) -> Steps:
        """Keep some of the steps, and renumber their kinds."""
        kind = np.unique(self.kind[chosen], return_inverse=True)[1]
        return replace(
            self, side=self.side[chosen], recording=self.recording[chosen], kind=kind, place=self.place[chosen]
        )

    def count(self, side: int) -> int:
        """Return the number of steps of a side."""
        return int((self.side == side).sum())

    def recordings(self, side: int) -> int:
        """Return the number of recordings of a side."""
        return len(np.unique(self.recording[self.side == side]))

    @cached_property
    def cell(self) -> Int64:
        """Number of the combination of recording and kind of each step."""
        kinds = int(self.kind.max(initial=0)) + 1
        cells: Int64 = np.unique(self.recording * kinds + self.kind, return_inverse=True)[1]
        return cells

    @cached_property
    def gaps(self) -> Int64:
        """How many steps after the one before each step is; 0 for a recording's first."""
        follows = np.diff(self.recording, prepend=-1) == 0
        return np.where(follows, np.diff(self.place, prepend=0), 0)

    def kind_weights(self) -> Float:
        """Return the weight of each kind: its share of the steps, the mean of both sides."""
        kinds = int(self.kind.max(initial=0)) + 1
        shares = [np.bincount(self.kind[self.side == side], minlength=kinds) / self.count(side) for side in (0, 1)]
        return (shares[0] + shares[1]) / 2

    def step_weights(self, kind_weights: Float) -> Float:
        """Return the weight of each step in its side's mean: kinds as given, recordings alike; a side sums to 1."""
        in_cell = np.bincount(self.cell)[self.cell]
        recordings = np.array([max(self.recordings(side), 1) for side in (0, 1)])
        weights: Float = kind_weights[self.kind] / (in_cell * recordings[self.side])
        return weights


def student_p(t: Float, free: int) -> Float:
    """Return the two-sided tail of Student's t for a whole number of degrees of freedom.

    The finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4.

    >>> student_p(np.array([12.706, 2.776]), 1).round(3).tolist(), student_p(np.array([2.776]), 4).round(3).tolist()
    ([0.05, 0.22], [0.05])
    """
    free = min(free, _MAX_FREE)
    angle = np.arctan(np.abs(t) / np.sqrt(free))
    sine, squared = np.sin(angle), np.cos(angle) ** 2
    term = np.cos(angle) if free % 2 else np.ones_like(angle)
    total = np.zeros_like(angle)
    for k in range(3 if free % 2 else 2, free + 1, 2):
        total += term
        term = term * squared * (k - 1) / k
    inside = 2 / np.pi * (angle + sine * total) if free % 2 else sine * total
    tail: Float = np.clip(1 - inside, 0, 1)
    return tail


@dataclass(frozen=True)
class Noise:
    """The noise of one contrast: for each phi of a grid (or for one entry, where phi plays no part) and figure."""

    weight: Float
    """Posterior of phi, which sums to 1 over the grid: grid by figures."""
    error: Float
    """Standard error of the contrast: grid by figures."""
    free: int
    """Degrees of freedom."""

    def tail(self, size: Float) -> Float:
        """Return the two-sided p-value of a difference of each figure, averaged over phi."""
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(size > 0, size / self.error, 0.0)
        mean: Float = (self.weight * student_p(t, self.free)).sum(axis=0)
        return mean

    def half_width(self, alpha: Float) -> Float:
        """Return the difference of each figure whose p-value is *alpha*, by bisection."""
        low = np.zeros(self.error.shape[1])
        high: Float = self.error.max(axis=0)
        for _ in range(_DOUBLINGS):
            short = self.tail(high) > alpha
            if not short.any():
                break
            high = np.where(short, 2 * high, high)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            above = self.tail(middle) > alpha
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return high


def noise_of(values: Float, steps: Steps, contrast: Float) -> Noise:
    """Estimate the noise of a contrast: from the steps, or from the recordings where a side has several."""
    counts = [steps.recordings(side) for side in (0, 1)]
    starts = 1 / counts[0] + 1 / counts[1]
    weight, deviation, free = _step_deviation(values, steps)
    if max(counts) == 1:
        spread = _variance_of(contrast[None], steps)
        return Noise(weight, deviation * np.sqrt(spread + START**2 * starts), free)
    # The mean of each recording: its steps' weights, brought back to a sum of 1.
    single = np.where(steps.recording == np.unique(steps.recording)[:, None], np.abs(contrast), 0)
    side_of = steps.side[np.unique(steps.recording, return_index=True)[1]]
    single *= np.array([[counts[side]] for side in side_of])
    means = single @ values.T
    sides = (means[side_of == one] for one in (0, 1))
    squares = sum(((x - x.mean(axis=0)) ** 2).sum(axis=0) for x in sides)
    of_steps = (weight * deviation**2 * _variance_of(single, steps).mean(axis=1)[:, None]).sum(axis=0)
    between = np.maximum(squares / (sum(counts) - 2), of_steps)
    return Noise(np.ones((1, len(values))), np.sqrt(between * starts)[None], sum(counts) - 2)


def _step_deviation(values: Float, steps: Steps) -> tuple[Float, Float, int]:
    """Return the posterior of phi and the steps' standard deviation (grid by figures), and the degrees of freedom."""
    cells = np.eye(int(steps.cell.max()) + 1)[steps.cell]
    pairs = [_whitened(values, cells, steps, phi) for phi in _PHI]
    squares = np.stack([residual for residual, _ in pairs])
    scale = np.maximum(squares.max(axis=0), 1e-300)
    logs = np.log(np.maximum(squares / scale, 1e-15))
    likelihood = np.array([one for _, one in pairs])[:, None] - steps.free / 2 * logs
    weight = np.exp(likelihood - likelihood.max(axis=0))
    return weight / weight.sum(axis=0), np.sqrt(squares / steps.free), steps.free


def _whitened(values: Float, cells: Float, steps: Steps, phi: float) -> tuple[Float, float]:
    """Return the residual sum of squares of each figure for a phi, and the rest of the restricted log-likelihood."""
    gap = steps.gaps
    carried = np.where(gap > 0, phi ** np.maximum(gap, 1), 0.0)
    scale = np.sqrt(1 - carried**2)
    y, x = ((rows - carried * np.roll(rows, 1, axis=1)) / scale for rows in (values, cells.T))
    q, r = np.linalg.qr(x.T)
    residual = y - (y @ q) @ q.T
    return (residual**2).sum(axis=1), float(-np.log(scale).sum() - np.log(np.abs(np.diag(r))).sum())


def _variance_of(contrasts: Float, steps: Steps) -> Float:
    """Compute c'Ωc for each phi and contrast, in one pass over the steps: phis by contrasts."""
    carried = np.zeros((len(_PHI), len(contrasts)))
    total = np.zeros_like(carried)
    for gap, weight in zip(steps.gaps.tolist(), contrasts.T, strict=True):
        carried *= (_PHI**gap)[:, None] if gap else 0.0
        total += weight * (weight + 2 * carried)
        carried += weight
    return total


def drifts(values: Float, steps: Steps, deltas: Float) -> NDArray[np.bool_]:
    """Return where one recording per side drifts, over its length, by more than the difference.

    The slope is that of least squares, after the mean of each kind of step is subtracted.
    """
    drift = np.zeros(len(values))
    if max(steps.recordings(side) for side in (0, 1)) == 1:
        cells = np.eye(int(steps.cell.max()) + 1)[steps.cell]
        left = values - (values @ cells / cells.sum(axis=0)) @ cells.T
        for side in (0, 1):
            place = steps.place[steps.side == side] - steps.place[steps.side == side].mean()
            slope = left[:, steps.side == side] @ place / max(float((place**2).sum()), 1.0)
            drift = np.maximum(drift, np.abs(slope) * (np.ptp(place) + 1))
    return drift > np.abs(deltas)


Verdict = str
"""``same``, ``within noise``, ``beyond noise`` or ``cannot tell``."""

ALPHA = 0.05
"""Rate at which two recordings of the same job may be called different, in any figure."""
EQUIVALENT, EQUIVALENT_SHARE = 0.03, 0.1
"""A figure is called unchanged only if its 95 % interval excludes a change by more than 3 % of the step, and by more
than a tenth of itself."""
MIN_STEPS = 3
"""Steps that each side needs for any claim: of two, none can be told to be an odd one."""
_MANY = 6
"""Steps of each side from which a smaller difference is evident."""
_EVIDENT_MARGINS, _EVIDENT_MARGINS_OF_MANY = 14, 7
"""A difference is evident only if the sides' medians lie apart by this many margins: 42 % of a step; 21 % where each
side has six steps or more."""
_EVIDENT_SPREADS, _EVIDENT_SPREADS_OF_MANY = 3, 1.5
"""And only if the sides themselves lie apart by this many times as far as a step of either lies from its median towards
the other side."""
FIGURES_ALPHA, TRANSFERS_ALPHA, WAITS_ALPHA = 0.03, 0.015, 0.005
"""The parts of ALPHA for the figures of a step, for the transfers of collectives and for waiting, each on its own."""
_ROUNDING = 1e-12
"""Share of a figure that sums of floats lose."""
_POWER_Z = 0.8416
"""Quantile of the normal distribution at 80 %: the power that :attr:`Judgement.detectable` refers to."""

_MAD_TO_STANDARD_DEVIATION = 1.4826
"""Ratio of the standard deviation to the median absolute deviation of a normal distribution."""
_OUTLIER_DEVIATIONS, _OUTLIER_SHARE = 5.0, 0.05
"""A step is an outlier if it differs from the median by more than both: robust standard deviations, and a share of the
median."""
MIN_FOR_OUTLIERS = 5
"""Steps below which none is an outlier."""


@dataclass(frozen=True, slots=True)
class Power:
    """What a difference of two sides must be to be told from noise, and how many recordings tell a smaller one."""

    error: float
    """Standard error of the difference."""
    level: float
    """Rate of false alarms that this figure may have."""
    recordings: tuple[int, int]
    """Of A and of B."""

    def times(self, factor: float) -> Power:
        """Return the power of a figure in another unit."""
        return replace(self, error=self.error * factor)

    def with_limit(self, limit: float) -> float:
        """Return the difference that is found, and measured to be above a limit, in 80 % of such comparisons."""
        return limit + _POWER_Z * self.error

    def recordings_for(self, difference: float) -> int | None:
        """Return how many recordings of each side find a difference in 80 % of cases; None for more than 500.

        Recordings are taken to differ as these do; of one a side, as their steps make expect.
        """
        of_one = self.error / np.sqrt(1 / self.recordings[0] + 1 / self.recordings[1])

        def is_found(count: int) -> bool:
            noise = Noise(np.ones((1, 1)), np.array([[of_one * np.sqrt(2 / count)]]), 2 * count - 2)
            found = found_at(noise.half_width(np.array([self.level])), noise.error[0], noise.free)
            return bool(found[0] <= difference)

        counts = range(2, _MOST_RECORDINGS + 1)
        place = bisect_left(counts, True, key=is_found)  # more recordings find smaller differences
        return counts[place] if place < len(counts) else None


_MOST_RECORDINGS = 500
"""Most recordings of a side that are asked for."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one difference."""

    verdict: Verdict
    p: float | None
    """Rate at which noise alone makes as large a difference, corrected for the number of figures; None if unknown."""
    low: float | None = None
    high: float | None = None
    """95 % interval of the difference; None with too few steps."""
    detectable: float | None = None
    """Difference that would be called beyond noise in 80 % of such comparisons; None with too few steps."""
    drifts: bool = False
    """Whether the steps of a recording drift by more than the difference, so that it can't be attributed."""
    power: Power | None = None
    """What differences these recordings tell from noise; None with too few steps."""


def found_at(half: Float, error: Float, free: int) -> Float:
    """Return the difference that a test finds in 80 % of cases.

    The error is itself an estimate: the power is that of the noncentral t (Johnson and Welch 1940, approximated).

    Args:
        half: the smallest difference that the test calls beyond noise.
        error: the standard error of the difference, estimated with *free* degrees of freedom.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        quantile = np.where(error > 0, half / error, 0.0)
    return half + _POWER_Z * error * np.sqrt(1 + quantile**2 / (2 * free)) / (1 - 1 / (4 * free))


def inlier_steps(walls: Float) -> NDArray[np.bool_]:
    """Return which steps have a length like the others'.

    An outlier is further from the median than 5 robust standard deviations (from the median absolute deviation) and
    than 5 %, such as a first step that warms up or a step that writes a checkpoint. All steps are kept where more than
    a quarter would be outliers, since that is a pattern, and where there are fewer than 5 steps.
    """
    if len(walls) < MIN_FOR_OUTLIERS:
        return np.ones(len(walls), np.bool_)
    median = float(np.median(walls))
    deviation = np.abs(walls - median)
    robust_deviation = _MAD_TO_STANDARD_DEVIATION * float(np.median(deviation))
    kept: NDArray[np.bool_] = deviation <= max(_OUTLIER_DEVIATIONS * robust_deviation, _OUTLIER_SHARE * median)
    return kept if (~kept).sum() <= len(walls) // 4 else np.ones(len(walls), np.bool_)


def standard_deviation(values: Float) -> float | None:
    """Return the standard deviation of steps; None for a single step."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def has_enough_steps(steps_a: int, steps_b: int) -> bool:
    """Return whether a claim is allowed at all.

    >>> has_enough_steps(2, 2), has_enough_steps(3, 3), has_enough_steps(1, 100)
    (False, True, False)
    """
    return min(steps_a, steps_b) >= MIN_STEPS


def holm(p: Float, weights: Float) -> Float:
    """Correct p-values for the number of figures (weighted Holm): each p is compared with ALPHA times its share.

    Sorted by p / weight, the k-th is multiplied by the weights from k on, over its own; then made ascending.
    """
    order = np.argsort(p / weights, kind="stable")
    left = np.cumsum(weights[order][::-1])[::-1]
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * left / weights[order]), 1)
    return corrected


def judge(
    values: Float,
    steps: Steps,
    floor: float,
    margin: float,
    alpha: float = ALPHA,
    shares: Float | None = None,
    kind_weights: Float | None = None,
) -> list[Judgement]:
    """Judge the difference of each figure of a family, whose figures may be correlated.

    A difference is ``same`` up to *floor*, ``beyond noise`` where its corrected p-value is at most *alpha*,
    ``within noise`` where its 95 % interval excludes a change that matters, and otherwise ``cannot tell``. What
    one side has in every step and the other in none, and what is evident, is ``beyond noise`` without a test; then its
    p-value is None.

    Args:
        values: figures by steps.
        steps: what each step is.
        floor: resolution of the measurement, in the figures' unit.
        margin: difference that does not matter, in the figures' unit; nor does EQUIVALENT_SHARE of a figure, if less.
        alpha: rate at which noise alone may have any figure of the family called different.
        shares: part of *alpha* that each figure gets; by default the same.
        kind_weights: weight of each kind of step; by default its share of the steps.
    """
    weights = steps.kind_weights() if kind_weights is None else kind_weights
    contrast = steps.step_weights(weights) * np.where(steps.side, 1, -1)
    delta = values @ contrast
    larger = np.maximum(np.abs(values @ (contrast * (steps.side == 0))), np.abs(values @ (contrast * steps.side)))
    delta[np.abs(delta) <= _ROUNDING * larger] = 0
    evident = _evident(values, steps, contrast, margin)
    if not steps.enough or steps.free < MIN_FREE:
        verdicts = np.where(evident, "beyond noise", np.where(np.abs(delta) <= floor, "same", "cannot tell"))
        return [Judgement(verdict, None) for verdict in verdicts.tolist()]
    noise = noise_of(values, steps, contrast)
    present = values.any(axis=1)
    given = (np.ones(len(values)) if shares is None else shares)[present]
    corrected, level = np.ones(len(values)), np.full(len(values), alpha)
    corrected[present] = np.minimum(holm(noise.tail(np.abs(delta))[present], given) * ALPHA / alpha, 1)
    level[present] = alpha * given / given.sum()
    new = _new(values, steps.side, contrast, floor)
    drifting = drifts(values, steps, delta) & ~new
    margins = np.maximum(np.minimum(margin, EQUIVALENT_SHARE * larger), floor)
    recordings = steps.recordings(0), steps.recordings(1)
    found = _judgements(delta, noise, corrected, level, drifting, new, margins, floor, recordings)
    return [
        replace(one, verdict="beyond noise", p=None, drifts=False) if clear and one.verdict != "beyond noise" else one
        for one, clear in zip(found, evident.tolist(), strict=True)
    ]


def _evident(values: Float, steps: Steps, contrast: Float, margin: float) -> NDArray[np.bool_]:
    """Return which figures differ so much that no test is needed."""
    a, b = (values[:, (steps.side == side) & (contrast != 0)] for side in (0, 1))
    if not steps.comparable or min(a.shape[1], b.shape[1]) < MIN_STEPS:
        return np.zeros(len(values), np.bool_)
    many = min(a.shape[1], b.shape[1]) >= _MANY
    margins = margin * (_EVIDENT_MARGINS_OF_MANY if many else _EVIDENT_MARGINS)
    spreads = _EVIDENT_SPREADS_OF_MANY if many else _EVIDENT_SPREADS
    clear = np.zeros(len(values), np.bool_)
    for low, high in ((a, b), (b, a)):
        middle = np.median(low, axis=1), np.median(high, axis=1)
        spread = np.maximum(low.max(axis=1) - middle[0], middle[1] - high.min(axis=1))
        apart = high.min(axis=1) - low.max(axis=1)
        clear |= (apart > spreads * spread) & (middle[1] - middle[0] > margins)
    return clear


def _new(values: Float, side: Int64, contrast: Float, floor: float) -> NDArray[np.bool_]:
    """Return which figures one side has in every step, above the floor, and the other in none."""
    sides = [values[:, (side == one) & (contrast != 0)] for one in (0, 1)]
    none = [~one.any(axis=1) for one in sides]
    every = [(one > floor).all(axis=1) for one in sides]
    return np.logical_or(none[0] & every[1], none[1] & every[0])


def _judgements(
    delta: Float,
    noise: Noise,
    p: Float,
    level: Float,
    drifting: NDArray[np.bool_],
    new: NDArray[np.bool_],
    margin: Float,
    floor: float,
    recordings: tuple[int, int],
) -> list[Judgement]:
    half = noise.half_width(np.full(len(delta), ALPHA))
    error = (noise.weight * noise.error).sum(axis=0)
    detectable = found_at(noise.half_width(level), error, noise.free)
    moved = ((p <= ALPHA) | new) & (np.abs(delta) > floor)
    verdicts = np.where(np.abs(delta) + half <= margin, "within noise", "cannot tell")
    verdicts = np.where(moved & ~drifting, "beyond noise", np.where(moved, "cannot tell", verdicts))
    verdicts = np.where(np.abs(delta) <= floor, np.where((delta == 0) | (half <= margin), "same", verdicts), verdicts)
    columns = (p, delta - half, delta + half, np.maximum(detectable, floor), moved & drifting)
    powers = (Power(*pair, recordings) for pair in zip(error.tolist(), level.tolist(), strict=True))
    rows = zip(verdicts.tolist(), *(column.tolist() for column in columns), powers, strict=True)
    return [Judgement(row[0], None) if is_new else Judgement(*row) for row, is_new in zip(rows, new, strict=True)]

"""A latency alpha and a time beta per byte, fitted to measured times: robust, with confidence, and in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Fit", "Line", "Segment", "fit", "line_through", "pieces", "r_squared"]

Floats = NDArray[np.float64]

_RATIO = 2
"""Sizes must differ by more than this factor for the slope to mean anything."""
_HUBER = 1.345
"""Huber's bend, in standard deviations: 95 % of least squares' efficiency where errors are normal."""
_FINEST = 0.01
"""Relative deviation below which nothing counts as an outlier."""
_TURNS = 25
_DRAWS = 400
_FEWEST_ABOVE = 3
_FEWEST_IN_PIECE = 2
_SIZES_PER_PIECE = 4
"""How many sizes there must be for each piece, so that there is something to explain."""
_NOISE = 0.03
"""Least relative error of a median: what a few repetitions agree on by chance."""
_SMALL = 0.1
"""Deviation from a line, as a share of it, that no further line is spent on: no machine is exactly linear."""

_FARTHER = 2
"""How many times farther, in squares, one line must be off than several: scatter is not cut into pieces."""


@dataclass(frozen=True, slots=True)
class Line:
    """t = alpha + beta·n."""

    alpha_s: float
    beta_s_per_byte: float

    @property
    def crossover_bytes(self) -> float | None:
        """Give n* = alpha/beta, the size at which latency and transfer take equally long; None where beta is 0."""
        return self.alpha_s / self.beta_s_per_byte if self.beta_s_per_byte > 0 else None

    def seconds(self, size: float) -> float:
        """Give the time of a message of *size* bytes."""
        return self.alpha_s + self.beta_s_per_byte * size


@dataclass(frozen=True, slots=True)
class Segment:
    """A line, and the sizes that it holds for."""

    line: Line
    from_bytes: int
    to_bytes: int


@dataclass(frozen=True, slots=True)
class Fit:
    """The line through the medians, and how far it is to be believed."""

    line: Line
    alpha_range_s: tuple[float, float]
    """95 % confidence: bootstrap over sizes, and over repetitions within each size."""
    beta_range_s_per_byte: tuple[float, float]
    r2: float
    """Share of the variance of all medians that the line explains, each weighed by 1/t²."""
    r2_above: float | None
    """Share of the plain variance of the medians above the crossover; None where fewer than three lie there."""
    deviation: float
    """Median distance of a median from the line, as a share of the line."""
    worst: float
    """The largest such distance."""
    pieces: tuple[Segment, ...]
    """Several lines where one does not explain the medians; else none."""
    r2_pieces: float | None
    """As ``r2_above``, about those lines, adjusted for the numbers that they take; None where there are none, or fewer
    medians than numbers."""

    def seconds(self, size: float) -> float:
        """Give the time of a message of *size* bytes, by the piece that it falls into where there are pieces."""
        for piece in self.pieces:
            if size <= piece.to_bytes:
                return piece.line.seconds(size)
        return (self.pieces[-1].line if self.pieces else self.line).seconds(size)


def line_through(sizes: ArrayLike, seconds: ArrayLike, error: ArrayLike | None = None) -> Line:
    """Fit one line by least squares of relative errors, outliers bent down after Huber; neither term below 0.

    Args:
        sizes: bytes, ``(n,)``.
        seconds: times, ``(n,)``, all above 0.
        error: what each time may be off by, as a share of it; all alike where it is not given.

    Raises:
        ValueError: fewer than two sizes, or none twice as large as another.
    """
    x, y = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    if len(x) < 2 or x.max() < _RATIO * x.min():
        raise ValueError("a line needs sizes of which one is twice as large as another")
    if not np.all(y > 0):
        raise ValueError("a time must be above 0")
    share = np.ones_like(y) if error is None else np.asarray(error, np.float64)
    alpha, beta = _robust(x[None, :], y[None, :], share[None, :])
    return Line(float(alpha[0]), float(beta[0]))


def fit(sizes: Sequence[int], samples: Sequence[ArrayLike], seed: int = 0) -> Fit:
    """Fit the medians of repeated times.

    Args:
        sizes: bytes, increasing, ``(n,)``.
        samples: for each size the repetitions' times in seconds.
        seed: of the bootstrap, so that a file gives the same ranges twice.

    Raises:
        ValueError: as :func:`line_through` does.
    """
    x = np.asarray(sizes, np.float64)
    arrays = [np.asarray(sample, np.float64) for sample in samples]
    medians = np.array([np.median(sample) for sample in arrays])
    random = np.random.default_rng(seed)
    drawn = [np.median(s[random.integers(0, len(s), (_DRAWS, len(s)))], axis=1) for s in arrays]
    # What is known of each median: sizes whose times scatter count for less.
    error = np.maximum([float(d.std() / m) for d, m in zip(drawn, medians, strict=True)], _NOISE)
    line = line_through(x, medians, error)
    alphas, betas = _bootstrap(x, np.stack(drawn, axis=1), error, random)
    expected = line.alpha_s + line.beta_s_per_byte * x
    off = np.abs(medians - expected) / expected
    above = x > (line.crossover_bytes or 0.0)
    enough = line.beta_s_per_byte > 0 and int(above.sum()) >= _FEWEST_ABOVE
    found = pieces(x, medians, error)
    whole = Fit(
        line=line,
        alpha_range_s=_range(alphas, line.alpha_s),
        beta_range_s_per_byte=_range(betas, line.beta_s_per_byte),
        r2=r_squared(medians, expected, medians**-2),
        r2_above=r_squared(medians[above], expected[above]) if enough else None,
        deviation=float(np.median(off)),
        worst=float(off.max()),
        pieces=found,
        r2_pieces=None,
    )
    if not found or not enough:
        return whole
    by_piece = np.array([whole.seconds(size) for size in x[above]])
    free = int(above.sum()) - (3 * len(found) - 1)
    if free < 1:
        return whole
    left = 1 - r_squared(medians[above], by_piece)
    return replace(whole, r2_pieces=1 - left * (int(above.sum()) - 1) / free)


def r_squared(seconds: Floats, expected: Floats, weight: Floats | None = None) -> float:
    """Give R²: 1 less the share of the variance that is left about *expected*."""
    weight = np.ones_like(seconds) if weight is None else weight
    mean = float((weight * seconds).sum() / weight.sum())
    spread = float((weight * (seconds - mean) ** 2).sum())
    left = float((weight * (seconds - expected) ** 2).sum())
    return 1 - left / spread if spread > 0 else float(left == 0)


def pieces(sizes: ArrayLike, seconds: ArrayLike, error: ArrayLike, most: int = 3) -> tuple[Segment, ...]:
    """Cut the sizes where another line holds, as where NCCL goes from LL to LL128 to Simple, or a cache is full.

    Of one to *most* lines, those with the least Bayesian information criterion are taken, three numbers being paid
    for each further line; nothing where one line does about as well.

    Args:
        sizes: bytes, increasing, ``(n,)``.
        seconds: times, ``(n,)``.
        error: what each may be off by, as a share of it, ``(n,)``.
    """
    sigma = np.hypot(np.asarray(error, np.float64), _SMALL)
    x, y = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    count = len(x)
    # best[k][j]: least cost of the first j sizes in k pieces, and where the last of them begins.
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for _ in range(most):
        row: dict[int, tuple[float, int]] = {}
        for end in range(_FEWEST_IN_PIECE, count + 1):
            starts = [s for s in best[-1] if end - s >= _FEWEST_IN_PIECE]
            if starts:
                row[end] = min((best[-1][s][0] + _cost(x[s:end], y[s:end], sigma[s:end]), s) for s in starts)
        best.append(row)
    scores = {
        k: best[k][count][0] + 3 * k * np.log(count)
        for k in range(1, most + 1)
        if count in best[k] and k * _SIZES_PER_PIECE <= count
    }
    chosen = min(scores, key=lambda k: scores[k], default=1)
    if chosen == 1 or best[chosen][count][0] * _FARTHER > best[1][count][0]:
        return ()
    found, end = [], count
    for k in range(chosen, 0, -1):
        start = best[k][end][1]
        part = slice(start, end)
        alpha, beta = _solve(x[None, part], y[None, part], 1 / (y * sigma)[None, part])
        found.append(Segment(Line(float(alpha[0]), float(beta[0])), int(x[start]), int(x[end - 1])))
        end = start
    return tuple(reversed(found))


def _cost(x: Floats, y: Floats, sigma: Floats) -> float:
    """Give chi-square about the line through these."""
    alpha, beta = _solve(x[None, :], y[None, :], 1 / (y * sigma)[None, :])
    return float((((alpha[0] + beta[0] * x) / y - 1) ** 2 / sigma**2).sum())


def _robust(x: Floats, y: Floats, error: Floats) -> tuple[Floats, Floats]:
    """Fit many lines at once, ``(m, n)`` to ``(m,)`` each: reweighted until outliers count by their distance only.

    Errors are relative to the line, since relative to the times those that are too short would count most; distances
    are those of logarithms, where half and double are equally far.
    """
    alpha, beta = _solve(x, y, 1 / (y * error))
    for _ in range(_TURNS):
        line = np.maximum(alpha[:, None] + beta[:, None] * x, 1e-3 * y)
        off = np.abs(np.log(y / line))
        scale = np.maximum(1.4826 * np.median(off, axis=1), _FINEST)[:, None]
        bend = np.minimum(1.0, _HUBER * scale / np.maximum(off, 1e-12))
        alpha, beta = _solve(x, y, np.sqrt(bend) / (line * error))
    return alpha, beta


def _solve(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Solve the weighted normal equations of each row, neither term below 0."""
    unit = x.max(axis=1, keepdims=True)  # bytes and ones differ by nine orders of magnitude
    x, w = x / unit, weight**2
    one, up, square = w.sum(axis=1), (w * x).sum(axis=1), (w * x * x).sum(axis=1)
    right, slanted = (w * y).sum(axis=1), (w * x * y).sum(axis=1)
    det = one * square - up * up
    safe = np.where(det > 1e-12 * one * square, det, np.inf)  # rows of one size only have no slope
    alpha, beta = (square * right - up * slanted) / safe, (one * slanted - up * right) / safe
    flat = (beta < 0) | np.isinf(safe)
    alpha, beta = np.where(flat, right / one, alpha), np.where(flat, 0.0, beta)
    through = alpha < 0
    alpha, beta = np.where(through, 0.0, alpha), np.where(through, slanted / square, beta)
    return alpha, beta / unit[:, 0]


def _bootstrap(x: Floats, medians: Floats, error: Floats, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Fit lines to sizes drawn with replacement, each with one of its redrawn medians, ``(draws, n)``."""
    chosen = random.integers(0, len(x), (_DRAWS, len(x)))
    drawn = x[chosen]
    wide = drawn.max(axis=1) >= _RATIO * drawn.min(axis=1)
    return _robust(drawn[wide], np.take_along_axis(medians, chosen, axis=1)[wide], error[chosen][wide])


def _range(values: Floats, estimate: float) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975]) if len(values) else (estimate, estimate)
    return min(float(low), estimate), max(float(high), estimate)

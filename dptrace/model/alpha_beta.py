"""The alpha-beta model, fitted to measured times: latency alpha and seconds per byte beta.

There are two fits. :func:`weighted_line` is plain weighted least squares, for the collectives of a trace: few sizes
with many instances each, where medians already remove outliers. :func:`fit` is for link measurements: many sizes with
few repetitions each, so that it weights outliers down and adds confidence ranges and segments.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

MIN_SIZE_RATIO = 2
"""Least ratio of the largest to the smallest size for a meaningful slope."""
_HUBER = 1.345
"""Huber's threshold in standard deviations: 95 % of the efficiency of least squares for normal errors."""
_FINEST = 0.01
"""Relative deviation below which no point counts as an outlier."""
_TURNS = 25
"""Of fitting with new weights, at most."""
_DRAWS = 400
"""Draws of the bootstrap that gives the range of a fit."""
_MIN_ABOVE = 3
"""Sizes above the crossover from which the bandwidth is known."""
_MIN_IN_PIECE = 2
"""Sizes of a piece of a line in pieces."""
_SIZES_PER_PIECE = 4
"""Sizes required for each piece, so that more pieces than the data supports are never fitted."""
_NOISE = 0.03
"""Least relative error of a median: a few repetitions can agree this closely by chance."""
_SMALL = 0.1
"""Relative deviation from a line that does not justify another one: no machine is exactly linear."""

_MIN_IMPROVEMENT = 2
"""Factor by which several lines must reduce chi-square against one line, so that scatter is not cut into pieces."""


class Line(msgspec.Struct, frozen=True):
    """t = alpha + beta·n."""

    alpha_s: float
    beta_s_per_byte: float

    @property
    def crossover_bytes(self) -> float | None:
        """n* = alpha/beta, the size at which latency and transfer take equally long; None if beta is 0."""
        return self.alpha_s / self.beta_s_per_byte if self.beta_s_per_byte > 0 else None

    def seconds(self, size: float) -> float:
        """Return the time of a message of *size* bytes."""
        return self.alpha_s + self.beta_s_per_byte * size


class Segment(msgspec.Struct, frozen=True):
    """A line and the range of sizes it applies to."""

    line: Line
    from_bytes: int
    to_bytes: int


class Fit(msgspec.Struct, frozen=True):
    """The line through the medians, with its confidence ranges and goodness of fit."""

    line: Line
    alpha_range_s: tuple[float, float]
    """95 % confidence: bootstrap over sizes, and over repetitions within each size."""
    beta_range_s_per_byte: tuple[float, float]
    r2: float
    """Share of the variance of all medians that the line explains, each weighted by 1/t²."""
    r2_above: float | None
    """Share of the unweighted variance of the medians above the crossover; None if fewer than three lie there."""
    deviation: float
    """Median distance of the medians from the line, as a share of the line."""
    worst: float
    """The largest such distance."""
    pieces: tuple[Segment, ...]
    """Several lines if one does not explain the medians; otherwise empty."""
    r2_pieces: float | None
    """``r2_above`` of the pieces, adjusted for their number of parameters; None without pieces, or with fewer medians
    than parameters."""

    def seconds(self, size: float) -> float:
        """Return the time of a message of *size* bytes, from the piece that covers it if there are pieces."""
        for piece in self.pieces:
            if size <= piece.to_bytes:
                return piece.line.seconds(size)
        return (self.pieces[-1].line if self.pieces else self.line).seconds(size)


def line_through(sizes: ArrayLike, seconds: ArrayLike, error: ArrayLike | None = None) -> Line:
    """Fit one line by least squares of relative errors with Huber weights for outliers; neither term is below 0.

    Args:
        sizes: bytes, ``(n,)``.
        seconds: times, ``(n,)``, all above 0.
        error: relative error of each time; equal for all by default.

    Raises:
        ValueError: fewer than two sizes, or no size is twice another, or a time is not above 0.
    """
    x, y = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    if len(x) < 2 or x.max() < MIN_SIZE_RATIO * x.min():
        raise ValueError("the largest size must be at least twice the smallest")
    if not np.all(y > 0):
        raise ValueError("all times must be above 0")
    share = np.ones_like(y) if error is None else np.asarray(error, np.float64)
    alpha, beta = _robust(x[None, :], y[None, :], share[None, :])
    return Line(float(alpha[0]), float(beta[0]))


def weighted_line(sizes: NDArray[np.int64], seconds: Floats, weight: Floats) -> Line:
    """Fit one line by weighted least squares; neither term is below 0.

    Args:
        sizes: bytes, distinct and increasing, ``(n,)``.
        seconds: times, ``(n,)``.
        weight: of each residual, ``(n,)``.
    """
    design = np.stack((np.ones(len(sizes)), sizes.astype(np.float64)), axis=1) * weight[:, None]
    (alpha, beta), *_ = np.linalg.lstsq(design / [1, sizes[-1]], seconds * weight, rcond=None)
    if alpha >= 0 and beta >= 0:
        return Line(float(alpha), float(beta / sizes[-1]))
    column = design[:, 1] if beta >= 0 else design[:, 0]
    single = float(column @ (seconds * weight) / (column @ column))
    return Line(0.0, single) if beta >= 0 else Line(single, 0.0)


def fit(sizes: Sequence[int], samples: Sequence[ArrayLike], seed: int = 0) -> Fit:
    """Fit a line to the medians of repeated measurements.

    Args:
        sizes: bytes, increasing, ``(n,)``.
        samples: the times in seconds of each size's repetitions.
        seed: of the bootstrap, so that the same samples always yield the same ranges.

    Raises:
        ValueError: in the cases of :func:`line_through`.
    """
    x = np.asarray(sizes, np.float64)
    arrays = [np.asarray(sample, np.float64) for sample in samples]
    medians = np.array([np.median(sample) for sample in arrays])
    random = np.random.default_rng(seed)
    drawn = [np.median(s[random.integers(0, len(s), (_DRAWS, len(s)))], axis=1) for s in arrays]
    # Error of each median: sizes whose times scatter get less weight.
    error = np.maximum([float(d.std() / m) for d, m in zip(drawn, medians, strict=True)], _NOISE)
    line = line_through(x, medians, error)
    alphas, betas = _bootstrap(x, np.stack(drawn, axis=1), error, random)
    expected = line.alpha_s + line.beta_s_per_byte * x
    off = np.abs(medians - expected) / expected
    above = x > (line.crossover_bytes or 0.0)
    enough = line.beta_s_per_byte > 0 and int(above.sum()) >= _MIN_ABOVE
    segments = pieces(x, medians, error)
    whole = Fit(
        line=line,
        alpha_range_s=_range(alphas, line.alpha_s),
        beta_range_s_per_byte=_range(betas, line.beta_s_per_byte),
        r2=r_squared(medians, expected, medians**-2),
        r2_above=r_squared(medians[above], expected[above]) if enough else None,
        deviation=float(np.median(off)),
        worst=float(off.max()),
        pieces=segments,
        r2_pieces=None,
    )
    if not segments or not enough:
        return whole
    by_piece = np.array([whole.seconds(size) for size in x[above]])
    free = int(above.sum()) - (3 * len(segments) - 1)
    if free < 1:
        return whole
    left = 1 - r_squared(medians[above], by_piece)
    return replace(whole, r2_pieces=1 - left * (int(above.sum()) - 1) / free)


def r_squared(seconds: Floats, expected: Floats, weight: Floats | None = None) -> float:
    """Return R²: 1 minus the share of the variance that *expected* leaves unexplained."""
    weight = np.ones_like(seconds) if weight is None else weight
    mean = float((weight * seconds).sum() / weight.sum())
    spread = float((weight * (seconds - mean) ** 2).sum())
    left = float((weight * (seconds - expected) ** 2).sum())
    return 1 - left / spread if spread > 0 else float(left == 0)


def pieces(sizes: ArrayLike, seconds: ArrayLike, error: ArrayLike, most: int = 3) -> tuple[Segment, ...]:
    """Split the sizes where another line applies, such as where NCCL switches from LL to LL128 to Simple.

    The number of lines, from one to *most*, is the one with the least Bayesian information criterion, at three
    parameters for each line. Return an empty tuple if one line does about as well.

    Args:
        sizes: bytes, increasing, ``(n,)``.
        seconds: times, ``(n,)``.
        error: relative error of each time, ``(n,)``.
    """
    sigma = np.hypot(np.asarray(error, np.float64), _SMALL)
    x, y = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    count = len(x)
    # best[k][j]: least cost of the first j sizes in k pieces, and where the last piece begins.
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for _ in range(most):
        row: dict[int, tuple[float, int]] = {}
        for end in range(_MIN_IN_PIECE, count + 1):
            starts = [s for s in best[-1] if end - s >= _MIN_IN_PIECE]
            if starts:
                row[end] = min((best[-1][s][0] + _cost(x[s:end], y[s:end], sigma[s:end]), s) for s in starts)
        best.append(row)
    scores = {
        k: best[k][count][0] + 3 * k * np.log(count)
        for k in range(1, most + 1)
        if count in best[k] and k * _SIZES_PER_PIECE <= count
    }
    chosen = min(scores, key=lambda k: scores[k], default=1)
    if chosen == 1 or best[chosen][count][0] * _MIN_IMPROVEMENT > best[1][count][0]:
        return ()
    segments, end = [], count
    for k in range(chosen, 0, -1):
        start = best[k][end][1]
        part = slice(start, end)
        alpha, beta = _solve(x[None, part], y[None, part], 1 / (y * sigma)[None, part])
        segments.append(Segment(Line(float(alpha[0]), float(beta[0])), int(x[start]), int(x[end - 1])))
        end = start
    return tuple(reversed(segments))


def _cost(x: Floats, y: Floats, sigma: Floats) -> float:
    """Return chi-square of these points about the line through them."""
    alpha, beta = _solve(x[None, :], y[None, :], 1 / (y * sigma)[None, :])
    return float((((alpha[0] + beta[0] * x) / y - 1) ** 2 / sigma**2).sum())


def _robust(x: Floats, y: Floats, error: Floats) -> tuple[Floats, Floats]:
    """Fit many lines at once, ``(m, n)`` to ``(m,)`` each, by iteratively reweighted least squares.

    Errors are relative to the line: relative to the times, times that are too short would count most. Distances are
    logarithmic, so that half and double are equally far.
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
    """Solve the weighted normal equations of each row; neither term is below 0."""
    unit = x.max(axis=1, keepdims=True)  # bytes and ones differ by nine orders of magnitude
    x, w = x / unit, weight**2
    sum_w, sum_wx, sum_wxx = w.sum(axis=1), (w * x).sum(axis=1), (w * x * x).sum(axis=1)
    sum_wy, sum_wxy = (w * y).sum(axis=1), (w * x * y).sum(axis=1)
    det = sum_w * sum_wxx - sum_wx * sum_wx
    safe = np.where(det > 1e-12 * sum_w * sum_wxx, det, np.inf)  # rows with a single size have no slope
    alpha, beta = (sum_wxx * sum_wy - sum_wx * sum_wxy) / safe, (sum_w * sum_wxy - sum_wx * sum_wy) / safe
    no_slope = (beta < 0) | np.isinf(safe)
    alpha, beta = np.where(no_slope, sum_wy / sum_w, alpha), np.where(no_slope, 0.0, beta)
    negative_alpha = alpha < 0
    alpha, beta = np.where(negative_alpha, 0.0, alpha), np.where(negative_alpha, sum_wxy / sum_wxx, beta)
    return alpha, beta / unit[:, 0]


def _bootstrap(x: Floats, medians: Floats, error: Floats, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Fit lines to sizes drawn with replacement, each with one of its resampled medians, ``(draws, n)``."""
    chosen = random.integers(0, len(x), (_DRAWS, len(x)))
    drawn = x[chosen]
    wide = drawn.max(axis=1) >= MIN_SIZE_RATIO * drawn.min(axis=1)
    return _robust(drawn[wide], np.take_along_axis(medians, chosen, axis=1)[wide], error[chosen][wide])


def _range(values: Floats, estimate: float) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975]) if len(values) else (estimate, estimate)
    return min(float(low), estimate), max(float(high), estimate)


# Which bucket size hides most of DDP's communication, from a line alpha + beta·n and the times gradients are ready.
#
# Backward produces the gradients one after the other. DDP fills a bucket with them in that order and closes it once it
# reaches the cap (``compute_bucket_assignment_by_size`` in torch's reducer.cpp; Li et al., "PyTorch Distributed",
# VLDB 2020, section 3.2.3). The all-reduce of bucket i, of n_i bytes, begins when its last gradient is ready and the
# previous all-reduce has ended:
#
#     end_i = max(ready_i, end_(i-1)) + alpha + beta·n_i        exposed = end_last - ready_last
#
# Backward ends with its last gradient, which is in the last bucket, so ``exposed`` is the communication after backward.
# A small cap pays alpha often; a large one leaves much to send after backward. The model ignores that ranks are not
# ready at the same time and that concurrent communication slows compute down.


class CapPrediction(msgspec.Struct, frozen=True):
    """The prediction for one cap."""

    cap_bytes: int
    buckets: tuple[int, ...]
    """Bytes of each bucket, in the order of their all-reduces."""
    exposed_s: float


def bucket_ends(sizes: Sequence[int], cap_bytes: float) -> list[int]:
    """Return where each bucket ends: the number of gradients in it and all buckets before it.

    >>> bucket_ends([3, 1, 4, 1, 5], 4)  # a bucket closes when it reaches the cap, and may exceed it
    [2, 3, 5]

    Args:
        sizes: bytes of the gradients, in the order in which they become ready.
        cap_bytes: ``bucket_cap_mb`` times 2**20.
    """
    return _fill([0, *accumulate(sizes)], cap_bytes)


def _fill(sums: Sequence[int], cap_bytes: float) -> list[int]:
    ends, last = [0], len(sums) - 1
    while ends[-1] < last:
        ends.append(min(bisect_left(sums, sums[ends[-1]] + cap_bytes, ends[-1] + 1), last))
    return ends[1:]


def exposed_s(buckets: Sequence[int], ready_s: Sequence[float], line: Line) -> float:
    """Return the seconds of communication after the last bucket is ready.

    Args:
        buckets: bytes of each bucket, in order.
        ready_s: when each bucket is ready, from any common origin.
        line: the time of an all-reduce of n bytes.
    """
    end = -math.inf
    for size, ready in zip(buckets, ready_s, strict=True):
        end = max(ready, end) + line.seconds(size)
    return end - ready_s[-1] if buckets else 0.0


def predict(sizes: Sequence[int], ready_s: Sequence[float], cap_bytes: float, line: Line) -> CapPrediction:
    """Predict the buckets and the exposed time of a cap.

    Args:
        sizes: bytes of the gradients, in the order in which they become ready.
        ready_s: when each becomes ready, ascending, from any common origin.
    """
    return _predict([0, *accumulate(sizes)], ready_s, cap_bytes, line)


def _predict(sums: Sequence[int], ready_s: Sequence[float], cap_bytes: float, line: Line) -> CapPrediction:
    ends = _fill(sums, cap_bytes)
    filled = [sums[end] - sums[begin] for begin, end in zip([0, *ends], ends, strict=False)]
    return CapPrediction(round(cap_bytes), tuple(filled), exposed_s(filled, [ready_s[end - 1] for end in ends], line))


def candidate_caps(sizes: Sequence[int]) -> list[int]:
    """Return every cap whose buckets differ from those of the next smaller cap: the sums of neighboring gradients."""
    sums = [0, *accumulate(sizes)]
    return sorted({high - low for i, low in enumerate(sums) for high in sums[i + 1 :]})


def best_cap(
    sizes: Sequence[int],
    ready_s: Sequence[float],
    line: Line,
    among: Iterable[float] | None = None,
    slack: float = 0.0,
) -> CapPrediction:
    """Choose the cap with the least exposed time; among equals the one with the fewest buckets, then the larger one.

    Args:
        sizes: bytes of the gradients, in the order in which they become ready; at least one.
        ready_s: when each becomes ready, ascending.
        among: caps in bytes; by default all of :func:`candidate_caps`.
        slack: share by which a cap may exceed the least exposed time and still count as equal.
    """
    sums = [0, *accumulate(sizes)]
    choices = [_predict(sums, ready_s, cap, line) for cap in (candidate_caps(sizes) if among is None else among)]
    # Sums in a different order differ in their last digits.
    most = min(choice.exposed_s for choice in choices) * (1 + slack) + 1e-12
    equal = [choice for choice in choices if choice.exposed_s <= most]
    return min(equal, key=lambda choice: (len(choice.buckets), -choice.cap_bytes))


def pipelined_bytes(total: int, line: Line) -> float | None:
    """Return the bucket size of the closed form sqrt(S·alpha/beta), for comparison; None if beta is 0.

    It minimizes S/b·alpha + b·beta: the latencies of all calls, plus the transfer of the last bucket, which is exposed.
    It ignores backward. (Elsewhere written sqrt(s·o/w), with s bytes, o the overhead of a call and w the seconds per
    byte.)

    Args:
        total: S, the bytes of all gradients together.
    """
    return math.sqrt(total * line.alpha_s / line.beta_s_per_byte) if line.beta_s_per_byte > 0 else None

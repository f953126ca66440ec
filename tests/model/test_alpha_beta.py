"""Fits of latency and time per byte: exact lines, noise, outliers, and lines that change."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dptrace.model.alpha_beta import (
    Line,
    best_cap,
    bucket_ends,
    candidate_caps,
    exposed_s,
    fit,
    line_through,
    pieces,
    pipelined_bytes,
    predict,
    r_squared,
    weighted_line,
)

SIZES = [1024 << k for k in range(17)]
ALPHAS, BETAS = st.floats(1e-6, 1e-2), st.floats(1e-12, 1e-8)


def times(alpha: float, beta: float, scatter: float = 0.0, count: int = 15, seed: int = 1) -> list[np.ndarray]:
    """Return repetitions of every size with a relative scatter of *scatter*."""
    random = np.random.default_rng(seed)
    return [(alpha + beta * size) * np.exp(random.normal(0, scatter, count)) for size in SIZES]


@pytest.mark.heavy
@given(ALPHAS, BETAS)
def test_an_exact_line_is_found(alpha: float, beta: float) -> None:
    """Latency and slope are recovered at any scale, as far as both are visible."""
    assume(1e-3 < alpha / (beta * SIZES[-1]) < 1e3 and alpha / (beta * SIZES[0]) > 1e-3)
    line = line_through(SIZES, [alpha + beta * size for size in SIZES])

    assert line.alpha_s == pytest.approx(alpha, rel=1e-4)
    assert line.beta_s_per_byte == pytest.approx(beta, rel=1e-4)


@pytest.mark.heavy
@given(ALPHAS, BETAS)
def test_the_crossover_takes_twice_the_latency(alpha: float, beta: float) -> None:
    """n* = alpha/beta is where both terms are equal."""
    line = Line(alpha, beta)

    assert line.crossover_bytes is not None
    assert line.seconds(line.crossover_bytes) == pytest.approx(2 * alpha)


@pytest.mark.slow
@given(st.lists(st.floats(1e-6, 1.0), min_size=17, max_size=17), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_whatever_was_measured_both_terms_are_finite_and_not_negative(medians: list[float], seed: int) -> None:
    """They lie within their confidence ranges, and times by pieces are positive too."""
    found = fit(SIZES, [np.array([median]) for median in medians], seed)

    for value, (low, high) in (
        (found.line.alpha_s, found.alpha_range_s),
        (found.line.beta_s_per_byte, found.beta_range_s_per_byte),
    ):
        assert 0 <= low <= value <= high < np.inf
    assert found.r2 <= 1
    assert all(found.seconds(size) > 0 for size in SIZES)


@pytest.mark.parametrize("seed", range(5))
def test_noise_leaves_the_truth_in_the_confidence_range(seed: int) -> None:
    """With times that scatter by 20 %, twice the confidence range contains the true values, and R² is close to 1."""
    found = fit(SIZES, times(50e-6, 0.5e-9, 0.2, seed=seed))

    for (low, high), truth in ((found.alpha_range_s, 50e-6), (found.beta_range_s_per_byte, 0.5e-9)):
        assert low - (high - low) / 2 < truth < high + (high - low) / 2
    assert found.r2_above is not None
    assert found.r2_above > 0.95
    assert () == found.pieces


def test_three_spoiled_sizes_do_not_bend_the_line() -> None:
    """Least squares would follow outliers; Huber's weights limit their influence."""
    medians = np.array([50e-6 + 0.5e-9 * size for size in SIZES])
    medians[[2, 7, 12]] /= 5
    line = line_through(SIZES, medians)
    plain = np.polyfit(SIZES, medians, 1, w=1 / medians)

    assert line.alpha_s == pytest.approx(50e-6, rel=0.2)
    assert line.beta_s_per_byte == pytest.approx(0.5e-9, rel=0.2)
    assert abs(plain[0] / 0.5e-9 - 1) > 0.2 or abs(plain[1] / 50e-6 - 1) > 0.2


def test_sizes_that_scatter_count_for_less() -> None:
    """Of two contradicting halves, the line follows the one with less scatter."""
    medians = np.array([100e-6 if size < 65536 else 300e-6 for size in SIZES[:12]])
    error = np.array([0.03 if size < 65536 else 2.0 for size in SIZES[:12]])

    assert line_through(SIZES[:12], medians, error).seconds(1024) == pytest.approx(100e-6, rel=0.2)


def test_a_switch_of_protocol_is_cut_where_it_is() -> None:
    """A different latency and slope from 1 MB up: two pieces, each with its own."""
    medians = [20e-6 + 1e-9 * size if size < 2**20 else 200e-6 + 3e-9 * size for size in SIZES]
    found = pieces(SIZES, medians, [0.03] * len(SIZES))

    assert [(1024, 2**19), (2**20, SIZES[-1])] == [(piece.from_bytes, piece.to_bytes) for piece in found]
    assert found[0].line.alpha_s == pytest.approx(20e-6, rel=0.01)
    assert found[1].line.beta_s_per_byte == pytest.approx(3e-9, rel=0.01)
    assert () == pieces(SIZES, [20e-6 + 1e-9 * size for size in SIZES], [0.03] * len(SIZES))


def test_a_fit_in_pieces_says_how_well_one_line_and_several_do() -> None:
    """Both R² are reported, and times follow the pieces."""
    samples = [np.full(5, 20e-6 + (1e-9 if size < 2**22 else 4e-9) * size) for size in SIZES]
    found = fit(SIZES, samples)

    assert found.pieces
    assert found.r2_above is not None
    assert found.r2_pieces is not None
    assert found.r2_pieces > 0.999 > found.r2_above
    assert found.seconds(SIZES[-1]) == pytest.approx(samples[-1][0], rel=0.02)


@pytest.mark.parametrize(("sizes", "medians"), [([8], [1.0]), ([8, 12], [1.0, 2.0]), ([8, 64], [1.0, 0.0])])
def test_what_no_line_goes_through_is_refused(sizes: list[int], medians: list[float]) -> None:
    """One size, similar sizes, or a time of 0."""
    with pytest.raises(ValueError, match=r"at least twice|above 0"):
        line_through(sizes, medians)


def test_neither_term_of_a_weighted_line_is_negative() -> None:
    """If larger messages are faster, there is only latency; if small ones take no time, only bandwidth."""
    latency = weighted_line(np.array([1_000, 100_000]), np.array([2e-5, 1e-5]), np.array([5e4, 1e5]))
    bandwidth = weighted_line(np.array([1_000, 1_000_000]), np.array([1e-9, 1e-3]), np.array([1e9, 1e3]))

    assert 1e-5 < latency.alpha_s < 2e-5
    assert 0 == latency.beta_s_per_byte
    assert 0 == bandwidth.alpha_s
    assert bandwidth.beta_s_per_byte > 0


def test_r2_is_the_share_of_the_variance() -> None:
    """1 on the line, 0 for the mean; without variance, 1 for an exact prediction and 0 otherwise."""
    values = np.array([1.0, 2.0, 3.0])

    assert [1, 0] == [r_squared(values, values), r_squared(values, np.full(3, 2.0))]
    assert [1, 0] == [r_squared(np.ones(3), np.ones(3)), r_squared(np.ones(3), values)]


# The bucket size that the alpha-beta model chooses.


LINE = Line(2.0, 0.5)


def plainly(sizes: list[int], ready: list[float], cap: float, line: Line) -> float:
    """Simulate filling and sending, bucket by bucket and gradient by gradient."""
    free, held = float("-inf"), 0
    for number, (size, at) in enumerate(zip(sizes, ready, strict=True)):
        held += size
        if held >= cap or number == len(sizes) - 1:
            begin = at if at > free else free
            free, held = begin + line.alpha_s + line.beta_s_per_byte * held, 0
    return free - ready[-1]


def drawn(seed: int) -> tuple[list[int], list[float], Line]:
    random_ = random.Random(seed)
    count = random_.randint(1, 9)
    sizes = [random_.randint(1, 12) for _ in range(count)]
    ready = sorted(random_.uniform(0, 30) for _ in range(count))
    return sizes, ready, Line(random_.uniform(0, 3), random_.uniform(0, 1))


def test_three_buckets_by_hand() -> None:
    """The second waits for the first, the third for its gradients."""
    assert exposed_s([4, 4, 2], [0.0, 1.0, 20.0], LINE) == 3.0
    assert exposed_s([4, 4, 2], [0.0, 1.0, 5.0], LINE) == 0 + 4 + 4 + 3 - 5.0
    assert exposed_s([], [], LINE) == 0


def test_the_buckets_are_those_that_torch_made() -> None:
    """DDP's logged buckets of the recorded MLP of 8.4 million parameters with a cap of 4 MiB."""
    layers = [784, 2048, 2048, 1024, 512, 10]
    backwards = [4 * n for a, b in pairwise(layers) for n in (a * b, b)][::-1]
    choice = predict(backwards, [0.0] * len(backwards), 4 * 2**20, LINE)

    assert choice.buckets == (10512424, 16785408, 6430720)


def test_the_best_cap_is_the_best_of_all() -> None:
    """No other cap has less exposed time; each equals a plain simulation."""
    for sizes, ready, line in map(drawn, range(40)):
        best = best_cap(sizes, ready, line)
        everything = [plainly(sizes, ready, cap / 2, line) for cap in range(1, 2 * sum(sizes) + 3)]

        assert best.exposed_s == pytest.approx(min(everything))
        assert plainly(sizes, ready, best.cap_bytes, line) == pytest.approx(best.exposed_s)
        assert sum(best.buckets) == sum(sizes)
        for cap in (1, 3.5, 7, 1000):
            assert predict(sizes, ready, cap, line).exposed_s == pytest.approx(plainly(sizes, ready, cap, line))


def test_caps_between_two_make_the_buckets_of_the_larger() -> None:
    """The candidates include every distinct set of buckets."""
    sizes = [3, 1, 4, 1, 5]
    known = candidate_caps(sizes)

    for cap in range(1, sum(sizes) + 1):
        assert bucket_ends(sizes, cap) == bucket_ends(sizes, min(one for one in known if one >= cap))


def test_without_latency_small_buckets_win_and_without_bytes_large_ones() -> None:
    """The two extremes of the trade-off."""
    sizes, ready = [4] * 8, [float(k) for k in range(8)]

    assert len(best_cap(sizes, ready, Line(0.0, 1.0)).buckets) == 8
    assert len(best_cap(sizes, ready, Line(9.0, 0.0)).buckets) == 1
    assert best_cap(sizes, ready, LINE, among=[4, 8]).cap_bytes in (4, 8)


def test_the_closed_form_is_the_least_of_its_sum() -> None:
    """No other size has a smaller sum of latencies and last transfer; None without beta."""
    total, line = 1_000_000, Line(1e-3, 1e-8)
    best = pipelined_bytes(total, line) or 0.0

    def cost(size: float) -> float:
        return total / size * line.alpha_s + size * line.beta_s_per_byte

    assert all(cost(best) <= cost(best * factor) for factor in (0.5, 0.9, 1.1, 2))
    assert pipelined_bytes(total, Line(1e-3, 0.0)) is None

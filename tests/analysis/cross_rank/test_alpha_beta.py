"""Latency and bandwidth fitted to the collectives of a run."""

from __future__ import annotations

import pytest

from dptrace.analysis.cross_rank.alpha_beta import AlphaBeta, alpha_beta
from dptrace.analysis.cross_rank.clocks.estimate import estimate
from dptrace.analysis.cross_rank.transfers import timing
from dptrace.analysis.matching.match import match
from tests.support.rank_cases import Call, rank, real_ranks, reduce
from tests.support.real_traces import needs_real_traces

MS = 1_000_000
SIZES = [1_000, 10_000, 100_000, 1_000_000, 10_000_000]


def fitted(calls: list[Call], world_size: int = 2) -> tuple[AlphaBeta, ...]:
    run = [rank(number, calls) for number in range(2)]
    matches = match(run, world_size)
    return alpha_beta(matches, timing(matches, estimate(matches, run)))


def calls(lengths: dict[int, list[int]]) -> list[Call]:
    flat = [(size, length) for size, several in lengths.items() for length in several]
    return [reduce(0, (i + 1) * 10 * MS, size, length, group="") for i, (size, length) in enumerate(flat)]


def test_a_line_is_found_again() -> None:
    """20 µs and 100 GB/s, from sizes over four decades, despite one slow instance of each size."""
    (fit,) = fitted(calls({size: [20_000 + size // 100] * 4 + [900_000] for size in SIZES}))

    assert fit.alpha_s is not None
    assert fit.beta_s_per_byte is not None
    assert fit.crossover_bytes is not None
    assert 20e-6 == pytest.approx(fit.alpha_s, rel=0.01)
    assert 1e-11 == pytest.approx(fit.beta_s_per_byte, rel=0.01)
    assert 2e6 == pytest.approx(fit.crossover_bytes, rel=0.02)
    assert 30e-6 == pytest.approx(fit.seconds(1_000_000), rel=0.02)
    assert (25, 5, 2, "") == (fit.count, fit.sizes, fit.ranks, fit.reason)


def test_how_well_it_fits_is_reported() -> None:
    """On a line, R² is 1 and the deviation 0; scatter lowers R² and raises the deviation."""
    (good,) = fitted(calls({size: [20_000 + size // 100] for size in SIZES}))
    (bad,) = fitted(calls({size: [30_000 + size // 100, 10_000 + size // 100] for size in SIZES}))

    assert good.r2 is not None
    assert bad.r2 is not None
    assert good.deviation is not None
    assert bad.deviation is not None
    assert good.r2 > 0.999 > bad.r2
    assert good.deviation < 0.01 < bad.deviation


@pytest.mark.parametrize(
    ("lengths", "world_size", "reason"),
    [
        ({1_000: [10_000] * 9}, 2, "factor of two"),
        ({1_000: [10_000], 2_000: [11_000]}, 2, "factor of two"),
        ({0: [10_000] * 9}, 2, "known bytes"),
        ({1_000: [10_000], 9_000: [12_000]}, 3, "all its ranks"),
    ],
)
def test_without_enough_there_is_no_fit_but_a_reason(
    lengths: dict[int, list[int]], world_size: int, reason: str
) -> None:
    """One size, similar sizes, unknown sizes, missing ranks."""
    (fit,) = fitted(calls(lengths), world_size)

    assert (None, None, None) == (fit.alpha_s, fit.beta_s_per_byte, fit.crossover_bytes)
    assert reason in fit.reason
    assert fit.seconds(1_000) is None


@needs_real_traces
def test_eight_h100s_have_an_nvlink() -> None:
    """About 10 µs and 300 to 400 GB/s, the bandwidth that eight H100s reach."""
    run = real_ranks("sharded_h100_8ranks")
    matches = match(run)

    fits = alpha_beta(matches, timing(matches, estimate(matches, run)))

    assert ["all_gather", "reduce_scatter"] == [fit.kind for fit in fits]
    for fit in fits:
        assert fit.alpha_s is not None
        assert fit.beta_s_per_byte is not None
        assert 5e-6 < fit.alpha_s < 40e-6
        assert 250e9 < 1 / fit.beta_s_per_byte < 450e9


def test_busbw_is_that_of_nccl_tests_at_the_line() -> None:
    """2 (n - 1) / n of the bytes over the fitted time; None without a fit."""
    fit = AlphaBeta("all_reduce", 0, 4, 10, 5, 10e-6, 1e-11, 1.0, 0.0)

    assert 1.5 * 1_000_000 / 20e-6 == pytest.approx(fit.busbw(1_000_000))
    assert AlphaBeta("all_reduce", 0, 4, 0, 0, None, None, None, None, "too few").busbw(1_000) is None

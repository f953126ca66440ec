"""The bucket size that the alpha-beta model chooses."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from dptrace.model.alpha_beta import Line
from dptrace.model.bucket_size import best_cap, bucket_ends, candidate_caps, exposed_s, pipelined_bytes, predict

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


@pytest.mark.parametrize("seed", range(40))
def test_the_best_cap_is_the_best_of_all(seed: int) -> None:
    """No other cap has less exposed time; each equals a plain simulation."""
    sizes, ready, line = drawn(seed)
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

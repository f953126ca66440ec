"""What is noise and what is not."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dptrace.comparison.significance import ALPHA, has_enough_steps, holm, inlier_steps, judge, standard_deviation
from dptrace.comparison.step_noise import Float, Steps
from tests.comparison.test_step_noise import steps_of

FIGURES = 8


def family(draw: np.random.Generator, steps: int, phi: float = 0.0, moved: float = 0.0) -> Float:
    """Figures of 100 with a standard deviation of 1 and a lag-1 autocorrelation, the first of which is moved."""
    noise = draw.standard_normal((FIGURES, steps))
    for k in range(1, steps):
        noise[:, k] = phi * noise[:, k - 1] + np.sqrt(1 - phi**2) * noise[:, k]
    noise[0] += moved
    return 100 + noise


def verdicts(a: Float, b: Float, kinds: int = 1, floor: float = 0.01) -> list[str]:
    steps = steps_of((0, a.shape[1]), (1, b.shape[1]), kinds=kinds)
    return [one.verdict for one in judge(np.concatenate((a, b), axis=1), steps, floor, 3.0)]


@pytest.mark.heavy
@pytest.mark.parametrize("steps", [4, 10])
@pytest.mark.parametrize("phi", [0.0, 0.5])
def test_two_recordings_of_the_same_thing_are_rarely_called_different(steps: int, phi: float) -> None:
    """In at most a twentieth of 100 comparisons is any figure named, also where steps depend on each other."""
    draw = np.random.default_rng(steps)
    named = sum("beyond noise" in verdicts(family(draw, steps, phi), family(draw, steps, phi)) for _ in range(100))

    assert named <= 5


@pytest.mark.heavy
def test_what_is_large_is_found() -> None:
    """A move of eight standard deviations is named, and of the seven other figures few are."""
    draw = np.random.default_rng(10)
    found = [verdicts(family(draw, 10, 0.5), family(draw, 10, 0.5, 8)) for _ in range(60)]

    assert sum(one[0] == "beyond noise" for one in found) >= 54
    assert sum("beyond noise" in one[1:] for one in found) <= 6


def test_kinds_of_steps_are_no_noise() -> None:
    """A move that is small beside the distance of two alternating kinds is named; as one kind, it cannot be told."""
    draw = np.random.default_rng(3)
    zigzag = 30.0 * (np.arange(12) % 2)
    a, b = (family(draw, 12) + zigzag for _ in range(2))
    b[0] += 6

    assert "beyond noise" == verdicts(a, b, kinds=2)[0]
    assert "cannot tell" == verdicts(a, b, kinds=1)[0]


def test_unequal_numbers_of_a_kind_are_no_difference() -> None:
    """A side that happens to have more of the longer steps is not slower."""
    draw = np.random.default_rng(4)
    place = np.arange(15)
    steps = Steps(
        np.repeat([0, 1], [8, 7]), np.repeat([0, 1], [8, 7]), np.r_[place[:8] % 2, (place[:7] + 1) % 2], place
    )
    values = draw.standard_normal((1, 15)) * 0.01 + 100 + 50 * steps.kind

    assert "same" == judge(values, steps, 0.1, 3)[0].verdict


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        pytest.param([1162, 1150, 1170], [184, 190, 181], "beyond noise", id="evident"),
        pytest.param([1162, 1150, 3000], [184, 190, 181], "beyond noise", id="with an odd step away from the others"),
        pytest.param([1162, 1150, 400], [184, 190, 181], "cannot tell", id="with an odd step towards the others"),
        pytest.param([200, 201, 202], [140, 141, 142], "cannot tell", id="by less than half"),
        pytest.param([200, 250, 300], [80, 120, 150], "cannot tell", id="as far apart as the steps of a side"),
        pytest.param([200, 201, 190], [100, 101, 195], "cannot tell", id="overlapping"),
        pytest.param([200, 201], [100, 101, 102], "cannot tell", id="two steps"),
        pytest.param([5, 5, 5], [5, 5, 5], "same", id="none at all"),
    ],
)
def test_few_steps_show_what_is_evident(a: list[float], b: list[float], verdict: str) -> None:
    """Each step of a side lies far from each of the other; there is no p-value. Nothing is where steps are unlike."""
    counts = [len(a), len(b)]
    place = np.concatenate([np.arange(count) for count in counts])
    side, values = np.repeat([0, 1], counts), np.array([a + b], float)
    steps = Steps(side, side, np.zeros(sum(counts), np.int64), place, False)
    margin = 0.03 * max(float(np.mean(a)), float(np.mean(b)))

    found, back = (judge(values, replace(steps, side=one), 0.1, margin)[0] for one in (side, 1 - side))
    assert (verdict, None, verdict) == (found.verdict, found.p, back.verdict)
    (unlike,) = judge(values, replace(steps, comparable=False), 0.1, margin)
    assert unlike.verdict == ("same" if verdict == "same" else "cannot tell")
    assert not has_enough_steps(3, 30)


@pytest.mark.parametrize("count", [3, 4])
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_few_divisions_of_the_same_steps_are_evident(count: int, data: st.DataObject) -> None:
    """However steps are spread: of all ways to divide them into two sides, at most one falls apart by chance."""
    lengths = st.sampled_from([100.0, 101, 130, 200, 1000]) | st.floats(10, 1000)
    steps = np.array([data.draw(st.lists(lengths, min_size=2 * count, max_size=2 * count))])
    design = steps_of((0, count), (1, count))
    claims = 0
    for chosen in combinations(range(1, 2 * count), count - 1):
        order = [0, *chosen, *(k for k in range(2 * count) if k and k not in chosen)]
        found = judge(steps[:, order], replace(design, enough=False), 0.001, 0.03 * float(steps.mean()))[0]
        claims += found.verdict == "beyond noise"
    assert claims <= 1


@pytest.mark.heavy
@pytest.mark.parametrize("spread", ["normal", "a third slower at times", "skewed"])
def test_exchangeable_steps_are_hardly_ever_evident(spread: str) -> None:
    """Three and three steps of one distribution, however noisy: in at most 3 % of 400 divisions (1 of 32 where lengths
    are two by nature, 1 of 10 in the worst case).
    """
    draw = np.random.default_rng(2)
    design = replace(steps_of((0, 3), (1, 3)), enough=False)
    normal = draw.standard_normal((400, 6))
    lengths = {
        "normal": 1 + 0.2 * normal,
        "a third slower at times": (1 + (draw.random((400, 6)) < 0.3) / 3) * (1 + 0.01 * normal),
        "skewed": np.exp(0.4 * normal),
    }[spread]
    named = 0
    for values in 100 * lengths:
        named += judge(values[None], design, 0.1, 0.03 * float(values.mean()))[0].verdict == "beyond noise"
    assert named <= 12


def test_what_is_not_found_is_unchanged_only_where_a_change_would_have_been_found() -> None:
    """Quiet steps show that nothing changed by 3 %; noisy ones cannot tell."""
    draw = np.random.default_rng(5)
    quiet = 100 + 0.3 * draw.standard_normal((1, 20))
    noisy = 100 + 20 * draw.standard_normal((1, 20))
    steps = steps_of((0, 10), (1, 10))
    (one,), (other,) = (judge(values, steps, 0.001, 3) for values in (quiet, noisy))

    assert "within noise" == one.verdict
    assert "cannot tell" == other.verdict
    assert one.detectable is not None
    assert one.detectable < 3 < (other.detectable or 0)


def test_what_only_one_side_has_needs_no_test() -> None:
    """Communication that is overlapped in every step of B and in none of A."""
    steps = steps_of((0, 4), (1, 4))
    (found,) = judge(np.array([[0.0, 0, 0, 0, 48, 22, 20, 28]]), steps, 0.2, 3)

    assert ("beyond noise", None) == (found.verdict, found.p)


def test_steps_that_drift_show_nothing() -> None:
    """A difference smaller than what each recording drifts by is not attributed."""
    steps = steps_of((0, 40), (1, 40))
    ramp = np.linspace(0, 4, 40)
    draw = np.random.default_rng(0)
    values = np.concatenate((100 + ramp, 103.9 + ramp)) + 0.01 * draw.standard_normal(80)
    still = np.concatenate((np.full(40, 100.0), np.full(40, 103.9))) + 0.01 * draw.standard_normal(80)

    assert "cannot tell" == judge(values[None], steps, 0.1, 3)[0].verdict
    assert "beyond noise" == judge(still[None], steps, 0.1, 3)[0].verdict


def test_recordings_that_differ_among_themselves_make_no_claim() -> None:
    """Three recordings each, quiet in themselves, on a machine that changes from one to the next."""
    levels = [100.0, 130.0, 110.0, 125.0, 105.0, 135.0]
    draw = np.random.default_rng(0)
    steps = steps_of(*[(side, 10) for side in (0, 0, 0, 1, 1, 1)])
    wander = np.repeat(levels, 10) + 0.1 * draw.standard_normal(60)
    slower = np.repeat([100.0, 100.2, 100.1, 110.0, 110.1, 110.2], 10) + 0.1 * draw.standard_normal(60)

    assert "cannot tell" == judge(wander[None], steps, 0.1, 3)[0].verdict
    assert "beyond noise" == judge(slower[None], steps, 0.1, 3)[0].verdict


values = npst.arrays(np.float64, (3, 10), elements=st.integers(0, 50).map(float))


@pytest.mark.heavy
@settings(max_examples=30, deadline=None)
@given(values)
def test_there_is_no_before_and_after(both: Float) -> None:
    """A against B and B against A get the same verdicts, p-values and, mirrored, intervals."""
    steps = steps_of((0, 5), (1, 5))
    forth = judge(both, steps, 0.5, 3)
    back = judge(np.roll(both, 5, axis=1), steps, 0.5, 3)

    assert [one.verdict for one in forth] == [one.verdict for one in back]
    for one, other in zip(forth, back, strict=True):
        assert (one.p or 0) == pytest.approx(other.p or 0)
        assert one.low == pytest.approx(other.high and -other.high, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(values)
def test_verdicts_agree_with_p_values_and_intervals(both: Float) -> None:
    """Beyond noise: a p-value of at most 5 %, an interval without 0; within noise: an interval inside the margin."""
    for one in judge(both, steps_of((0, 5), (1, 5)), 0.5, 3):
        if one.p is None or one.low is None or one.high is None:
            continue
        if one.verdict == "beyond noise":
            assert one.p <= ALPHA
            assert not one.low <= 0 <= one.high
        if one.verdict == "within noise":
            assert -3.001 <= one.low <= one.high <= 3.001


@pytest.mark.heavy
@settings(max_examples=40, deadline=None)
@given(npst.arrays(np.float64, (3, 5), elements=st.integers(0, 50).map(float)))
def test_a_run_is_like_itself(a: Float) -> None:
    """No difference, whatever the noise."""
    assert {"same"} == set(verdicts(a, a, floor=0.5))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=12), st.integers(0, 99))
def test_holm_is_between_no_correction_and_bonferroni(p: list[float], seed: int) -> None:
    """With any weights; and it keeps the order of p over weight."""
    given_p = np.array(p)
    weights = np.random.default_rng(seed).random(len(p)) + 0.1
    corrected = holm(given_p, weights)

    assert (corrected >= given_p - 1e-12).all()
    assert (corrected <= np.minimum(given_p * weights.sum() / weights, 1) + 1e-12).all()
    assert (np.diff(corrected[np.argsort(given_p / weights, kind="stable")]) >= 0).all()


def test_holm_is_that_of_a_textbook() -> None:
    """Four p-values, equal weights."""
    assert holm(np.array([0.01, 0.04, 0.03, 0.005]), np.ones(4)) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_one_step_has_no_spread() -> None:
    """A standard deviation needs two."""
    assert standard_deviation(np.array([1.0])) is None
    assert standard_deviation(np.array([1.0, 3.0])) == pytest.approx(2**0.5)


@pytest.mark.parametrize(
    ("walls", "kept"),
    [
        pytest.param([200, 101, 100, 99, 100, 102], "011111", id="a slow first step"),
        pytest.param([100, 101, 300, 99, 100, 102], "110111", id="a checkpoint"),
        pytest.param([100, 104, 98, 101, 103, 99], "111111", id="noise"),
        pytest.param([100, 100, 100, 104, 100, 100], "111111", id="four per cent are no outlier"),
        pytest.param([100, 200, 100, 200, 100, 200, 100, 100], "11111111", id="a pattern is no outlier"),
        pytest.param([300, 100, 100, 100], "1111", id="of four steps none is one"),
    ],
)
def test_outliers_are_left_out(walls: list[int], kept: str) -> None:
    """Those that are far from the median both by the others' spread and by share, while they are few."""
    assert kept == "".join(str(int(keep)) for keep in inlier_steps(np.array(walls, np.float64)))

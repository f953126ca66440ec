"""What is noise and what is not."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dptrace.comparison import significance
from dptrace.comparison.significance import (
    ALPHA,
    START,
    Float,
    Steps,
    has_enough_steps,
    holm,
    inlier_steps,
    judge,
    noise_of,
    student_p,
)

# The noise of a difference between steps that depend on each other.


def steps_of(*counts: tuple[int, int], kinds: int = 1) -> Steps:
    """Describe recordings, each by its side and number of steps, whose kinds alternate."""
    place = np.concatenate([np.arange(count) for _, count in counts])
    return Steps(
        side=np.repeat([side for side, _ in counts], [count for _, count in counts]),
        recording=np.repeat(np.arange(len(counts)), [count for _, count in counts]),
        kind=place % kinds,
        place=place,
    )


def contrast(steps: Steps) -> Float:
    return steps.step_weights(steps.kind_weights()) * np.where(steps.side, 1, -1)


def test_student_p_is_that_of_tables() -> None:
    """For even and odd degrees of freedom."""
    for t, free, p in (
        (12.706, 1, 0.05),
        (4.303, 2, 0.05),
        (3.182, 3, 0.05),
        (2.228, 10, 0.05),
        (2.042, 30, 0.05),
        (31.599, 2, 0.001),
    ):
        assert student_p(np.array([t, -t]), free) == pytest.approx([p, p], rel=1e-3)


@pytest.mark.heavy
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.floats(0, 50), st.floats(0, 50))
def test_student_p_falls_with_t_and_with_the_degrees_of_freedom(free: int, t: float, u: float) -> None:
    """From 1 at 0; more degrees of freedom have lighter tails."""
    low, high = sorted((t, u))
    p = student_p(np.array([0.0, low, high]), free)

    assert 1 == p[0]
    assert p[2] <= p[1] + 1e-12
    assert student_p(np.array([high]), free + 1)[0] <= p[2] + 1e-9


@pytest.mark.heavy
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(2, 6)), min_size=2, max_size=5), st.integers(1, 2))
def test_the_variance_of_a_contrast_is_that_of_its_matrix(counts: list[tuple[int, int]], kinds: int) -> None:
    """c'Ωc, with Ω = phi^|t − u| within a recording and 0 between recordings."""
    counts = [(0, 3), *sorted(counts), (1, 3)]
    steps = steps_of(*counts, kinds=kinds)
    c = contrast(steps)
    apart = np.abs(steps.place[:, None] - steps.place)
    same = steps.recording[:, None] == steps.recording
    expected = [c @ np.where(same, phi**apart, 0) @ c for phi in significance._PHI]

    assert significance._variance_of(c[None], steps)[:, 0] == pytest.approx(expected)


@given(st.integers(0, 999), st.sampled_from([0.0, 0.3, 0.9]))
@settings(max_examples=30, deadline=None)
def test_whitened_residuals_are_those_of_generalized_least_squares(seed: int, phi: float) -> None:
    """y'(Ω⁻¹ − Ω⁻¹X(X'Ω⁻¹X)⁻¹X'Ω⁻¹)y, also with steps left out."""
    draw = np.random.default_rng(seed)
    place = np.concatenate([np.sort(draw.choice(12, 6, replace=False)) for _ in range(2)])
    steps = Steps(np.repeat([0, 1], 6), np.repeat([0, 1], 6), np.tile([0, 1, 0, 1, 0, 1], 2), place)
    y, x = draw.standard_normal((1, 12)), np.eye(4)[steps.cell]
    same = steps.recording[:, None] == steps.recording
    inverse = np.linalg.inv(np.where(same, phi ** np.abs(place[:, None] - place).astype(float), 0))
    hat = inverse - inverse @ x @ np.linalg.inv(x.T @ inverse @ x) @ x.T @ inverse

    assert significance._whitened(y, x, steps, phi)[0] == pytest.approx([(y @ hat @ y.T).item()])


def test_weights_sum_to_one_on_each_side_and_give_kinds_the_same_share() -> None:
    """However many steps of a kind, and recordings, a side has."""
    steps = steps_of((0, 7), (0, 4), (1, 5), kinds=2)
    weights = steps.step_weights(steps.kind_weights())

    for side in (0, 1):
        assert 1 == pytest.approx(weights[steps.side == side].sum())
        shares = [weights[(steps.side == side) & (steps.kind == kind)].sum() for kind in (0, 1)]
        assert steps.kind_weights().tolist() == pytest.approx(shares)


def test_one_recording_each_has_the_noise_of_starts() -> None:
    """With many independent steps the standard error is START standard deviations of a step, for each start."""
    draw = np.random.default_rng(0)
    steps = steps_of((0, 500), (1, 500))
    noise = noise_of(draw.standard_normal((1, 1000)), steps, contrast(steps))

    assert (noise.weight * noise.error).sum() == pytest.approx(START * np.sqrt(2), rel=0.1)


def test_several_recordings_show_how_starts_differ() -> None:
    """The standard error is that of the recordings' means, with as many degrees of freedom as they have."""
    means = np.array([10.0, 12.0, 14.0, 11.0, 13.0, 15.0])
    steps = steps_of(*[(side, 8) for side in (0, 0, 0, 1, 1, 1)])
    values = np.repeat(means, 8) + np.tile([0.01, -0.01], 24)
    noise = noise_of(values[None], steps, contrast(steps))

    assert 4 == noise.free
    assert noise.error[0, 0] == pytest.approx(np.sqrt(4 * (1 / 3 + 1 / 3)), rel=1e-3)


def test_recordings_that_agree_by_chance_are_not_trusted_beyond_their_steps() -> None:
    """Two equal means of noisy steps still have the steps' noise."""
    draw = np.random.default_rng(1)
    one = draw.standard_normal(8)
    steps = steps_of(*[(side, 8) for side in (0, 0, 1, 1)])
    noise = noise_of(np.tile(one, 4)[None], steps, contrast(steps))

    assert noise.error[0, 0] > 0.5 * one.std() / np.sqrt(8)


@pytest.mark.heavy
@given(st.integers(0, 999), st.floats(0.005, 0.5))
@settings(max_examples=30, deadline=None)
def test_a_half_width_has_its_p_value(seed: int, alpha: float) -> None:
    """The search inverts the tail."""
    draw = np.random.default_rng(seed)
    steps = steps_of((0, 6), (1, 7))
    noise = noise_of(draw.standard_normal((3, 13)), steps, contrast(steps))

    assert noise.tail(noise.half_width(np.full(3, alpha))) == pytest.approx([alpha] * 3, rel=1e-3)


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


@pytest.mark.slow
@pytest.mark.parametrize("steps", [3, 10])
@pytest.mark.parametrize("phi", [0.0, 0.8])
def test_two_recordings_of_the_same_thing_are_rarely_called_different(steps: int, phi: float) -> None:
    """In at most a twentieth of 100 comparisons is any figure named, also where steps depend on each other.

    With ten steps and a correlation of 0.8, where the rate is near 5 %, up to 12 of 100 are that by chance.
    """
    draw = np.random.default_rng(steps)
    named = sum("beyond noise" in verdicts(family(draw, steps, phi), family(draw, steps, phi)) for _ in range(100))

    assert named <= (12 if phi == 0.8 else 5)


@pytest.mark.slow
def test_three_steps_show_a_change_of_many_times_their_spread() -> None:
    """A move of twenty standard deviations is named nearly always, of the other figures few are; one of two hardly."""
    draw = np.random.default_rng(3)
    found = [verdicts(family(draw, 3), family(draw, 3, moved=20)) for _ in range(60)]
    little = [verdicts(family(draw, 3), family(draw, 3, moved=2)) for _ in range(60)]

    assert sum(one[0] == "beyond noise" for one in found) >= 57
    assert sum("beyond noise" in one[1:] for one in found) <= 3
    assert sum(one[0] == "beyond noise" for one in little) <= 6


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
        pytest.param([200, 201, 202], [140, 141, 142], "cannot tell", id="by less than half, of unlike steps"),
        pytest.param([200, 250, 300], [80, 120, 150], "cannot tell", id="as far apart as the steps of a side"),
        pytest.param([200, 201, 190], [100, 101, 195], "cannot tell", id="overlapping"),
        pytest.param([200, 201], [100, 101, 102], "cannot tell", id="two steps"),
        pytest.param([5, 5, 5], [5, 5, 5], "same", id="none at all"),
    ],
)
def test_what_is_evident_needs_no_test(a: list[float], b: list[float], verdict: str) -> None:
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
    assert not has_enough_steps(2, 30)


@pytest.mark.heavy
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


values = npst.arrays(np.float64, (3, 10), elements=st.integers(0, 50).map(float))


@pytest.mark.slow
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


@pytest.mark.heavy
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

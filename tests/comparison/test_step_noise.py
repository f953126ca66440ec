"""The noise of a difference between steps that depend on each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptrace.comparison import step_noise
from dptrace.comparison.step_noise import START, Float, Steps, noise_of, student_p


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


@pytest.mark.parametrize(
    ("t", "free", "p"),
    # Student's t at the two-sided 5 % and 0.1 %, from tables.
    [(12.706, 1, 0.05), (4.303, 2, 0.05), (3.182, 3, 0.05), (2.228, 10, 0.05), (2.042, 30, 0.05), (31.599, 2, 0.001)],
)
def test_student_p_is_that_of_tables(t: float, free: int, p: float) -> None:
    """For even and odd degrees of freedom."""
    assert student_p(np.array([t, -t]), free) == pytest.approx([p, p], rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.floats(0, 50), st.floats(0, 50))
def test_student_p_falls_with_t_and_with_the_degrees_of_freedom(free: int, t: float, u: float) -> None:
    """From 1 at 0; more degrees of freedom have lighter tails."""
    low, high = sorted((t, u))
    p = student_p(np.array([0.0, low, high]), free)

    assert 1 == p[0]
    assert p[2] <= p[1] + 1e-12
    assert student_p(np.array([high]), free + 1)[0] <= p[2] + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(2, 6)), min_size=2, max_size=5), st.integers(1, 2))
def test_the_variance_of_a_contrast_is_that_of_its_matrix(counts: list[tuple[int, int]], kinds: int) -> None:
    """c'Ωc, with Ω = phi^|t − u| within a recording and 0 between recordings."""
    counts = [(0, 3), *sorted(counts), (1, 3)]
    steps = steps_of(*counts, kinds=kinds)
    c = contrast(steps)
    apart = np.abs(steps.place[:, None] - steps.place)
    same = steps.recording[:, None] == steps.recording
    expected = [c @ np.where(same, phi**apart, 0) @ c for phi in step_noise._PHI]

    assert step_noise._variance_of(c[None], steps)[:, 0] == pytest.approx(expected)


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

    assert step_noise._whitened(y, x, steps, phi)[0] == pytest.approx([(y @ hat @ y.T).item()])


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

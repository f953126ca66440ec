"""What is noise and what is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dptrace.comparison.significance import Float, has_enough_steps, judge, standard_deviation, steady

FIGURES = 8


def family(draw: np.random.Generator, steps: int, moved: float = 0.0) -> Float:
    """Figures of 100 with a standard deviation of 1, the first of which is moved."""
    values = 100 + draw.standard_normal((FIGURES, steps))
    values[0] += moved
    return values


@pytest.mark.parametrize("steps", [4, 6, 20])
def test_two_recordings_of_the_same_thing_are_rarely_called_different(steps: int) -> None:
    """In at most a tenth of 200 comparisons is any of eight figures named; the aim is one in twenty."""
    draw = np.random.default_rng(steps)
    named = sum(
        any(one.verdict == "beyond noise" for one in judge(family(draw, steps), family(draw, steps), 0.01))
        for _ in range(200)
    )

    assert named <= 20


@pytest.mark.parametrize(("steps", "least"), [(4, 80), (6, 95), (20, 100)])
def test_what_is_large_is_found(steps: int, least: int) -> None:
    """A move of eight standard deviations is named, and of the seven other figures few are."""
    draw = np.random.default_rng(steps)
    verdicts = [[j.verdict for j in judge(family(draw, steps), family(draw, steps, 8), 0.01)] for _ in range(100)]

    assert sum(one[0] == "beyond noise" for one in verdicts) >= least
    assert sum("beyond noise" in one[1:] for one in verdicts) <= 30


def test_three_steps_each_tell_nothing() -> None:
    """One of ten swaps is always as extreme: a large difference can't be told, a small one is noise."""
    a = np.array([[100.0, 101, 102], [100, 101, 102], [100, 101, 102]])
    b = np.array([[200.0, 201, 202], [100.5, 101.5, 102.5], [100, 101, 102]])

    assert ["cannot tell", "within noise", "same"] == [one.verdict for one in judge(a, b, 0.1)]
    assert [None] * 3 == [one.p for one in judge(a, b, 0.1)]
    assert not has_enough_steps(3, 3)


def test_one_step_has_no_spread() -> None:
    """So that any difference but none can't be told."""
    one = np.array([[100.0], [100.0]])

    assert ["cannot tell", "same"] == [j.verdict for j in judge(one, np.array([[101.0], [100.0]]), 0.1)]
    assert standard_deviation(one[0]) is None


def test_what_the_steps_themselves_differ_by_is_not_named() -> None:
    """However many steps there are: two starts differ by no less than two steps."""
    draw = np.random.default_rng(0)
    a, b = 100 + draw.standard_normal((1, 200)), 100.6 + draw.standard_normal((1, 200))
    found = judge(a, b, 0.01)[0]

    assert found.p is not None
    assert found.p < 0.01
    assert "within noise" == found.verdict


values = npst.arrays(np.float64, (3, 5), elements=st.integers(0, 50).map(float))


@settings(max_examples=50, deadline=None)
@given(values, values)
def test_there_is_no_before_and_after(a: Float, b: Float) -> None:
    """A against B and B against A get the same verdicts, and the order of steps does not matter."""
    forth = judge(a, b, 0.5)

    assert forth == judge(b, a, 0.5)
    assert forth == judge(a[:, ::-1], b, 0.5)


@given(values)
def test_a_run_is_like_itself(a: Float) -> None:
    """No difference, whatever the noise."""
    assert {"same"} == {one.verdict for one in judge(a, a, 0.5)}


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
    assert kept == "".join(str(int(keep)) for keep in steady(np.array(walls, np.float64)))

"""Distributions and courses in fixed memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dptrace.watch.digest import COLUMNS, Courses, Histograms
from dptrace.watch.verdict import drift


def test_quantiles_are_within_one_percent() -> None:
    """Of 100,000 log-normal times with outliers."""
    random = np.random.default_rng(1)
    values = random.lognormal(np.log(30e6), 0.3, 100_000).astype(np.float64)
    values[::100] += 40e6
    histogram = Histograms()
    for part in np.array_split(values, 7):
        histogram.add(part)

    for share in (0.01, 0.5, 0.95, 0.999):
        assert np.quantile(values, share) == pytest.approx(histogram.quantile(share), rel=0.011)


def test_a_million_steps_take_no_more_memory_than_a_thousand() -> None:
    """A course keeps its columns, and knows at which step the values changed to within one of them."""
    course = Courses(2)
    for start in range(0, 1_000_000, 50_000):
        steps = np.arange(start, start + 50_000)
        course.add(steps, np.where(steps < 600_000, 1.0, 2.0) * np.ones((2, 1)))
    means = course.means()

    assert (2, COLUMNS) == course.sums.shape
    change = int(np.argmax(means[0] > 1.5))
    assert abs(course.first_step(change) - 600_000) <= course.width
    assert 1_000_000 == course.counts.sum()


@pytest.mark.heavy
@pytest.mark.parametrize("steps", [24, 60, 400])
def test_steps_that_only_vary_do_not_drift(steps: int) -> None:
    """In one of 100 runs at most; those that grow to the double do, by that."""
    random, false, grown = np.random.default_rng(steps), 0, []
    for _ in range(200):
        noise = random.lognormal(np.log(30e6), 0.1, steps)
        for values in (noise, noise + 30e6 / steps * np.arange(steps)):
            course = Courses()
            course.add(np.arange(steps), values)
            found = drift(cast(Any, SimpleNamespace(length_course=course)))
            if values is noise:
                false += found != 0
            elif found:
                grown.append(found)

    assert false <= 2
    assert len(grown) > 190
    assert 30e9 / steps == pytest.approx(np.median(grown), rel=0.1)

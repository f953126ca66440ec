"""Where less communication stops to pay."""

from __future__ import annotations

import pytest

from dptrace.bench.sweep import find_onset, onset_sentences
from dptrace.bench.sweep_points import BUCKET_CAP, Point


def point(value: str, s: float | None, loss: float | None, option: str = BUCKET_CAP) -> Point:
    return Point({option: value}, value, communication_fraction=s, validation_loss=loss)


def caps(*figures: tuple[str, float | None, float | None]) -> list[Point]:
    return [point(*one) for one in figures]


def test_the_page_s_hypothesis_holds_where_doubling_halves_s() -> None:
    """Caps of 0.5, 1, 2 and 4 MiB, each with half of s: no return is diminished, and no loss grows."""
    points = caps(("0.5", 0.8, 2.0), ("1", 0.4, 2.01), ("2", 0.2, 2.0), ("4", 0.1, 1.99))
    onset = find_onset(points, [BUCKET_CAP])

    assert onset is not None
    assert [pytest.approx(0.5)] * 3 == [step.factor for step in onset.steps]
    assert (None, None) == (onset.diminishing, onset.harmful)
    assert "no value is reached" in onset_sentences(onset)[0]
    assert "at 4 it is within 1 %" in onset_sentences(onset)[1]


def test_returns_diminish_from_where_no_doubling_lowers_s_by_a_tenth() -> None:
    """A step over two doublings counts as two: from 1 to 4, 0.32 is 0.8 each."""
    points = caps(("8", 0.245, 2.0), ("0.5", 0.8, 2.0), ("1", 0.5, 2.0), ("4", 0.32, 2.0), ("16", 0.25, 2.0))
    onset = find_onset(points, [BUCKET_CAP])

    assert onset is not None
    assert ["0.5", "1", "4", "8", "16"] == onset.order
    assert pytest.approx(0.8) == onset.steps[1].factor
    assert "8" == onset.diminishing
    assert "from 8 on, that is less than a tenth" in onset_sentences(onset)[0]


def test_harm_begins_where_the_loss_stays_above_the_least() -> None:
    """One bad point among good ones is no onset."""
    words = [point("none", 0.5, 2.0, "compress"), point("powersgd", 0.1, 2.2, "compress")]
    words += [point("fp16", 0.4, 2.5, "compress"), point("int8", 0.3, 2.01, "compress")]
    onset = find_onset(words, ["compress"])

    assert onset is not None
    assert (["none", "fp16", "int8", "powersgd"], []) == (onset.order, onset.steps)
    assert ("powersgd", None) == (onset.harmful, onset.diminishing)
    assert ["From powersgd on, less communication costs validation loss: more than 1 % above the least."] == (
        onset_sentences(onset)
    )


@pytest.mark.parametrize("missing", [("2", None, 2.0), ("2", 0.3, None), ("2", 0.0, 2.0)])
def test_without_two_points_there_is_none(missing: tuple[str, float | None, float | None]) -> None:
    """A point without a recording, without validation data, or of one rank does not count."""
    assert find_onset(caps(("1", 0.5, 2.0), missing), [BUCKET_CAP]) is None
    assert [] == onset_sentences(None)

"""Axes and the drawings on them."""

from __future__ import annotations

import pytest

from dptrace.viewers.base.marks import Box, log_axis, split_by_height, time_axis
from dptrace.viewers.views.registry import VIEWS
from tests.support.view_cases import drawn, many_ranks


def test_a_time_axis_starts_at_a_true_zero() -> None:
    """Its ticks are round, in one unit, and within the axis."""
    for high in (1, 7, 123, 5_000, 123_456_789, 9e12):
        axis = time_axis(high)

        assert 0 == axis.low == axis.ticks[0][0], high
        assert high == pytest.approx(axis.high), high
        assert 3 <= len(axis.ticks) <= 12, high
        assert all(0 <= value <= high * 1.001 for value, _ in axis.ticks), high
        assert 1 == len({label.split()[1] for _, label in axis.ticks}), high


def test_a_log_axis_spans_its_values() -> None:
    """From a round value below to one above, also of one value, with none of it empty; upwards for a y axis."""
    axis = log_axis([30, 4_000], "{:g}".format)
    up = log_axis([5], "{:g}".format, upwards=True)

    assert (20, 5_000) == (axis.low, axis.high)
    assert (7, 3) == (up.low, up.high)
    assert 0.5 == pytest.approx(axis.place((20 * 5_000) ** 0.5))
    assert 0 == up.place(7)
    assert "2000" in [label for _, label in axis.ticks]
    wide = log_axis([0.3, 1_484], "{:g}".format)
    assert (0.2, 2_000, "1 10 100 1000") == (wide.low, wide.high, " ".join(label for _, label in wide.ticks))


@pytest.mark.heavy
def test_long_drawings_are_parted_between_rows() -> None:
    """Every mark stands in one part, whole, and parts with bold names begin with one."""
    run = many_ranks(30)
    assert [drawn()] == split_by_height(drawn(), 1_000)
    for name in ("breakdown", "heatmap", "idle", "summary"):
        draw = VIEWS[name].draw
        assert draw, name
        whole = draw(run)
        parts = split_by_height(whole, 300)

        assert len(parts) > 1, name
        assert max(part.height for part in parts) <= 300, name
        assert list(whole.marks) == sorted((m for part in parts for m in part.marks), key=list(whole.marks).index), name
        for part in parts:
            boxes = [mark for mark in part.marks if isinstance(mark, Box)]
            assert all(part.y.low <= box.top and box.bottom <= part.y.high for box in boxes), name
            if name == "breakdown":
                assert part.y.ticks[0][0] in part.y.strong, name

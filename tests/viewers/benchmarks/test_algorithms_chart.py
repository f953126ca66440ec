"""The chart of timed algorithms."""

from __future__ import annotations

import pytest

from dptrace.model.link_report import link_report
from dptrace.viewers.base.marks import Dot, Line
from dptrace.viewers.benchmarks.algorithms_chart import algorithms_chart
from tests.support.links_samples import ALPHA_S, BETA_S, measured, with_algorithms


def test_points_are_measured_and_lines_predicted() -> None:
    """A dot for each size of each algorithm and of the library, and a dashed line for each that is predicted."""
    drawing = algorithms_chart(link_report(with_algorithms(measured(kinds=("all_reduce", "send_recv")))))
    dots = [mark for mark in drawing.marks if isinstance(mark, Dot)]
    lines = [mark for mark in drawing.marks if isinstance(mark, Line)]

    assert 17 * 6 == len(dots)
    assert 5 == len(lines)
    assert ["ring", "tree", "halving-doubling", "hierarchical", "naive", "library"] == [e.name for e in drawing.legend]
    assert pytest.approx(1e9 * (6 * ALPHA_S + 1.5 * 1024 * BETA_S), rel=0.05) == lines[0].points[0][1]
    assert any("ring, 1 KiB" in dot.tip and "predicted" in dot.tip for dot in dots)


def test_times_without_a_prediction_are_drawn() -> None:
    """Where no line could be fitted."""
    drawing = algorithms_chart(link_report(with_algorithms(measured(kinds=("broadcast",)))))

    assert not any(isinstance(mark, Line) for mark in drawing.marks)
    assert 17 * 5 == len(drawing.marks)

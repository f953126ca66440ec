"""Timed algorithms as tables."""

from __future__ import annotations

from dptrace.model.link_report import link_report
from dptrace.viewers.benchmarks.algorithms_table import algorithm_tables
from tests.support.links_samples import measured, with_algorithms


def test_measured_times_stand_beside_predictions() -> None:
    """A row for each algorithm, then a column for each; the fastest of a size is marked."""
    (_, volumes), (_, times) = algorithm_tables(
        link_report(with_algorithms(measured(kinds=("all_reduce", "send_recv"))))
    )
    by_name = {row[0]: row for row in volumes.rows}

    assert ("1.5 n", "6 n") == by_name["ring"][2:4]
    assert ("3 n", "6 n") == by_name["naive"][2:4]
    assert "ring overtakes tree" in volumes.note
    assert ("size", "library", "ring", "tree", "halving-doubling", "hierarchical", "naive") == times.columns
    assert times.rows[-1][0] == "64 MiB"
    assert all(1 == sum(cell.endswith("*") for cell in row) for row in times.rows)
    assert all("%" in cell for row in times.rows for cell in row[2:])


def test_without_algorithms_there_is_no_table() -> None:
    """As in files of older versions."""
    assert [] == list(algorithm_tables(link_report(measured())))


def test_without_a_line_the_times_stay() -> None:
    """No column shows a difference, and the note says why."""
    content = link_report(with_algorithms(measured(kinds=("all_reduce",))))
    (_, volumes), (_, times) = algorithm_tables(content)

    assert {"–"} == {row[5] for row in volumes.rows}
    assert "point-to-point" in volumes.note
    assert not any("%" in cell for row in times.rows for cell in row)

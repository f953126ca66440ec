"""Memory reduced to columns of a picture."""

from __future__ import annotations

from pathlib import Path

import dptrace
from dptrace.analysis.memory.usage import total_bytes
from dptrace.run.memory import device_reports
from dptrace.viewers.base.charts import (
    sample_levels,
    span_of,
)
from tests.support.kineto_files import BASE_NS
from tests.support.memory_files import GOLDEN, memory_run


def test_no_peak_is_lost_between_columns() -> None:
    """However few columns there are, the highest of them is the peak."""
    [report] = device_reports(dptrace.open(GOLDEN))
    total = total_bytes(report.device)
    for columns in (1, 7, 200, 5000):
        found = sample_levels(report.device, *span_of(report), columns)

        assert report.peak.bytes == int(total[found.level].max()), columns
        assert columns == len(found.level) == len(found.edges) - 1, columns


def test_a_column_without_events_shows_what_was_there(tmp_path: Path) -> None:
    """From 13 µs on 40 bytes are held, and nothing happens between 16 and 40 µs."""
    [report] = device_reports(dptrace.open(memory_run(tmp_path, ranks=1)))
    found = sample_levels(report.device, BASE_NS + 20_000, BASE_NS + 30_000, 2)

    assert [1040, 1040] == total_bytes(report.device)[found.level].tolist()


def test_the_span_is_that_of_the_selected_steps(tmp_path: Path) -> None:
    """Both steps last 100 µs each."""
    run = dptrace.open(memory_run(tmp_path, ranks=1))

    assert [(BASE_NS, BASE_NS + 200_000)] == [span_of(report) for report in device_reports(run)]
    [second] = device_reports(run.select(steps=(1, 1)))
    assert BASE_NS + 200_000 == span_of(second)[1]
